"""The cluster that tests run on: one that UPDRAFT_TEST_KUBECONFIG names, or that of `make cluster`.

Called by the conftest files of tests/cluster and tests/conformance.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kubecluster import cgroups, running
from kubecluster.images import PYTHON_IMAGE
from kubecluster.layout import Layout, find_layout
from kubecluster.needs import this_machine

KUBECONFIG_VARIABLE = "UPDRAFT_TEST_KUBECONFIG"
PREFIX_VARIABLE = "UPDRAFT_TEST_IMAGE_PREFIX"
PUBLIC_IMAGE = "docker.io/library/python:3.11-slim"


@dataclass(frozen=True)
class Target:
    """`own` is None on somebody's cluster: there a test stays inside a namespace that it makes."""

    kubeconfig: Path
    python_image: str
    own: running.Cluster | None


def named_target() -> Target | None:
    """The cluster that the environment names; its image with python3 is PREFIX/python:1, else a public one.

    Where that is the one of `make cluster`, tests may do with it what they like, and its image is made here.
    """
    kubeconfig = os.environ.get(KUBECONFIG_VARIABLE)
    if not kubeconfig:
        return None
    path = Path(kubeconfig).expanduser().resolve()
    layout = find_layout()
    own = running.running(layout) if path == layout.kubeconfig else None
    if own is not None:
        return Target(path, PYTHON_IMAGE, own)
    prefix = os.environ.get(PREFIX_VARIABLE)
    image = f"{prefix.rstrip('/')}/{PYTHON_IMAGE.rpartition('/')[2]}" if prefix else PUBLIC_IMAGE
    return Target(path, image, None)


def why_not(layout: Layout) -> str | None:
    """Why no cluster can be started here, in one line; None where it can."""
    problems = this_machine(layout).problems()
    lacking = [] if problems else cgroups.missing()
    if lacking:
        problems.append(f"It needs control groups with {', '.join(lacking)}.")
    if not problems:
        return None
    return f"no {KUBECONFIG_VARIABLE} is set, and no cluster can be started here: {' '.join(problems)}"


@contextmanager
def kept_running(layout: Layout, say: running.Say) -> Iterator[running.Cluster]:
    """The cluster that runs, or one for as long as this lasts."""
    was_running = running.running(layout) is not None
    cluster = running.up(layout, say)
    try:
        yield cluster
    finally:
        if not was_running:
            running.down(layout, say)


@contextmanager
def own_target(say: running.Say) -> Iterator[Target]:
    """The cluster of `make cluster`: the one that runs, or one for as long as this lasts."""
    layout = find_layout()
    with kept_running(layout, say) as cluster:
        yield Target(layout.kubeconfig, cluster.load_python_image(say), cluster)
