"""Describe the state of learners' pods, and what users see while a gang runs. Pure.

`kubernetes/pod_status.py` reads these facts from the API's objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from updraft.lifecycle import State
from updraft.lifecycle.membership import Membership
from updraft.recovery.rows_cluster import WAITING_REASONS

BUILDING = "BuildingEnvironment"  # the local node's reason for a waiting container


@dataclass(frozen=True)
class ContainerFacts:
    """The state of one container; `exit_code` is set once it has ended."""

    state: str  # waiting, running, terminated, absent
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    started_at: str | None = None
    finished_at: str | None = None
    started: bool = False  # it runs, and its startup probe has passed

    @property
    def blocked(self) -> bool:
        """Return whether it waits for something that does not come by itself."""
        return self.state == "waiting" and self.reason in WAITING_REASONS


@dataclass(frozen=True)
class PodFacts:
    """One learner's pod, as its status describes it."""

    name: str
    uid: str
    learner: int
    phase: str
    reason: str  # the pod's own reason: Evicted, DeadlineExceeded, ...
    message: str
    deleting: bool
    unscheduled: str | None  # the scheduler's message while there is no room
    sidecar: ContainerFacts
    main: ContainerFacts
    node: str = ""  # empty until the pod is scheduled
    gpus: int = 0  # requested by the program's container
    disruption: str = ""  # reason of the condition DisruptionTarget: why the cluster removes the pod
    disruption_message: str = ""
    # Whether the pod was being removed when its program's end was first seen; if the watch missed the end, whether it
    # is now.
    asked_to_leave: bool = False

    @property
    def ended(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    @property
    def lost(self) -> bool:
        """Return whether the pod is being removed and nothing reports how its program ends: its node does not answer,
        or the program is still exiting. If it lasts longer than the grace period, the node is the cause: container
        runtimes lose a program's end now and then (https://github.com/containerd/containerd/issues/12678)."""
        return self.deleting and not self.ended and self.main.exit_code is None

    @property
    def mounting(self) -> bool:
        """Return whether the node has not begun the pod's first container: it waits for what the pod mounts, or for an
        image."""
        return self.phase == "Pending" and bool(self.node) and not self.begun and not self.sidecar.blocked

    @property
    def begun(self) -> bool:
        """Return whether the first container, the sidecar, was started, perhaps long ago."""
        return self.sidecar.state in ("running", "terminated") or self.main.state in ("running", "terminated")

    @property
    def runs(self) -> bool:
        """Return whether the program runs: code, data and checkpoint are in place."""
        return self.main.state == "running" and self.main.started

    @property
    def building(self) -> str | None:
        """Return what the local node says while it builds the environment of one of the pod's images."""
        containers = (self.sidecar, self.main)
        return next((c.message for c in containers if c.state == "waiting" and c.reason == BUILDING), None)

    @property
    def blocked(self) -> str | None:
        """Return why the pod waits for something that does not come by itself."""
        for container in (self.sidecar, self.main):
            if container.blocked:
                return f"{container.reason}: {container.message}".rstrip(": ")
        return None

    def evidence(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value not in (None, "", False, 0)}


def with_last_seen(pods: Sequence[PodFacts], last: Sequence[PodFacts]) -> list[PodFacts]:
    """Return the current pods, and deleted pods in their `last` seen state if that shows how their program ended or why
    the cluster removed them: a node may remove a pod within a second of its end. In the order of `last`."""
    there = {pod.learner for pod in pods}
    ends = {p.learner: p.asked_to_leave for p in last if p.main.exit_code is not None}
    now = [replace(pod, asked_to_leave=ends.get(pod.learner, pod.asked_to_leave)) for pod in pods]
    gone = [p for p in last if p.learner not in there and (p.main.exit_code is not None or p.disruption)]
    ended = [p if p.ended else replace(p, phase="Failed" if p.main.exit_code != 0 else "Succeeded") for p in gone]
    place = {pod.learner: number for number, pod in enumerate(last)}
    return sorted((*now, *ended), key=lambda pod: (place.get(pod.learner, len(place)), pod.learner))


def stage_of(pods: Sequence[PodFacts], membership: Membership) -> tuple[State, str]:
    """Return the state that users see while a gang lives, and its reason: that of the least advanced member."""
    learners = membership.size
    pods = [pod for pod in pods if pod.learner in membership.learners]
    if len(pods) < learners:
        return State.DEPLOYING, f"{len(pods)} of {learners} learners created"
    waiting = [p for p in pods if p.phase == "Pending" and not p.begun]
    if waiting:
        first = waiting[0]
        why = first.unscheduled or first.blocked or first.building or "containers are being started"
        return State.DEPLOYING, f"learner {first.learner}: {why}"
    staging = [p for p in pods if not p.runs and p.main.state != "terminated" and not p.ended]
    building = next((p for p in staging if p.building), None)
    if building is not None:
        return State.DOWNLOADING, f"learner {building.learner}: {building.building}"
    if staging:
        return State.DOWNLOADING, f"{len(staging)} of {learners} learners stage code and data"
    failed = next((p for p in pods if p.main.exit_code not in (None, 0)), None)
    if failed is not None:
        said = f"learner {failed.learner} has ended with {failed.main.exit_code}; what it left is being stored"
        return State.PROCESSING, said
    running = [p for p in pods if p.runs]
    if running:
        return State.PROCESSING, f"{len(running)} of {learners} learners run"
    return State.STORING, "learners have ended; their results are being stored"
