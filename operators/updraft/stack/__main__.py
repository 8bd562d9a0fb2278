"""`python -m updraft.stack`: the same commands as the CLI's, for the Makefile and for work on the stack itself."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys

from updraft.exceptions import UpdraftError
from updraft.stack import control
from updraft.stack.layout import Home, StackError, find_home
from updraft.terminal import typed


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m updraft.stack", description="The embedded stack of Updraft.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    starting = verbs.add_parser("up", help="start every part, or attach to a stack that is up")
    for name in ("airflow", "mlflow", "s3", "node"):
        starting.add_argument(f"--port-{name}", type=int, metavar="N", help=f"loopback port of {name}")
    starting.add_argument("--gpus", type=int, metavar="N", help="devices that the local node declares")
    starting.add_argument("--cpus", type=float, metavar="N", help="CPUs that the local node offers")
    starting.add_argument("--memory-mib", type=int, metavar="N", help="memory that the local node offers")
    starting.add_argument("--kubeconfig", metavar="FILE", help="a cluster of yours in place of the local node")
    starting.add_argument("--context", metavar="NAME", help="the context of that file")
    starting.add_argument("--address", metavar="IP", help="this machine's address as the cluster's pods reach it")
    verbs.add_parser("down", help="end every process of this home")
    for verb, text in (("status", "what runs"), ("doctor", "look for what is wrong")):
        verbs.add_parser(verb, help=text).add_argument("--json", action="store_true")
    verbs.add_parser("prepare", help="build every environment that the tests use")
    images = verbs.add_parser("images", help="build environments of learner images")
    images.add_argument("names", nargs="*", help="names of the catalogue; default: all")
    verbs.add_parser("demo", help="from a manifest to a registered model")
    verbs.add_parser("supervise", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except UpdraftError as exc:
        print(typed(f"error: {exc}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted. `make status` shows what runs, `make down` ends it.", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace) -> int:
    home = find_home()
    if options.verb == "supervise":
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
        return control.supervise(home)
    # Imported only for commands with output, to keep the supervisor small.
    from updraft.stack import display

    if options.verb == "up":
        names = ("airflow", "mlflow", "s3", "node")
        ports = {n: getattr(options, f"port_{n}") for n in names if getattr(options, f"port_{n}") is not None}
        size = {n: getattr(options, n) for n in ("gpus", "cpus", "memory_mib") if getattr(options, n) is not None}
        own = ("kubeconfig", "context", "address")
        cluster = {n: getattr(options, n) for n in own if getattr(options, n) is not None}
        control.up(home, ports=ports, node=size, cluster=cluster)
        display.show_addresses(home)
        return 0
    if options.verb == "down":
        control.down(home)
        print("Nothing of this stack is running.")
        return 0
    if options.verb == "status":
        from updraft.stack.status import stack_status

        status = stack_status(home)
        if options.json:
            print(json.dumps(status.as_dict(), indent=2))
        else:
            display.show_status(status)
        return 0 if status.ready else 3
    if options.verb == "doctor":
        from updraft.stack.doctor import doctor

        checks = doctor(home)
        if options.json:
            print(json.dumps([c.as_dict() for c in checks], indent=2))
        else:
            display.show_checks(checks)
        return 0 if all(c.ok for c in checks) else 1
    if options.verb in ("images", "prepare"):
        chosen = tuple(options.names) if options.verb == "images" else ()
        _build(home, chosen, servers=options.verb == "prepare")
        return 0
    from updraft.stack.demo import run_demo

    return run_demo(home)


def _build(home: Home, names: tuple[str, ...], *, servers: bool) -> None:
    from updraft.stack import environments, footprint

    names = names or environments.image_names(home, on_demand=False)
    keys = (*((footprint.MLFLOW.key,) if servers else ()), *names)
    if problem := environments.missing_space(home, keys):
        raise StackError(problem)
    home.root.mkdir(parents=True, exist_ok=True)
    if servers:
        environments.build_mlflow(home, lambda _line: None)
    for name in names:
        if not environments.is_built(home, name):
            print(f"Building {name} …", flush=True)
        environments.build_image(home, name, environments.downloads(print) if not servers else lambda _line: None)
    if servers and not os.environ.get(environments.TORCH_INDEX_VARIABLE):
        environments.build_torch_tests(home, lambda _line: None)


if __name__ == "__main__":
    sys.exit(main())
