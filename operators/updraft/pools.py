"""Describe pools of nodes that the cluster's autoscaler grows: what a new node has, and how many there may be. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from updraft.taints import Toleration, is_key, is_label_value
from updraft_learner.quantity import parse_quantity

MOST_NODES = 10_000
NEEDED = ("cpu", "memory")


DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DAY = f"(?:{'|'.join(DAYS)})"
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d|24:00"
_WINDOW = re.compile(rf"(?:(?P<days>{_DAY}(?:,{_DAY})*) )?(?P<start>{_TIME})-(?P<end>{_TIME})")


def _windows(value: tuple[str, ...]) -> tuple[str, ...]:
    for text in value:
        found = _WINDOW.fullmatch(text)
        if found is None or found["start"] == found["end"]:
            raise ValueError(f"{text!r} is no time of the day, such as 20:00-06:00 or Sat,Sun 00:00-24:00")
    return value


def _zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{value!r} is no time zone, such as Europe/Berlin or UTC") from None
    return value


def _labels(value: dict[str, str]) -> dict[str, str]:
    for key, text in value.items():
        if not is_key(key) or not is_label_value(text):
            raise ValueError(f"{key}={text} is no label of Kubernetes, such as pool=a100")
    return value


def _amounts(value: dict[str, str]) -> dict[str, str]:
    if missing := [name for name in NEEDED if name not in value]:
        raise ValueError(f"{', '.join(missing)} is missing; write what a node gives to pods, as `kubectl` shows it")
    if negative := [name for name, text in value.items() if parse_quantity(text) < 0]:
        raise ValueError(f"{', '.join(negative)} is negative; write what a node gives to pods, as `kubectl` shows it")
    return value


def _taints(value: tuple[str, ...]) -> tuple[str, ...]:
    for text in value:
        if Toleration.parse(text).effect is None:
            raise ValueError(f"{text!r} has no effect; write it as KEY=VALUE:NoSchedule")
    return value


class Pool(BaseModel):
    """A pool of nodes that are alike, as Cluster Autoscaler and Karpenter add and remove them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$", description="What messages call it")
    most: int = Field(ge=1, le=MOST_NODES, description="Nodes that it may have")
    labels: Annotated[dict[str, str], AfterValidator(_labels)] = Field(
        min_length=1, description="Labels that all of its nodes have, and no others"
    )
    allocatable: Annotated[dict[str, str], AfterValidator(_amounts)] = Field(
        description="What a node gives to pods, by resource, as `status.allocatable` of a node has it"
    )
    taints: Annotated[tuple[str, ...], AfterValidator(_taints)] = Field(
        (), description="Taints of its nodes: KEY[=VALUE]:EFFECT"
    )

    windows: Annotated[tuple[str, ...], AfterValidator(_windows)] = Field(
        (), description="When it gets new nodes: [DAY,... ]HH:MM-HH:MM; without it, always"
    )
    timezone: Annotated[str, AfterValidator(_zone)] = Field("UTC", description="That of its windows")

    def is_open(self, now: datetime) -> bool:
        """Return whether the pool gets new nodes at this time. A window over midnight is one of the day it begins."""
        local = now.astimezone(ZoneInfo(self.timezone))
        today, yesterday = DAYS[local.weekday()], DAYS[(local - timedelta(days=1)).weekday()]
        time = local.strftime("%H:%M")
        for window in map(_WINDOW.fullmatch, self.windows):
            assert window is not None
            days = window["days"].split(",") if window["days"] else DAYS
            start, end = window["start"], window["end"]
            if start < end and today in days and start <= time < end:
                return True
            if start > end and ((today in days and time >= start) or (yesterday in days and time < end)):
                return True
        return not self.windows

    @property
    def opening(self) -> str:
        """Return when it gets new nodes, in words."""
        return f"pool {self.name} gets new nodes at {' and '.join(self.windows)} ({self.timezone})"

    def missing(self, nodes: Sequence[Mapping[str, Any]]) -> int:
        """Return how many nodes the pool can still get beside these, as the API lists them."""
        labels = ((node.get("metadata") or {}).get("labels") or {} for node in nodes)
        return max(0, self.most - sum(self.labels.items() <= own.items() for own in labels))

    def new_node(self) -> dict[str, Any]:
        """Return a node that the pool gets, as the API would list it."""
        taints = [Toleration.parse(text) for text in self.taints]
        return {
            "metadata": {"name": f"{self.name}-new", "labels": self.labels},
            "spec": {"taints": [{"key": t.key, "value": t.value or "", "effect": t.effect} for t in taints]},
            "status": {"allocatable": self.allocatable, "conditions": [{"type": "Ready", "status": "True"}]},
        }


def check_pools(pools: tuple[Pool, ...]) -> tuple[Pool, ...]:
    """Return the pools. Raises ValueError if two have one name."""
    names = [pool.name for pool in pools]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{', '.join(doubled)}: named twice; each pool needs a name of its own")
    return pools
