"""Make a pod's status from what its worker knows about its containers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from updraft_localnode.errors import Json
from updraft_localnode.processes import ContainerProcess, ProcessExit
from updraft_localnode.resources import is_sidecar

INIT, SIDECAR, MAIN = "init", "sidecar", "main"
COMPLETED = "PodCompleted"
KUBELET_CONDITIONS = ("Initialized", "ContainersReady", "Ready")  # other writers own all other conditions


@dataclass(eq=False)
class ContainerRecord:
    """One container, as its pod's worker sees it. `state` has the API's shape."""

    spec: Json
    role: str
    state: Json
    last_state: Json = field(default_factory=dict)
    restart_count: int = 0
    started: bool = False  # it runs, and its startup probe has passed
    ready: bool = False  # whether its readiness probe, if it has one, has passed
    process: ContainerProcess | None = None

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def exit_code(self) -> int | None:
        """Return the exit code; None unless the container has ended."""
        terminated = self.state.get("terminated")
        return None if terminated is None else int(terminated["exitCode"])

    def waits(self, reason: str, message: str = "") -> None:
        self.state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
        self.started = self.ready = False


def seconds_only(timestamp: str) -> str:
    """Return the timestamp in whole seconds, as objects have it."""
    return f"{timestamp[:19]}Z"


def records_of(pod: Json) -> list[ContainerRecord]:
    """Return the pod's containers in order of their start, with what its status already says of them."""
    spec, status = pod["spec"], pod.get("status") or {}
    first = "PodInitializing" if spec.get("initContainers") else "ContainerCreating"
    known = {s["name"]: s for key in ("initContainerStatuses", "containerStatuses") for s in status.get(key) or []}
    records = []
    for group in ("initContainers", "containers"):
        for container in spec.get(group) or []:
            role = MAIN if group == "containers" else SIDECAR if is_sidecar(container) else INIT
            record = ContainerRecord(container, role, {"waiting": {"reason": first}})
            if old := known.get(container["name"]):
                record.state, record.last_state = old["state"], old.get("lastState") or {}
                record.restart_count, record.started = old["restartCount"], bool(old.get("started"))
                record.ready = bool(old.get("ready"))
            records.append(record)
    return records


def running_state(process: ContainerProcess) -> Json:
    return {"running": {"startedAt": seconds_only(process.started_at)}}


def terminated_state(end: ProcessExit, container_id: str, log_tail: str = "") -> Json:
    message = end.message or log_tail
    return {
        "terminated": {
            "exitCode": end.code,
            "reason": end.reason,
            **({"message": message} if message else {}),
            "startedAt": seconds_only(end.started_at),
            "finishedAt": seconds_only(end.finished_at),
            "containerID": container_id,
        }
    }


def container_id(pod: Json, record: ContainerRecord) -> str:
    return f"process://{pod['metadata']['uid']}/{record.name}/{record.restart_count}"


def _ready(record: ContainerRecord) -> bool:
    if record.role == INIT:
        return record.exit_code == 0
    return "running" in record.state and record.started and (record.ready or "readinessProbe" not in record.spec)


def container_status(pod: Json, record: ContainerRecord) -> Json:
    was_started = "waiting" not in record.state or bool(record.last_state)
    return {
        "name": record.name,
        "image": record.spec["image"],
        "imageID": record.spec["image"] if was_started else "",
        "containerID": container_id(pod, record) if was_started else "",
        "ready": _ready(record),
        "started": record.started and "running" in record.state,
        "restartCount": record.restart_count,
        "state": record.state,
        "lastState": record.last_state,
    }


def _condition(old: Sequence[Json], type_: str, *, holds: bool, why: str, now: str) -> Json:
    condition: Json = {"type": type_, "status": "True" if holds else "False"}
    if why and (not holds or why == COMPLETED):
        condition["reason"] = why
    before = next((c for c in old if c["type"] == type_), None)
    same = before is not None and before["status"] == condition["status"]
    condition["lastTransitionTime"] = before["lastTransitionTime"] if same and before is not None else now
    return condition


def pod_status(pod: Json, records: Sequence[ContainerRecord], phase: str, why: tuple[str, str], now: str) -> Json:
    """Return the pod's status. `why` is reason and message of a pod that was stopped, both empty otherwise."""
    old = pod.get("status") or {}
    conditions: list[Json] = old.get("conditions") or []
    init = [r for r in records if r.role != MAIN]
    main = [r for r in records if r.role == MAIN]
    initialized = all(
        r.exit_code == 0 if r.role == INIT else r.started or phase in ("Running", "Succeeded") for r in init
    )
    ready = all(_ready(r) for r in records if r.role != INIT) and initialized
    unready = COMPLETED if phase == "Succeeded" else "PodFailed" if phase == "Failed" else "ContainersNotReady"
    uninitialized = COMPLETED if phase == "Succeeded" else "ContainersNotInitialized"
    status: Json = {
        "phase": phase,
        "conditions": [
            *(c for c in conditions if c["type"] not in KUBELET_CONDITIONS),
            _condition(conditions, "Initialized", holds=initialized, why=uninitialized, now=now),
            _condition(conditions, "ContainersReady", holds=ready, why=unready, now=now),
            _condition(conditions, "Ready", holds=ready, why=unready, now=now),
        ],
        "hostIP": "127.0.0.1",
        "podIP": "127.0.0.1",
        "podIPs": [{"ip": "127.0.0.1"}],
        "startTime": old.get("startTime") or now,
        "qosClass": old.get("qosClass", "Burstable"),
        "containerStatuses": [container_status(pod, r) for r in main],
    }
    if init:
        status["initContainerStatuses"] = [container_status(pod, r) for r in init]
    for name, text in zip(("reason", "message"), why, strict=True):
        if text or old.get(name):
            status[name] = text or old[name]
    return status


def final_phase(records: Sequence[ContainerRecord]) -> str:
    """Return Succeeded if every main container ended with 0, else Failed. A sidecar's end never counts."""
    return "Succeeded" if all(r.exit_code == 0 for r in records if r.role == MAIN) else "Failed"
