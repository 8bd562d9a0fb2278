"""Compute the requests of pods and containers in whole units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Any

from updraft_learner.quantity import parse_quantity

GPU = "nvidia.com/gpu"


def _ceil(value: Decimal) -> int:
    return int(value.to_integral_value(rounding=ROUND_CEILING))


@dataclass(frozen=True)
class Amounts:
    """Amounts of everything that the scheduler counts."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpus: int = 0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(self.cpu_milli + other.cpu_milli, self.memory_bytes + other.memory_bytes, self.gpus + other.gpus)

    def __sub__(self, other: Amounts) -> Amounts:
        return Amounts(self.cpu_milli - other.cpu_milli, self.memory_bytes - other.memory_bytes, self.gpus - other.gpus)

    def maximum(self, other: Amounts) -> Amounts:
        return Amounts(
            max(self.cpu_milli, other.cpu_milli),
            max(self.memory_bytes, other.memory_bytes),
            max(self.gpus, other.gpus),
        )

    @classmethod
    def total(cls, parts: Iterable[Amounts]) -> Amounts:
        result = cls()
        for part in parts:
            result = result + part
        return result


def container_requests(container: Mapping[str, Any]) -> Amounts:
    """Return the requests of one container; a limit without a request counts as the request."""
    resources = container.get("resources") or {}
    wanted = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return Amounts(
        cpu_milli=_ceil(parse_quantity(str(wanted.get("cpu", 0))) * 1000),
        memory_bytes=_ceil(parse_quantity(str(wanted.get("memory", 0)))),
        gpus=_ceil(parse_quantity(str(wanted.get(GPU, 0)))),
    )


def memory_limit_bytes(container: Mapping[str, Any]) -> int | None:
    limits = (container.get("resources") or {}).get("limits") or {}
    return _ceil(parse_quantity(str(limits["memory"]))) if "memory" in limits else None


def is_sidecar(container: Mapping[str, Any]) -> bool:
    """Return whether a member of `initContainers` is a native sidecar."""
    return container.get("restartPolicy") == "Always"


def pod_requests(spec: Mapping[str, Any]) -> Amounts:
    """Return what the pod needs at its hungriest moment: max over its init phase and its running phase.

    An init container runs beside the sidecars that were started before it.
    """
    sidecars = Amounts()
    hungriest = Amounts()
    for container in spec.get("initContainers") or []:
        wanted = container_requests(container)
        if is_sidecar(container):
            sidecars = sidecars + wanted
        hungriest = hungriest.maximum(sidecars if is_sidecar(container) else sidecars + wanted)
    running = sidecars + Amounts.total(container_requests(c) for c in spec.get("containers") or [])
    return hungriest.maximum(running)
