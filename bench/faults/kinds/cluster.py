"""Faults of the cluster: its API, its nodes, its disks. The local node carries them out (`POST /faults`)."""

from __future__ import annotations

import time
from collections.abc import Callable

from faults import parts
from faults.kinds.base import Kind, Rule, Scene
from faults.kinds.control import untouched

FOR_EVER = 1_000_000_000
DROPS = (1, 5)
RESTART_PART = "node"


def _drop_watches(scene: Scene) -> None:
    count = scene.rng.randint(*DROPS)
    scene.notes["drops"] = count
    for _ in range(count):
        scene.lab.fault("drop_watches")
        time.sleep(scene.rng.uniform(0.2, 3.0))


def _answers(status: int) -> Callable[[Scene], None]:
    def inject(scene: Scene) -> None:
        scene.lab.fault("api_errors", status=status, count=FOR_EVER, retry_after_seconds=2)

    return inject


def _answers_well(scene: Scene) -> None:
    scene.lab.fault("api_errors", status=500, count=0)


def _lose_node(scene: Scene) -> None:
    scene.held = scene.lab.fault("lose_node", delete_after_seconds=scene.rng.choice((2, 10)))
    scene.notes["lost"] = scene.held


def _find_node(scene: Scene) -> None:
    scene.lab.fault("find_node", node=scene.notes["lost"]["node"])


def _kill_node(scene: Scene) -> None:
    scene.held = parts.kill(scene.lab.home, RESTART_PART)


def _node_serves(scene: Scene) -> None:
    served = parts.wait_serves(scene.lab.home, RESTART_PART, since=scene.held)
    scene.notes["serves_after_seconds"] = round(served - scene.held, 1)


KINDS = (
    Kind(
        "node_lost",
        "A node falls silent with all its pods, which run on behind it; it comes back a minute later",
        "stack",
        _lose_node,
        _find_node,
        lasts=True,
        rule=lambda _shape: Rule(tail_may_be_lost=True),
    ),
    Kind(
        "watch_dropped", "All open watches of the cluster break off, some times", "stack", _drop_watches, rule=untouched
    ),
    Kind(
        "api_errors_500",
        "The cluster's API answers 500 to everything for a minute",
        "stack",
        _answers(500),
        _answers_well,
        lasts=True,
        rule=untouched,
    ),
    Kind(
        "api_throttled_429",
        "The cluster's API answers 429 to everything for a minute",
        "stack",
        _answers(429),
        _answers_well,
        lasts=True,
        rule=untouched,
    ),
    Kind(
        "cluster_restarted",
        "The cluster's control plane (the local node) gets SIGKILL and is started again",
        "stack",
        _kill_node,
        _node_serves,
        rule=untouched,
    ),
)
