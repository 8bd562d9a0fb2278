"""Hold and publish what a pod's worker knows: its containers, its phase, the order to stop. For `worker` and
`containers`.

While the pod's node is lost, its status goes to `away` instead of the API, and no event is recorded.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from updraft_localnode.errors import Json
from updraft_localnode.kubelet import Kubelet
from updraft_localnode.podstatus import MAIN, ContainerRecord, pod_status, records_of
from updraft_localnode.processes import ProcessExit
from updraft_localnode.store import now_text


@dataclass(frozen=True)
class StopCommand:
    """An order to end the pod. `reason` is set if the pod becomes Failed because of it."""

    deadline: float  # monotonic seconds at which SIGKILL follows
    at_once: bool = False  # without any grace period, also for a sidecar
    reason: str = ""
    message: str = ""


class StopOrder:
    """The current order to stop, None at first. A later order can only shorten the remaining time."""

    def __init__(self) -> None:
        self.given: StopCommand | None = None
        self.changed = asyncio.Event()

    def give(self, grace_seconds: float, reason: str = "", message: str = "") -> None:
        deadline = time.monotonic() + grace_seconds
        if self.given is None or deadline < self.given.deadline:
            old = self.given or StopCommand(deadline)
            self.given = StopCommand(deadline, grace_seconds <= 0, old.reason or reason, old.message or message)
            self.changed.set()

    def kill_at(self, least: float) -> float:
        """Return when SIGKILL is due, but not before `least` unless there is no grace at all. Monotonic seconds."""
        if self.given is None or self.given.at_once:
            return 0.0
        return max(self.given.deadline, least)


class PodReport:
    def __init__(self, kubelet: Kubelet, pod: Json) -> None:
        self.kubelet = kubelet
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self.name: str = pod["metadata"]["name"]
        self.namespace: str = pod["metadata"]["namespace"]
        self.restart_policy: str = pod["spec"]["restartPolicy"]
        self.grace_seconds = float(pod["spec"]["terminationGracePeriodSeconds"])
        self.records = records_of(pod)
        self.phase: str = pod["status"].get("phase", "Pending")
        self.stop = StopOrder()

    def folder(self, record: ContainerRecord) -> Path:
        return self.kubelet.container_folder(self.uid, record.name, record.restart_count)

    def event(self, record: ContainerRecord | None, type_: str, reason: str, message: str) -> None:
        if self.uid in self.kubelet.away.pods:
            return
        path = None
        if record is not None:
            group = "containers" if record.role == MAIN else "initContainers"
            path = f"spec.{group}{{{record.name}}}"
        self.kubelet.events.record(self.pod, type_, reason, message, field_path=path)

    def publish(self, why: tuple[str, str] = ("", "")) -> None:
        """Write the status, if the pod still exists. `why` is the reason and message of a pod that was stopped."""
        if self.phase == "Pending" and any(r.role == MAIN and "waiting" not in r.state for r in self.records):
            self.phase = "Running"
        if (unseen := self.kubelet.away.pods.get(self.uid)) is not None:
            status = pod_status(unseen, self.records, self.phase, why, now_text())
            self.pod = self.kubelet.away.report(self.uid, status)
            return
        current = self.kubelet.store.find("pods", self.namespace, self.name)
        if current is None or current["metadata"]["uid"] != self.uid:
            return
        status = pod_status(current, self.records, self.phase, why, now_text())
        self.pod = self.kubelet.store.update("pods", self.namespace, self.name, lambda new: new.update(status=status))


def never_started() -> ProcessExit:
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}Z"
    return ProcessExit(137, "ContainerStatusUnknown", now, now, "The pod was stopped before the container was started")
