"""Builds the images from the checkout, records size and time of each, and saves them as archives.

Certificates and addresses of package registries that this machine is configured with are handed to the build stages as
files of the context and as build arguments; no image that is kept has them. Called by `__main__` and by tests.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from containers import base
from containers.engine import Engine
from containers.places import REPOSITORY, ContainersError, Places
from containers.recipes import Recipe

BASE_VARIABLE, MINIMAL_VARIABLE = "UPDRAFT_BASE_IMAGE", "UPDRAFT_MINIMAL_BASE_IMAGE"
# By digest, each that of an index of images for several architectures; a test holds the Dockerfiles to them.
PUBLIC_BASE = "python:3.11-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b"
PUBLIC_MINIMAL = "debian:bookworm-slim@sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171"
CA_VARIABLE = "UPDRAFT_EXTRA_CA"
CA_SOURCES = (CA_VARIABLE, "SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")
# Where packages come from: arguments that build stages declare, and no last stage.
REGISTRIES = ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")
# Every stage has these undeclared, and no history; apt knows those in small letters only.
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
CONTEXT = (
    "pyproject.toml",
    "uv.lock",
    "README.md",
    "LICENSE",
    "dags",
    "images",
    "jobs",
    "mlflow",
    "operators",
    "plugins",
)
EXTRA_CA = "images/ca/extra.crt"
RESULTS = REPOSITORY / "docs" / "reference" / "images.json"
STAGES = 2  # an environment is in the stage that makes it, and in the image that copies it
ROOM_LEFT_BYTES = 10**9  # the bases, and what containers write
UNKNOWN_BYTES = 250 * 10**6  # of an image that was never recorded

Say = Callable[[str], None]


@dataclass(frozen=True)
class Built:
    """What a build cost; `seconds` is None when every layer was there already."""

    name: str
    bytes: int  # of all layers, unpacked
    own_bytes: int  # without those of the base image, which all images share
    layers: int
    seconds: float | None
    base: str
    at: str


def bases(engine: Engine, places: Places, say: Say, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The base images by build argument: those named, else the public ones, else debootstrap's."""
    environment = os.environ if environment is None else environment
    named = {"BASE": environment.get(BASE_VARIABLE), "MINIMAL_BASE": environment.get(MINIMAL_VARIABLE)}
    public = {"BASE": PUBLIC_BASE, "MINIMAL_BASE": PUBLIC_MINIMAL}
    if not any(named.values()) and not all(map(engine.has_image, public.values())):
        for image in public.values():
            pulled = engine.docker("pull", "--quiet", image, check=False)
            if pulled.returncode != 0:
                say(f"{image} cannot be pulled ({pulled.stderr.strip().splitlines()[-1][:120]}).")
                base.ensure(engine, places, say)
                return {"BASE": base.PYTHON, "MINIMAL_BASE": base.MINIMAL}
    return {argument: image or public[argument] for argument, image in named.items()}


def build(
    engine: Engine,
    places: Places,
    recipes: Iterable[Recipe],
    say: Say,
    *,
    fresh: bool = False,
    environment: Mapping[str, str] | None = None,
) -> list[Built]:
    """`fresh` uses no layer of an earlier build. Raises ContainersError with the end of what the build said."""
    environment = os.environ if environment is None else environment
    recipes = tuple(recipes)
    if engine.own:
        check_room(places, [recipe.name for recipe in recipes if fresh or not engine.has_image(recipe.name)])
    found = bases(engine, places, say, environment)
    results = []
    context = make_context(environment)
    for recipe in recipes:
        began = time.monotonic()
        changed = _build_one(engine, recipe, found, context, environment, fresh=fresh)
        seconds = round(time.monotonic() - began, 1) if changed else None
        built = measure(engine, recipe, found, seconds)
        took = "nothing to do" if seconds is None else f"{seconds:.0f} s"
        say(f"{recipe.name}: {took}, {built.bytes / 1e6:.0f} MB, {built.own_bytes / 1e6:.0f} MB above its base")
        results.append(built)
    return results


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def check_room(
    places: Places,
    names: Iterable[str],
    file: Path = RESULTS,
    *,
    free_bytes: Callable[[Path], int] = free_bytes,
) -> None:
    """Raises ContainersError when the disk is too small for these images and the stages that they are built in."""
    sizes = {entry["name"]: int(entry["own_bytes"]) for entry in json.loads(file.read_text())}
    wanted = {name: STAGES * sizes.get(name, UNKNOWN_BYTES) for name in names}
    free = free_bytes(places.state)
    if wanted and free < sum(wanted.values()) + ROOM_LEFT_BYTES:
        needed = sum(wanted.values()) + ROOM_LEFT_BYTES
        raise ContainersError(
            f"{places.state} has {free / 1e9:.1f} GB free; {needed / 1e9:.1f} GB are needed to build "
            f"{', '.join(wanted)}. Free some, or name another disk's folder in UPDRAFT_CONTAINERS_STATE."
        )


def make_context(environment: Mapping[str, str], repository: Path = REPOSITORY) -> bytes:
    """What Dockerfiles copy, as a tar: the files that git knows or would take, and this machine's extra authorities."""
    listed = subprocess.run(
        ["git", "-C", str(repository), "ls-files", "-z", "--cached", "--others", "--exclude-standard", *CONTEXT],
        capture_output=True,
        text=True,
    )
    if listed.returncode != 0:
        raise ContainersError(f"git cannot list the files of {repository}: {listed.stderr.strip()}")
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for name in sorted(filter(None, listed.stdout.split("\0"))):
            path = repository / name
            if path.is_file():
                _add(tar, name, path.read_bytes(), executable=os.access(path, os.X_OK))
        authorities = extra_authorities(environment)
        if authorities is not None:
            _add(tar, EXTRA_CA, authorities, executable=False)
    return target.getvalue()


def extra_authorities(environment: Mapping[str, str]) -> bytes | None:
    """The bundle that this machine's programs trust, when one is configured."""
    named = next((environment[name] for name in CA_SOURCES if environment.get(name)), None)
    if named is None:
        return None
    try:
        return Path(named).read_bytes()
    except OSError as exc:
        raise ContainersError(f"{named} cannot be read ({exc.strerror}); {CA_VARIABLE} names a PEM file") from exc


def _add(tar: tarfile.TarFile, name: str, content: bytes, *, executable: bool) -> None:
    """Without times and owners, so that the same content is the same layer."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o755 if executable else 0o644
    tar.addfile(entry, io.BytesIO(content))


def _build_one(
    engine: Engine,
    recipe: Recipe,
    found: Mapping[str, str],
    context: bytes,
    environment: Mapping[str, str],
    *,
    fresh: bool,
) -> bool:
    """Whether anything had to be built."""
    arguments = {"VERSION": project_version(), **dict(recipe.arguments), **dict(recipe.needs)}
    arguments |= {name: environment[name] for name in (*REGISTRIES, *PROXIES) if environment.get(name)}
    arguments |= found
    lines = (REPOSITORY / recipe.dockerfile).read_text().splitlines()
    known = {part.partition("=")[0] for line in lines if line.startswith("ARG ") for part in line.split()[1:]}
    if recipe.base not in known:  # its Dockerfile has one base only
        arguments["BASE"] = found[recipe.base]
    known |= set(PROXIES)
    command = [engine.cli, "build", "--network", "host", "--file", recipe.dockerfile, "--tag", recipe.name]
    command += ["--no-cache"] if fresh else []
    command += [part for k, v in arguments.items() if k in known for part in ("--build-arg", k)]
    given = {**engine.environment, **arguments}  # by environment: values may hold a password
    before = engine.docker("image", "inspect", recipe.name, "--format", "{{.Id}}", check=False).stdout.strip()
    done = subprocess.run([*command, "-"], env=given, input=context, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        raise ContainersError(f"{recipe.name} could not be built; the build ended with:\n{said[-4000:]}")
    after = engine.docker("image", "inspect", recipe.name, "--format", "{{.Id}}").stdout.strip()
    return before != after


def measure(engine: Engine, recipe: Recipe, found: Mapping[str, str], seconds: float | None) -> Built:
    layers = _layers(engine, recipe.name)
    under = _layers(engine, found[recipe.base])
    size = int(engine.docker("image", "inspect", recipe.name, "--format", "{{.Size}}").stdout)
    below = int(engine.docker("image", "inspect", found[recipe.base], "--format", "{{.Size}}").stdout)
    if layers[: len(under)] != under:
        raise ContainersError(f"{recipe.name} does not begin with the layers of {found[recipe.base]}")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Built(recipe.name, size, size - below, len(layers) - len(under), seconds, found[recipe.base], now)


def _layers(engine: Engine, image: str) -> list[str]:
    return list(json.loads(engine.docker("image", "inspect", image, "--format", "{{json .RootFS.Layers}}").stdout))


def record(results: Iterable[Built], file: Path = RESULTS) -> None:
    """Replaces what is known of these images; a build that had nothing to do keeps the time of the one before."""
    known = {entry["name"]: entry for entry in json.loads(file.read_text())} if file.exists() else {}
    for built in results:
        entry = asdict(built)
        earlier = known.get(built.name)
        if built.seconds is None and earlier is not None:
            continue
        known[built.name] = entry
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([known[name] for name in sorted(known)], indent=2) + "\n")


def save(engine: Engine, recipes: Iterable[Recipe], folder: Path, say: Say) -> list[Path]:
    """An archive of each image, written anew only when the image has changed."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for recipe in recipes:
        path, mark = folder / recipe.archive, folder / f".{recipe.archive}.id"
        identity = engine.docker("image", "inspect", recipe.name, "--format", "{{.Id}}").stdout.strip()
        if not (path.exists() and mark.exists() and mark.read_text() == identity):
            mark.unlink(missing_ok=True)
            engine.docker("save", "--output", str(path), recipe.name)
            mark.write_text(identity)
        say(str(path))
        paths.append(path)
    return paths


def project_version() -> str:
    import tomllib

    return str(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"])


def warn(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
