"""How long the planner takes for one round of the queue: the pure function, without ledger and cluster."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from benchmarks.options import Options
from benchmarks.results import Budget, Measured, Value
from updraft.allocation import PRIORITIES, Capacity, GangRequest, Grant, Node, Policy, plan_admissions
from updraft.tenants import Tenant

NAME, TITLE = "planning", "One round of the planner"
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TYPES = ("A100", "H100", None)
TENANTS = 20
LEARNERS, GPUS = (1, 1, 1, 2, 4, 8), (0, 1, 1, 2, 4, 8)

NOTES = (
    "One call of `updraft.allocation.plan_admissions` for a state that is made up: nodes with 64 CPUs, and with 8 GPUs "
    "of two types or with none; gangs of 1 to 8 learners with 0 to 8 GPUs each, of 20 tenants with quotas, weights and "
    "all priorities. The cluster is as full as the running jobs make it.",
    "*Nothing can start*: the running jobs hold all GPUs and CPUs, as at nearly every round of a full cluster. *Room "
    "for some*: half of the cluster is free, and jobs start until one has to wait.",
)


@dataclass(frozen=True)
class Size:
    name: str
    waiting: int
    running: int
    nodes: int
    budget_seconds: float


SIZES = (
    Size("10,000 waiting, 1,000 running, 1,000 nodes", 10_000, 1_000, 1_000, 1.0),
    Size("1,000 waiting, 64 nodes", 1_000, 64, 64, 0.02),
)


def measure(options: Options) -> Measured:
    rounds = options.pairs(10, 2)
    values = []
    for size in SIZES:
        for kind, state in (("nothing can start", full), ("room for some", half)):
            samples = tuple(_timed(*state(size, random.Random(size.waiting))) for _ in range(rounds))
            values.append(
                Value(
                    name=f"{size.name}: {kind}",
                    unit="s",
                    samples=samples,
                    budget=Budget(at="most", value=size.budget_seconds),
                )
            )
    return Measured(settings={"rounds": rounds, "tenants": TENANTS}, values=tuple(values), notes=NOTES)


State = tuple[list[GangRequest], list[Grant], Capacity, Policy]


def full(size: Size, chance: random.Random) -> State:
    """Return a state in which each running job holds a whole node."""
    nodes = _nodes(size.nodes)
    running = [
        Grant(GangRequest(f"runs-{n}", 1, 64, 512 * 1024, node.gpus, None, NOON, tenant=_tenant(chance)), NOON)
        for n, node in enumerate(nodes[: size.running])
    ]
    return _queue(size.waiting, chance), running, Capacity(nodes), _policy(size)


def half(size: Size, chance: random.Random) -> State:
    """Return a state in which running jobs hold half of each node."""
    nodes = _nodes(size.nodes)
    running = [
        Grant(GangRequest(f"runs-{n}", 1, 32, 256 * 1024, node.gpus // 2, None, NOON, tenant=_tenant(chance)), NOON)
        for n, node in enumerate(nodes[: size.running])
    ]
    return _queue(size.waiting, chance), running, Capacity(nodes), _policy(size)


def _nodes(number: int) -> tuple[Node, ...]:
    made = []
    for n in range(number):
        kind = TYPES[n % 3]
        labels = frozenset({("kubernetes.io/hostname", f"node-{n}"), ("kubernetes.io/arch", "amd64")})
        made.append(Node(f"node-{n}", 64, 512 * 1024, 8 if kind else 0, kind, gpus_only=bool(kind), labels=labels))
    return tuple(made)


def _queue(number: int, chance: random.Random) -> list[GangRequest]:
    made = []
    for n in range(number):
        gpus = chance.choice(GPUS)
        made.append(
            GangRequest(
                f"job-{n}",
                chance.choice(LEARNERS),
                chance.choice((1, 2, 4, 8)),
                chance.choice((4, 16, 64)) * 1024,
                gpus,
                chance.choice(TYPES) if gpus else None,
                NOON + timedelta(seconds=chance.randrange(86_400)),
                priority=chance.choice(PRIORITIES),
                tenant=_tenant(chance),
            )
        )
    return made


def _tenant(chance: random.Random) -> str:
    return f"tenant-{chance.randrange(TENANTS)}"


def _policy(size: Size) -> Policy:
    quota = {"gpu": 8 * size.nodes // TENANTS, "cpu": 2 * size.nodes // TENANTS + 1}
    return Policy({f"tenant-{n}": Tenant(weight=1 + n % 3, quota=quota) for n in range(TENANTS)})


def _timed(queue: list[GangRequest], running: list[Grant], capacity: Capacity, policy: Policy) -> float:
    start = time.perf_counter()
    plan_admissions(queue, running, capacity, policy=policy, now=NOON + timedelta(days=2))
    return time.perf_counter() - start
