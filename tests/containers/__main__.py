"""Images and an engine to run them: `python3 tests/containers VERB`. Standard library only.

    images [NAME ...] [--archives [FOLDER]] [--record]   build; archive for nodes that cannot pull; keep the figures
    list                                                 the images and their archives, as JSON
    docker ARGUMENT ...                                  the client, talking to the engine
    compose ARGUMENT ...                                 Docker Compose, in the repository's root
    report                                               write the table of docs/reference/images.md again
    down                                                 end the engine and remove everything of it; caches stay

Without an engine that answers (DOCKER_HOST), `images` starts Debian's below a folder of the cache: it needs root.
Called by the Makefile.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from containers import build, compose_program, engine, places, recipes, report
from containers.places import REPOSITORY, ContainersError


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["docker"]:
        return _docker(arguments[1:])
    if arguments[:1] == ["compose"]:
        return _compose(arguments[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list")
    verbs.add_parser("down")
    verbs.add_parser("report")
    images = verbs.add_parser("images")
    images.add_argument("names", nargs="*", help="such as sidecar or updraft/sidecar:0.1; default: all but PyTorch's")
    images.add_argument("--archives", nargs="?", const="", metavar="FOLDER", help="also `docker save` each into FOLDER")
    images.add_argument("--record", action="store_true", help="build afresh; keep size and time for the docs")
    given = parser.parse_args(arguments)
    if given.verb == "list":
        print(recipes.as_json())
    elif given.verb == "down":
        engine.end(places.find_places())
    elif given.verb == "report":
        report.write()
    else:
        _images(given.names, given.archives, given.record)
    return 0


def _images(names: list[str], archives: str | None, record: bool) -> None:
    here = places.find_places()
    wanted = recipes.chosen(names)
    docker = engine.find_or_start(here)
    results = build.build(docker, here, wanted, build.warn, fresh=record)
    if record:
        build.record(results)
        report.write()
    if archives is not None:
        build.save(docker, wanted, Path(archives).absolute() if archives else here.archives, print)
    elif docker.own:
        print(f"The engine goes on: export DOCKER_HOST={docker.host}; `make images-down` ends it.")


def _docker(arguments: list[str]) -> int:
    docker = engine.find_or_start(places.find_places())
    os.execvpe(docker.cli, [docker.cli, *arguments], dict(docker.environment))


def _compose(arguments: list[str]) -> int:
    here = places.find_places()
    docker = engine.find_or_start(here)
    command = [*compose_program.find_or_build(docker, here, build.warn), *arguments]
    os.chdir(REPOSITORY)
    os.execvpe(command[0], command, dict(docker.environment))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ContainersError as exc:
        print(f"error: {exc}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
