"""Read and write what the planner decides on as one JSON document, so that a decision can be checked anywhere.

`updraft queue --state` writes it, `updraft plan` reads it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, field_validator, model_validator

from updraft.allocation.model import (
    AGEING,
    LEAST_GAIN,
    LEAST_RUN,
    LEAST_SIZE,
    MOST_AGEING_HOURS,
    Capacity,
    Elasticity,
    GangRequest,
    Grant,
    Node,
    Plan,
    Policy,
)
from updraft.allocation.placement import Placement
from updraft.allocation.plan import plan_admissions
from updraft.allocation.shares import Past, Shares
from updraft.taints import Taint, Toleration
from updraft.tenants import Priority, Tenant

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Number = Annotated[int, Field(ge=0)]
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)


def _checked_toleration(text: str) -> str:
    Toleration.parse(text)
    return text


class Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class UsedDocument(Document):
    """What pods of other workloads take of a node."""

    cpus: Amount = 0
    memory_mib: Number = 0
    gpus: Number = 0


class NodeDocument(Document):
    """What one node can give to pods."""

    name: str
    cpus: Amount
    memory_mib: Number
    gpus: Number = 0
    gpu_type: str | None = None
    gpus_only: bool = Field(False, description="Whether only jobs with GPUs may lie here")
    ready: bool = True
    disk_mib: Number | None = Field(None, description="None: the node does not report it")
    labels: dict[str, str] = {}
    taints: tuple[Taint, ...] = Field((), description="What alone keeps a working node from being ready")
    grows: bool = Field(False, description="Whether it is not there yet: its pool gets it when pods need it")
    opening: str = Field("", description="When its pool gets it, if not now")
    used: UsedDocument = Field(UsedDocument(), description="What pods of other workloads take")


class SizeDocument(Document):
    """A size that an elastic job may have."""

    learners: int = Field(ge=1)
    batch: int | None = Field(None, ge=1, description="The global batch; none: it is the program's own")
    goodput: float = Field(gt=0, allow_inf_nan=False, description="Samples in a second, or steps; only ratios count")


class ElasticDocument(Document):
    """What makes a gang elastic."""

    sizes: tuple[SizeDocument, ...] = Field(min_length=1, description="The sizes that it may have now, ascending")
    sized_at: AwareDatetime | None = Field(None, description="Since when it has its size; none: it waits")
    pause_seconds: Amount = Field(0, description="How long it stands still in a resize")
    resizes: Number = 0
    resizing: bool = Field(False, description="Whether it is being resized")

    @field_validator("sizes")
    @classmethod
    def _ascend(cls, sizes: tuple[SizeDocument, ...]) -> tuple[SizeDocument, ...]:
        numbers = [each.learners for each in sizes]
        if numbers != sorted(set(numbers)):
            raise ValueError(f"sizes ascend by their learners, each once: {numbers}")
        return sizes


class RequestDocument(Document):
    """A gang in the queue. Amounts are those of one learner."""

    job: str
    learners: int = Field(ge=1)
    cpus: Amount
    memory_mib: Number
    gpus: Number = 0
    gpu_type: str | None = None
    disk_mib: Number = 0
    requested_at: AwareDatetime = Field(ge=EARLIEST)
    priority: Priority = "normal"
    tenant: str = "default"
    elastic: ElasticDocument | None = Field(None, description="Of a job whose size the planner chooses")
    node_selector: dict[str, str] = {}
    tolerations: tuple[Annotated[str, AfterValidator(_checked_toleration)], ...] = ()


class GrantDocument(RequestDocument):
    """A gang that has its room."""

    granted_at: AwareDatetime
    saved_at: AwareDatetime | None = Field(None, description="Time of its newest checkpoint")
    leaving: bool = Field(False, description="Whether it has been asked to give its room back")
    movable: bool = Field(True, description="Whether it may be asked to; not while it stores its result")
    behind: str | None = Field(None, description="The waiting job that it has passed, and that may have its room back")


class PastDocument(Document):
    """Average amounts."""

    cpus: Amount = 0
    memory_mib: Amount = 0
    gpus: Amount = 0


class TenantDocument(Tenant):
    """What a tenant may use, and what it has used."""

    past: PastDocument = Field(PastDocument(), description="What it has used on average; older use counts less")


class StateDocument(Document):
    """The whole input of one decision."""

    nodes: tuple[NodeDocument, ...]
    running: tuple[GrantDocument, ...] = ()
    queue: tuple[RequestDocument, ...] = ()
    ageing_hours: float = Field(
        AGEING / timedelta(hours=1),
        gt=0,
        le=MOST_AGEING_HOURS,
        description="Hours of waiting that count as much as one level of priority",
    )
    tenants: dict[str, TenantDocument] = Field({}, description="Tenants by name; one that is missing has no limits")
    least_run_minutes: float = Field(
        LEAST_RUN / timedelta(minutes=1),
        ge=0,
        le=MOST_AGEING_HOURS,
        description="Minutes that a job keeps its room before a tenant takes it back for its own quota",
    )
    backfill: bool = Field(True, description="Whether jobs may pass the first one that waits for room")
    least_gain: float = Field(LEAST_GAIN, ge=0, le=10, description="The part by which resizes must make jobs faster")
    least_size_minutes: float = Field(
        LEAST_SIZE / timedelta(minutes=1), ge=0, le=MOST_AGEING_HOURS, description="Minutes that a job keeps a size"
    )
    now: AwareDatetime | None = Field(
        None, description="Time of the decision; without it, no job is asked to give its room back"
    )

    @model_validator(mode="after")
    def _once(self) -> Self:
        jobs = Counter(each.job for each in (*self.running, *self.queue))
        if twice := sorted(job for job, times in jobs.items() if times > 1):
            raise ValueError(f"a job is named once, in running or in queue; named again: {', '.join(twice)}")
        nodes = Counter(each.name for each in self.nodes)
        if twice := sorted(node for node, times in nodes.items() if times > 1):
            raise ValueError(f"a node is named once; named again: {', '.join(twice)}")
        return self

    def decide(self) -> Plan:
        """Return the planner's decision."""
        policy = Policy(
            dict(self.tenants),
            timedelta(hours=self.ageing_hours),
            timedelta(minutes=self.least_run_minutes),
            self.backfill,
            self.least_gain,
            timedelta(minutes=self.least_size_minutes),
        )
        capacity = Capacity(tuple(_node(each) for each in self.nodes))
        queue, granted = [_request(each) for each in self.queue], self._granted()
        if self.now is not None and any(each.elastic for each in (*self.queue, *self.running)):
            from updraft.allocation.resizing import plan_sizes

            return plan_sizes(queue, granted, capacity, policy=policy, past=self._past(), now=self.now)
        return plan_admissions(queue, granted, capacity, policy=policy, past=self._past(), now=self.now)

    def shares(self) -> Shares:
        """Return what tenants use before the decision."""
        nodes = [_node(each) for each in self.nodes]
        return Shares(dict(self.tenants), nodes, [grant.request for grant in self._granted()], self._past())

    def _granted(self) -> list[Grant]:
        return [
            Grant(_request(each), each.granted_at, each.saved_at, each.leaving, each.movable, each.behind)
            for each in self.running
        ]

    def _past(self) -> Past:
        return {
            name: (each.past.cpus * 1000, each.past.memory_mib, each.past.gpus) for name, each in self.tenants.items()
        }


def state_document(
    nodes: Iterable[Node],
    running: Iterable[Grant],
    queue: Sequence[GangRequest],
    policy: Policy,
    past: Past,
    now: datetime,
) -> StateDocument:
    """Return the document of a state."""
    tenants = {**dict.fromkeys(past, Tenant()), **policy.tenants}
    return StateDocument(
        nodes=tuple(
            NodeDocument(
                name=node.name,
                cpus=node.cpus,
                memory_mib=node.memory_mib,
                gpus=node.gpus,
                gpu_type=node.gpu_type,
                gpus_only=node.gpus_only,
                ready=node.ready,
                disk_mib=node.disk_mib,
                labels=dict(sorted(node.labels)),
                taints=node.taints,
                grows=node.grows,
                opening=node.opening,
                used=UsedDocument(cpus=node.used[0] / 1000, memory_mib=node.used[1], gpus=node.used[2]),
            )
            for node in nodes
        ),
        running=tuple(
            GrantDocument(
                **_fields(each.request),
                granted_at=each.granted_at,
                saved_at=each.saved_at,
                leaving=each.leaving,
                movable=each.movable,
                behind=each.behind,
            )
            for each in running
        ),
        queue=tuple(RequestDocument(**_fields(each)) for each in queue),
        ageing_hours=policy.ageing / timedelta(hours=1),
        tenants={
            # Who belongs to a tenant decides nothing, and is not for the users of others.
            name: TenantDocument(**each.model_dump(exclude={"people"}), past=_past(past.get(name, (0, 0, 0))))
            for name, each in tenants.items()
        },
        least_run_minutes=policy.least_run / timedelta(minutes=1),
        backfill=policy.backfill,
        least_gain=policy.least_gain,
        least_size_minutes=policy.least_size / timedelta(minutes=1),
        now=now,
    )


def _past(amounts: tuple[float, float, float]) -> PastDocument:
    return PastDocument(cpus=amounts[0] / 1000, memory_mib=amounts[1], gpus=amounts[2])


def _fields(request: GangRequest) -> dict[str, Any]:
    return {
        "job": request.job_id,
        "learners": request.learners,
        "cpus": request.cpus,
        "memory_mib": request.memory_mib,
        "gpus": request.gpus,
        "gpu_type": request.gpu_type,
        "disk_mib": request.disk_mib,
        "requested_at": request.requested_at,
        "priority": request.priority,
        "tenant": request.tenant,
        "elastic": None if request.elastic is None else _elastic_document(request.elastic),
        "node_selector": dict(request.placement.selector),
        "tolerations": tuple(str(each) for each in request.placement.tolerations),
    }


def _request(each: RequestDocument) -> GangRequest:
    return GangRequest(
        job_id=each.job,
        learners=each.learners,
        cpus=each.cpus,
        memory_mib=each.memory_mib,
        gpus=each.gpus,
        gpu_type=each.gpu_type,
        requested_at=each.requested_at,
        disk_mib=each.disk_mib,
        placement=Placement.of(each.node_selector, [Toleration.parse(text) for text in each.tolerations]),
        priority=each.priority,
        tenant=each.tenant,
        elastic=None if each.elastic is None else _elasticity(each.elastic),
    )


def _elastic_document(elastic: Elasticity) -> ElasticDocument:
    points = elastic.curve.points
    return ElasticDocument(
        sizes=tuple(SizeDocument(learners=p.learners, batch=p.batch, goodput=p.goodput) for p in points),
        sized_at=elastic.sized_at,
        pause_seconds=elastic.pause_seconds,
        resizes=elastic.resizes,
        resizing=elastic.resizing,
    )


def _elasticity(each: ElasticDocument) -> Elasticity:
    from updraft.allocation.elastic import Curve
    from updraft.allocation.scalability import Limits, Point

    curve = Curve([Point(size.learners, size.batch, size.goodput) for size in each.sizes])
    limits = Limits(each.sizes[0].learners, each.sizes[-1].learners)
    return Elasticity(limits, curve, each.sized_at, each.pause_seconds, each.resizes, each.resizing)


def _node(each: NodeDocument) -> Node:
    return Node(
        name=each.name,
        cpus=each.cpus,
        memory_mib=each.memory_mib,
        gpus=each.gpus,
        gpu_type=each.gpu_type,
        gpus_only=each.gpus_only,
        ready=each.ready,
        disk_mib=each.disk_mib,
        labels=frozenset(each.labels.items()),
        taints=each.taints,
        grows=each.grows,
        opening=each.opening,
        used=(math.ceil(round(each.used.cpus * 1000, 6)), each.used.memory_mib, each.used.gpus),
    )
