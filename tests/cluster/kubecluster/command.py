"""The command line of the test cluster. Called by `python tests/cluster`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from kubecluster import running, suite
from kubecluster.layout import REPOSITORY, ClusterError, Layout, find_layout
from kubecluster.machines import CONTROL, NODES, read_record
from kubecluster.parts import all_parts
from updraft.stack import control
from updraft.stack.layout import Home


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python tests/cluster", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("up", help="start the cluster, or say that it runs")
    verbs.add_parser("down", help="end it and remove everything of it")
    verbs.add_parser("status", help="what runs")
    load = verbs.add_parser("load", help="import image archives, as `docker save` writes them, on all nodes")
    load.add_argument("archive", type=Path, nargs="*", help="without one: an image with Python that is made here")
    test = verbs.add_parser("test", help="run the cluster tests", prefix_chars=" ")  # options are pytest's
    test.add_argument("arguments", nargs="*", help="for pytest")
    chosen = parser.parse_args(arguments)
    layout = find_layout()
    try:
        if chosen.verb == "up":
            _up(layout)
        elif chosen.verb == "down":
            _down(layout)
        elif chosen.verb == "load":
            _load(layout, chosen.archive)
        elif chosen.verb == "test":
            return suite.run(layout, chosen.arguments, _sayer())
        else:
            return _status(layout)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _up(layout: Layout) -> None:
    running.up(layout, _sayer())
    print(f"The cluster runs. Its administrator's kubeconfig: {layout.kubeconfig}")
    print(f"  export KUBECONFIG={layout.kubeconfig}")
    print(f"  {layout.kubectl} get nodes")
    print("`make cluster-down` ends it and leaves nothing.")


def _down(layout: Layout) -> None:
    if os.geteuid() != 0 and (layout.root.exists() or layout.beside.root.exists()):
        raise ClusterError("Only root can end the test cluster; run it with sudo.")
    say = _sayer()
    control.down(Home(layout.platform, REPOSITORY), say=say)  # of tests that were killed, as the second cluster
    running.down(layout, say)
    if layout.beside.root.exists():
        running.down(layout.beside, say)


def _load(layout: Layout, archives: list[Path]) -> None:
    cluster = running.running(layout)
    if cluster is None:
        raise ClusterError("The test cluster is not running; `make cluster` starts it.")
    say = _sayer()
    if not archives:
        print(cluster.load_python_image(say))
    for archive in archives:
        print("\n".join(cluster.load_image(archive)))


def _status(layout: Layout) -> int:
    cluster = running.running(layout)
    if cluster is None:
        print("The test cluster is not running; `make cluster` starts it.")
        return 1
    names = [CONTROL, *NODES]
    names += [part.name for part in all_parts(layout, cluster.programs, cluster.network)]
    for name in names:
        identity = read_record(layout, name)
        process = None if identity is None else identity.process()
        memory = "" if process is None else f"{process.memory_info().rss / 2**20:6.0f} MiB"
        print(f"{name:26} {'ended' if process is None else f'runs, pid {process.pid:<8}'} {memory}")
    print(f"kubeconfig: {layout.kubeconfig}")
    return 0


def _sayer() -> running.Say:
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {text}", flush=True)

    return say
