"""Read and write what the planner decides on as one JSON document, so that a decision can be checked anywhere.

`updraft queue --state` writes it, `updraft plan` reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Self

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from updraft.allocation.model import AGEING, MOST_AGEING_HOURS, Capacity, GangRequest, Grant, Node, Plan, Priority
from updraft.allocation.placement import Placement
from updraft.allocation.plan import plan_admissions
from updraft.taints import Taint, Toleration

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Number = Annotated[int, Field(ge=0)]
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)


def _checked_toleration(text: str) -> str:
    Toleration.parse(text)
    return text


class Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


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
    node_selector: dict[str, str] = {}
    tolerations: tuple[Annotated[str, AfterValidator(_checked_toleration)], ...] = ()


class GrantDocument(RequestDocument):
    """A gang that has its room."""

    granted_at: AwareDatetime


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
        granted = [Grant(_request(each), each.granted_at) for each in self.running]
        capacity = Capacity(tuple(_node(each) for each in self.nodes))
        ageing = timedelta(hours=self.ageing_hours)
        return plan_admissions([_request(each) for each in self.queue], granted, capacity, ageing=ageing)


def state_document(
    nodes: Iterable[Node], running: Iterable[Grant], queue: Sequence[GangRequest], ageing_hours: float
) -> StateDocument:
    """Return the document of a state."""
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
            )
            for node in nodes
        ),
        running=tuple(GrantDocument(**_fields(each.request), granted_at=each.granted_at) for each in running),
        queue=tuple(RequestDocument(**_fields(each)) for each in queue),
        ageing_hours=ageing_hours,
    )


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
    )


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
    )
