"""Make the answer about tenants from the ledger's rows, the file of tenants and the cluster's nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from updraft.allocation import Capacity, Node
from updraft.allocation.shares import Shares, devices_text
from updraft.api.queue import rules
from updraft.api.reading import JobReader
from updraft.controller.queueing import request_held
from updraft.exceptions import UnavailableError
from updraft.kubernetes.capacity import capacity_of
from updraft.ledger import Use
from updraft.schemas import SharePoint, TenantList, TenantUse
from updraft.tenants import CPU, GPU, Tenant

SHOWN, SHORTEST = timedelta(hours=24), timedelta(minutes=5)
POINTS = 48


def listed(reader: JobReader) -> TenantList:
    """Return what the caller's tenants may use, use now and have used."""
    parts = reader.parts
    names = reader.tenants()
    policy, past, now = rules(reader)
    ledger = parts.ledger()
    problem = parts.deadline.call("ledger", parts.tenancy).problem
    rows = parts.deadline.call("ledger", ledger.queue.listing)
    held = parts.deadline.call("ledger", lambda: ledger.queue.used(now - SHOWN))
    capacity = _capacity(reader)
    nodes = capacity.nodes if capacity is not None else ()
    running = [row.request for row in rows if row.granted_at is not None]
    shares, present = Shares(policy.tenants, nodes, running, past), Shares(policy.tenants, nodes, running, {})

    def use(name: str) -> TenantUse:
        tenant = policy.tenants.get(name, Tenant())
        used = present.used(name)
        known = capacity is not None
        return TenantUse(
            name=name,
            weight=tenant.weight,
            quota=tenant.quota,
            borrow=tenant.borrow,
            lend=tenant.lend,
            priorities=tenant.priorities,
            used=used,
            borrowed={kind: used[kind] - most for kind, most in tenant.quota.items() if used.get(kind, 0) > most},
            running=sum(row.tenant == name for row in rows if row.granted_at is not None),
            waiting=sum(row.tenant == name for row in rows if row.granted_at is None),
            share=present.claim(name) * tenant.weight if known else None,
            claim=shares.claim(name) if known else None,
            shares=tuple(_course(name, held, nodes, now)) if known else (),
            notes=tuple(_notes(tenant, capacity)) if capacity is not None else (),
        )

    return TenantList(tenants=tuple(use(name) for name in names), problem=problem)


def _capacity(reader: JobReader) -> Capacity | None:
    """Return what the cluster's nodes can give; None if they are not known now."""
    parts = reader.parts
    try:
        return capacity_of(parts.deadline.call("cluster", parts.cluster.nodes), parts.settings)
    except UnavailableError:
        return None


def _notes(tenant: Tenant, capacity: Capacity) -> Iterator[str]:
    """Yield what an operator may not have meant."""
    there = Counter({GPU: sum(node.gpus for node in capacity.nodes)})
    for node in capacity.nodes:
        if node.gpu_type:
            there[node.gpu_type] += node.gpus
    for kind, number in tenant.quota.items():
        if kind != CPU and number > there[kind]:
            yield f"its quota of {devices_text(kind, number)} is more than the cluster's {there[kind]}"


def _course(name: str, held: Sequence[Use], nodes: Sequence[Node], now: datetime) -> Iterator[SharePoint]:
    """Yield the tenant's share of today's cluster in equal spans up to now, each with its average: of the last day, or
    since the first job if that was later."""
    first = max(now - SHOWN, min((use.granted_at for use in held), default=now - SHOWN))
    span = max(now - first, SHORTEST) / POINTS
    whole = [max(1, sum(node.amounts[i] for node in nodes)) for i in range(3)]
    mine = [(request_held(use), use.granted_at, use.released_at or now) for use in held if use.tenant == name]
    for number in range(POINTS):
        start = now - (POINTS - number) * span
        used = [0.0, 0.0, 0.0]
        for request, granted, released in mine:
            part = max(timedelta(0), min(released, start + span) - max(granted, start)) / span
            for i, amount in enumerate(request.amounts):
                used[i] += part * amount * request.learners
        yield SharePoint(at=start, share=max(each / most for each, most in zip(used, whole, strict=True)))
