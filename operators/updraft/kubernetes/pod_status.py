"""Convert a pod of the API to `PodFacts`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from updraft.recovery.facts import ContainerFacts, PodFacts
from updraft_learner import contract


def pod_facts(pod: Mapping[str, Any]) -> PodFacts:
    """Read the facts from a pod in API form (camel case)."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    spec = pod.get("spec") or {}
    scheduled = _condition(status, "PodScheduled")
    disruption = _condition(status, "DisruptionTarget")
    disrupted = disruption.get("status") == "True"
    unscheduled = (scheduled.get("message") or scheduled.get("reason")) if scheduled.get("status") == "False" else None
    return PodFacts(
        name=metadata["name"],
        uid=metadata.get("uid") or "",
        learner=int((metadata.get("labels") or {}).get(contract.LABEL_LEARNER, "1")),
        phase=status.get("phase") or "Unknown",
        reason=status.get("reason") or "",
        message=(status.get("message") or "")[:500],
        deleting=bool(metadata.get("deletionTimestamp")),
        unscheduled=unscheduled,
        sidecar=container_facts(status.get("initContainerStatuses"), contract.SIDECAR_CONTAINER),
        main=container_facts(status.get("containerStatuses"), contract.MAIN_CONTAINER),
        node=spec.get("nodeName") or "",
        gpus=_gpus(spec),
        disruption=(disruption.get("reason") or "Unknown") if disrupted else "",
        disruption_message=(disruption.get("message") or "")[:500] if disrupted else "",
        asked_to_leave=bool(metadata.get("deletionTimestamp")) or disrupted,
    )


def container_facts(statuses: Sequence[Mapping[str, Any]] | None, name: str) -> ContainerFacts:
    status = next((s for s in statuses or () if s.get("name") == name), None)
    if status is None:
        return ContainerFacts("absent")
    state = status.get("state") or {}
    if (ended := state.get("terminated")) is not None:
        return ContainerFacts(
            "terminated",
            reason=ended.get("reason") or "",
            message=(ended.get("message") or "")[:500],
            exit_code=ended.get("exitCode"),
            started_at=_text(ended.get("startedAt")),
            finished_at=_text(ended.get("finishedAt")),
        )
    if (running := state.get("running")) is not None:
        return ContainerFacts(
            "running", started_at=_text(running.get("startedAt")), started=status.get("started") is not False
        )
    waiting = state.get("waiting") or {}
    return ContainerFacts("waiting", waiting.get("reason") or "", (waiting.get("message") or "")[:500])


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _condition(status: Mapping[str, Any], type_: str) -> Mapping[str, Any]:
    return next((c for c in status.get("conditions") or () if c.get("type") == type_), {})


def _gpus(spec: Mapping[str, Any]) -> int:
    main: Mapping[str, Any] = next(
        (c for c in spec.get("containers") or () if c.get("name") == contract.MAIN_CONTAINER), {}
    )
    limits = (main.get("resources") or {}).get("limits") or {}
    devices = [amount for name, amount in limits.items() if name.endswith("/gpu") or "/mig-" in name]
    return sum(int(str(amount)) for amount in devices if str(amount).isdigit())
