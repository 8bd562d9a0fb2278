"""Define the planner's input and output. Frozen values; the ledger stores requests and grants as rows.

Requests may ask for fractions of CPUs; CPUs are counted in thousandths, so that sums are exact.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from updraft.allocation.placement import ANYWHERE, Placement
from updraft.taints import Taint
from updraft.tenants import CPU, GPU, PRIORITIES, Priority, Tenant

if TYPE_CHECKING:  # they need NumPy, which a command line alone does not have
    from updraft.allocation.elastic import Curve
    from updraft.allocation.scalability import Limits

Amounts = tuple[int, int, int]  # CPUs in thousandths, memory in MiB, GPUs
AGEING = timedelta(hours=12)
MOST_AGEING_HOURS = 87_600  # ten years: more is priority without ageing
Rule = Literal["room", "quota", "tenant"]
LEAST_RUN = timedelta(minutes=10)
LEAST_GAIN = 0.05
LEAST_SIZE = timedelta(minutes=5)


@dataclass(frozen=True)
class Elasticity:
    """How an elastic gang may be resized.

    Args:
        limits: What the job allows.
        curve: The sizes that it may have now, with their goodput.
        sized_at: Since when it has its present size; None: it waits.
        pause_seconds: How long it stands still in a resize.
        resizes: How often it was resized.
        resizing: Whether it is being resized.
        asked: Who has asked for the only size that it may have; empty: nobody.
    """

    limits: Limits
    curve: Curve
    sized_at: datetime | None = None
    pause_seconds: float = 0.0
    resizes: int = 0
    resizing: bool = False
    asked: str = ""


@dataclass(frozen=True)
class GangRequest:
    """A gang that wants to start: the number of learners, and what each of them needs.

    `amounts` is what one learner needs. `devices` is what the whole gang takes of its quota, by kind of device:
    its GPUs, or its learners if they have none; a GPU counts as `gpu`, and as its type if the gang names one. Gangs of
    the same `kind` are equal for the question whether there is room for them. The planner reads these three more often
    than all else. `elastic` says how a gang may be resized; while it waits, `learners` are the fewest.
    """

    job_id: str
    learners: int
    cpus: float  # per learner
    memory_mib: int  # per learner
    gpus: int  # per learner
    gpu_type: str | None
    requested_at: datetime
    disk_mib: int = 0  # per learner; 0: the platform's default limit, which every node has
    placement: Placement = ANYWHERE
    priority: Priority = "normal"
    tenant: str = "default"
    elastic: Elasticity | None = field(default=None, compare=False)

    kind: Hashable = field(init=False, repr=False, compare=False)
    amounts: Amounts = field(init=False, repr=False, compare=False)
    devices: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.learners < 1:
            raise ValueError(f"learners of {self.job_id} is {self.learners}; at least 1 is needed")
        if not math.isfinite(self.cpus) or min(self.cpus, self.memory_mib, self.gpus, self.disk_mib) < 0:
            raise ValueError(f"resources of {self.job_id} must be finite and not negative")
        amounts = (math.ceil(round(self.cpus * 1000, 6)), self.memory_mib, self.gpus)
        where = self.placement
        kind = (self.learners, amounts, self.gpu_type, self.disk_mib, where.selector, where.tolerations)
        if not self.gpus:
            devices = {CPU: self.learners}
        else:
            devices = {GPU: (gpus := self.learners * self.gpus)}
            if self.gpu_type is not None:
                devices[self.gpu_type] = gpus
        for name, value in (("amounts", amounts), ("kind", kind), ("devices", devices)):
            object.__setattr__(self, name, value)  # the class is frozen

    def resized(self, learners: int) -> GangRequest:
        """Return the same with another number of learners."""
        return self if learners == self.learners else replace(self, learners=learners)

    def turn(self, ageing: timedelta) -> tuple[datetime, str]:
        """Return the sort key of the queue: the time of the request, which a level of priority moves by `ageing`.

        So a waiting gang rises by one level in that time, and none is overtaken for ever.
        """
        return (self.requested_at - PRIORITIES.index(self.priority) * ageing, self.job_id)


@dataclass(frozen=True)
class Grant:
    """A granted request that has not been released.

    Args:
        saved_at: The time of the newest checkpoint; None: there is none.
        leaving: Whether the job has been asked to give its room back.
        movable: Whether the job may be asked to. A job that only has to store its result is not.
        behind: The job that waited for room when this one was let pass, and that may have its room back; None: it
            passed none.
    """

    request: GangRequest
    granted_at: datetime
    saved_at: datetime | None = None
    leaving: bool = False
    movable: bool = True
    behind: str | None = None

    def at_risk_seconds(self, now: datetime) -> float:
        """Return the time of work that is lost if the job cannot save before it leaves: that of all learners, in
        seconds."""
        since = max(self.granted_at, self.saved_at) if self.saved_at else self.granted_at
        return max(0.0, (now - since).total_seconds()) * self.request.learners


@dataclass(frozen=True)
class Policy:
    """What an operator has decided about the queue.

    Args:
        tenants: What each tenant may use. A tenant that is missing has no limits, and the weight 1.
        ageing: The waiting time that counts as much as one level of priority.
        least_run: How long a job keeps its room before a tenant can have it back for its own quota.
        backfill: Whether jobs may pass the first one that waits for room, and give theirs back when it can start.
        least_gain: The part by which the speed of a tenant's elastic jobs must rise for their sizes to change.
        least_size: How long an elastic job keeps a size.
    """

    tenants: Mapping[str, Tenant] = field(default_factory=dict)
    ageing: timedelta = AGEING
    least_run: timedelta = LEAST_RUN
    backfill: bool = True
    least_gain: float = LEAST_GAIN
    least_size: timedelta = LEAST_SIZE


@dataclass(frozen=True)
class Node:
    """The amounts that one node can give to pods. A node that is not ready exists, but has nothing free, except for
    gangs that tolerate all of `taints`."""

    name: str
    cpus: float
    memory_mib: int
    gpus: int = 0
    gpu_type: str | None = None
    gpus_only: bool = False  # reserved for gangs that ask for GPUs
    ready: bool = True
    disk_mib: int | None = None  # None: the node does not report it
    labels: frozenset[tuple[str, str]] = frozenset()
    taints: tuple[Taint, ...] = ()  # what alone keeps a working node from being ready
    grows: bool = False  # not there yet: its pool gets it when pods need it
    opening: str = ""  # when its pool gets it, if not now
    used: Amounts = (0, 0, 0)  # what pods of other workloads take

    @cached_property
    def kind(self) -> Node:
        """Return what makes nodes alike."""
        return replace(self, name="", used=(0, 0, 0))

    @cached_property
    def amounts(self) -> Amounts:
        """Return what the node gives to pods in all."""
        return (math.floor(round(self.cpus * 1000, 6)), self.memory_mib, self.gpus)

    @cached_property
    def left(self) -> Amounts:
        """Return what other workloads leave."""
        whole, used = self.amounts, self.used
        return max(0, whole[0] - used[0]), max(0, whole[1] - used[1]), max(0, whole[2] - used[2])

    def selected_by(self, placement: Placement) -> bool:
        """Return whether the node has every label that the gang asks for."""
        return self.labels.issuperset(placement.selector)

    def open_to(self, placement: Placement) -> bool:
        """Return whether the node takes pods of such a gang now, whatever their amounts and labels."""
        return self.ready or (bool(self.taints) and placement.tolerates(self.taints))

    def takes_kind(self, request: GangRequest) -> bool:
        """Return whether such learners may lie here, and accept this node's kind of accelerator."""
        if not self.selected_by(request.placement):
            return False
        if request.gpus == 0:
            return not self.gpus_only
        return request.gpu_type in (None, self.gpu_type)


@dataclass(frozen=True)
class Capacity:
    """The cluster's nodes."""

    nodes: tuple[Node, ...]

    @property
    def ready(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.ready)

    def open_to(self, placements: Iterable[Placement]) -> tuple[Node, ...]:
        """Return the ready nodes, and those that are open to one of these gangs."""
        if not any(node.taints and not node.ready for node in self.nodes):
            return self.ready
        kinds = set(placements)
        return tuple(node for node in self.nodes if node.ready or any(node.open_to(kind) for kind in kinds))


@dataclass(frozen=True)
class Waiting:
    """A gang that must wait, with its place in the queue (from 1), the reason, and the rule that decided.

    Args:
        rule: `room`: there is none, or a job for which there is none is before it. `quota`: its tenant may use no more.
            `tenant`: an earlier job of its tenant waits for the quota.
    """

    job_id: str
    place: int
    reason: str
    rule: Rule = "room"


@dataclass(frozen=True)
class Impossible:
    """A gang that does not fit even if nothing else runs, with the reason."""

    job_id: str
    reason: str


@dataclass(frozen=True)
class Reclaim:
    """A running gang that has to give its room back, with the job that gets it and the reason."""

    job_id: str
    for_job: str
    reason: str


@dataclass(frozen=True)
class Resized:
    """An elastic gang that gets another number of learners, with the batch and the reason.

    Args:
        batch: The global batch; None: the job does not let the platform choose it.
        expected: How many times as fast as before the job is expected to be; None: it did not run before.
    """

    job_id: str
    learners: int
    batch: int | None
    expected: float | None
    reason: str


@dataclass(frozen=True)
class Plan:
    """The decision about the queue. Every queued job is in exactly one of `granted`, `waiting` and `impossible`;
    `reclaimed` are running jobs. `passing` names, for granted jobs that pass the first one that waits for room, that
    job. `resized` are running jobs, and granted ones that start with more than their fewest learners."""

    granted: tuple[str, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    impossible: tuple[Impossible, ...] = ()
    reclaimed: tuple[Reclaim, ...] = ()
    passing: Mapping[str, str] = field(default_factory=dict)
    resized: tuple[Resized, ...] = ()
