"""Faults of the cluster: its API, its nodes, its disks. The local node carries them out (`POST /faults`)."""

from __future__ import annotations

import time
from contextlib import suppress

from faults import parts
from faults.kinds.base import PROCESS_RUNS, Kind, Rule, Scene, TooLateError, fault_of_pod, living_pod, some_step
from faults.kinds.control import untouched

FULL_SECONDS = (3.0, 12.0)
PULL_SECONDS = 20.0
DROPS = (1, 5)
RESTART_PART = "node"


def _drop_watches(scene: Scene) -> None:
    count = scene.rng.randint(*DROPS)
    scene.notes["drops"] = count
    for _ in range(count):
        scene.lab.fault("drop_watches")
        time.sleep(scene.rng.uniform(0.2, 3.0))


def _errors(scene: Scene) -> None:
    """Let requests fail. Half of the time they are carried out all the same, and only their answers are lost."""
    executed = scene.rng.random() < 0.5
    scene.notes["executed"] = executed
    scene.lab.fault("api_errors", status=500, for_seconds=scene.outage_seconds, executed=executed)


def _throttled(scene: Scene) -> None:
    scene.lab.fault("api_errors", status=429, for_seconds=scene.outage_seconds, retry_after_seconds=2)


def _cut(scene: Scene) -> None:
    scene.notes["how"] = scene.rng.choice(("close", "hang"))
    scene.lab.fault("cut", for_seconds=scene.outage_seconds, how=scene.notes["how"])


def _pull_fails(scene: Scene) -> None:
    count, seconds = scene.rng.randint(1, 4), scene.rng.choice((3.0, 8.0, 25.0))
    scene.notes |= {"count": count, "for_seconds": seconds}
    scene.lab.fault("pull_fails", count=count, for_seconds=seconds)
    time.sleep(PULL_SECONDS)  # in which pods come


def _pulls(scene: Scene) -> None:
    scene.lab.fault("pull_fails", count=0)


def _fill_disk(scene: Scene) -> None:
    if not scene.lab.small_disks:
        raise TooLateError("this machine cannot give pods disks of their own")
    scene.notes["pod"] = living_pod(scene)
    fault_of_pod(scene, scene.notes["pod"], "disk_full", left_bytes=scene.rng.choice((0, 8192)))
    time.sleep(scene.rng.uniform(*FULL_SECONDS))


def _free_disk(scene: Scene) -> None:
    with suppress(TooLateError):  # its disk went with it
        fault_of_pod(scene, scene.notes["pod"], "disk_free")


def _lose_node(scene: Scene) -> None:
    answer = scene.lab.fault("lose_node", delete_after_seconds=scene.rng.choice((2, 10)))
    scene.notes["lost"] = answer.get("did", answer)


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
        "A node falls silent with all its pods, which run on behind it; it comes back 40 s later",
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
        "The cluster's API answers 500 to everything for 40 s",
        "stack",
        _errors,
        lasts=True,
        rule=untouched,
    ),
    Kind(
        "api_throttled_429",
        "The cluster's API answers 429 to everything for 40 s",
        "stack",
        _throttled,
        lasts=True,
        rule=untouched,
    ),
    Kind(
        "api_cut",
        "Nobody reaches the cluster's API for 40 s: connections break off, or hang",
        "stack",
        _cut,
        lasts=True,
        rule=untouched,
    ),
    Kind(
        "image_pull_fails",
        "The images of the next pods cannot be pulled for some seconds",
        "stack",
        _pull_fails,
        _pulls,
    ),
    Kind(
        "disk_full",
        "The disk of a learner's pod is full for some seconds",
        "job",
        _fill_disk,
        _free_disk,
        moment=some_step,
        rule=lambda _shape: Rule(tail_may_be_lost=True),
        aims=PROCESS_RUNS,
        side="learner",
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
