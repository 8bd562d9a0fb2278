"""Plan the queue: tenants by quota and fair share, their jobs by priority and time; the whole gang or nothing.

- A job that stays within its tenant's quota goes before one that borrows. Then the tenant with the smallest claim
  (`updraft.allocation.shares`) is next, with its first job by `GangRequest.turn`.
- A job whose tenant may use no more waits, and so do the tenant's later jobs that need the same devices. Others pass
  it.
- A job for which there is no room is passed only by jobs that can lie on none of the nodes that it can use. So waiting
  ends when jobs end.
- If it is within the quota of its tenant, jobs of tenants that have borrowed give their room back for it.

A gang that can never fit is reported as impossible and does not block the queue.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache

from updraft.allocation.model import (
    Amounts,
    Capacity,
    GangRequest,
    Grant,
    Impossible,
    Node,
    Plan,
    Policy,
    Reclaim,
    Rule,
    Waiting,
)
from updraft.allocation.packing import add_to, fits, free_after, holds_one, never_fits, sums_allow
from updraft.allocation.placement import no_such_node
from updraft.allocation.shares import Past, Shares
from updraft.tenants import PRIORITIES

MOST_TRIES = 30  # placements that are computed to find the jobs that give their room back for one other


def plan_admissions(
    queue: Sequence[GangRequest],
    granted: Sequence[Grant],
    capacity: Capacity,
    *,
    policy: Policy | None = None,
    past: Past | None = None,
    now: datetime | None = None,
) -> Plan:
    """Decide which jobs start now, which wait and why, which can never start, and which give their room back.

    Args:
        queue: In any order.
        policy: What an operator has decided; without it, there are no limits.
        past: What tenants have used on average, older use counting less.
        now: The time at which jobs that borrow are asked for their room; None: none is asked.

    Impossible is judged against all nodes, also those that are not ready now: a lost node makes jobs wait, not fail.
    """
    return _Round(queue, granted, capacity, policy or Policy(), past or {}, now).plan(queue)


class _Round:
    """One round of planning."""

    def __init__(
        self,
        queue: Sequence[GangRequest],
        granted: Sequence[Grant],
        capacity: Capacity,
        policy: Policy,
        past: Past,
        now: datetime | None,
    ) -> None:
        self._granted, self._policy, self._now = granted, policy, now
        self._running = [grant.request for grant in granted]
        self._ready = capacity.open_to(request.placement for request in (*self._running, *queue))
        self._shares = Shares(policy.tenants, capacity.nodes, self._running, past)
        self._free = free_after(self._running, self._ready)
        # Most of a thousand queued jobs ask for the same amounts: answer each question once per kind of gang.
        self._never = cache(lambda kind: _why_never(kind, capacity.nodes) or self._shares.never(kind))
        self._short = cache(lambda kind: f"needs {_need(kind)}; {_free(kind, self._running, self._ready)}")
        self._passes = cache(self._may_pass)
        self._heads: dict[GangRequest, GangRequest] = {}  # kinds of jobs that wait for room, each with the first one
        self._stopped: dict[str, dict[str, str]] = defaultdict(dict)  # by tenant: kinds of which it may use no more
        self._tried: set[str] = set()  # tenants for whose first waiting job room was reclaimed, or could not be
        self._promised: list[GangRequest] = []  # jobs that get what others give back
        self._reclaimed: dict[str, Reclaim] = {}
        self._ahead: GangRequest | None = None  # the waiting request directly before

    def plan(self, queue: Sequence[GangRequest]) -> Plan:
        """Decide about each job in its turn."""
        started: list[str] = []
        waiting: list[Waiting] = []
        impossible: list[Impossible] = []
        lines: dict[str, deque[GangRequest]] = defaultdict(deque)
        for request in sorted(queue, key=lambda r: r.turn(self._policy.ageing)):
            if (never := self._never(_kind(request))) is not None:
                impossible.append(Impossible(request.job_id, never))
            else:
                lines[request.tenant].append(request)
        while lines:
            tenant = min(lines, key=lambda each: self._turn(lines[each][0])) if len(lines) > 1 else next(iter(lines))
            request = lines[tenant].popleft()
            if not lines[tenant]:
                del lines[tenant]
            if (hindrance := self._hindrance(request)) is None:
                self._shares.take(request)
                self._running.append(request)
                started.append(request.job_id)
                continue
            place = len(waiting) + 1
            rule, reason = hindrance
            waiting.append(Waiting(request.job_id, place, f"{_ordinal(place)} in the queue; {reason}", rule))
            self._shares.foresee(request)
            self._ahead = request
        return Plan(tuple(started), tuple(waiting), tuple(impossible), tuple(self._reclaimed.values()))

    def _turn(self, request: GangRequest) -> tuple[bool, float, tuple[datetime, str]]:
        claim = self._shares.claim(request.tenant)
        return self._shares.borrows(request), claim, request.turn(self._policy.ageing)

    def _hindrance(self, request: GangRequest) -> tuple[Rule, str] | None:
        """Return the rule and the reason why the job waits; None if it starts, with its room taken from what is
        free."""
        stopped = self._stopped[request.tenant]
        if (kind := next((kind for kind in request.devices if kind in stopped), None)) is not None:
            return "tenant", f"behind {stopped[kind]}, which waits for the quota of tenant {request.tenant}"
        if (lacking := self._shares.lacks(request)) is not None:
            kinds, reason = lacking
            stopped.update(dict.fromkeys(kinds, request.job_id))
            return "quota", f"needs {_need(request)}; {reason}"
        if (left := self._placed(request)) is not None:
            self._free = left
            return None
        behind = "" if self._ahead is None else f"; {_behind(request, self._ahead)}"
        first = request.tenant not in self._tried
        self._tried.add(request.tenant)
        given = self._reclaim(request) if first else ""
        self._heads.setdefault(_kind(request), request)
        return "room", f"{self._short(_kind(request))}{given}{behind}"

    def _placed(self, request: GangRequest) -> dict[str, Amounts] | None:
        """Return what is left free if the job starts now; None if it may not."""
        if not self._heads:
            # Try first beside the others where they are placed, then with everything placed again.
            left = add_to(self._free, request, self._ready) if self._free is not None else None
            return left or free_after([*self._running, request], self._ready)
        if self._free is None or not self._passes(_kind(request), len(self._heads)):
            return None
        return add_to(self._free, request, self._ready)

    def _may_pass(self, kind: GangRequest, heads: int) -> bool:
        """Return whether such a gang can lie on no node that one of the first `heads` waiting kinds can use. The
        cluster's own scheduler chooses among all nodes that a pod may lie on."""
        firsts = list(self._heads)[:heads]
        own = [node for node in self._ready if holds_one(node, kind)]
        return not any(holds_one(node, head) for node in own for head in firsts)

    def _reclaim(self, request: GangRequest) -> str:
        """Choose the jobs that give their room back for a job that is within its tenant's quota; return what its reason
        says of it."""
        if self._now is None or not self._shares.entitled(request):
            return ""
        leaving = [grant for grant in self._granted if grant.leaving or grant.request.job_id in self._reclaimed]
        gone = {grant.request.job_id for grant in leaving}
        staying = [each for each in self._running if each.job_id not in gone] + self._promised
        shares = self._shares.copy()
        for grant in leaving:
            shares.give(grant.request)
        chosen: list[Grant] = []
        room = bool(leaving) and fits([*staying, request], self._ready)
        tries = 0
        for grant in [] if room else self._borrowers(request, gone):
            kinds = grant.request.devices.keys() & request.devices.keys()
            if not shares.borrowed(grant.request.tenant, kinds):
                continue
            shares.give(grant.request)
            chosen.append(grant)
            rest = _without(staying, chosen)
            if not sums_allow([*rest, request], self._ready):
                continue
            tries += 1
            if (room := fits([*rest, request], self._ready)) or tries == MOST_TRIES:
                break
        if not room:
            return ""
        for grant in tuple(chosen):  # a job that was chosen early may not be needed after all
            fewer = [each for each in chosen if each is not grant]
            if fits([*_without(staying, fewer), request], self._ready):
                chosen = fewer
        reason = f"tenant {request.tenant} takes back what is lent from its quota"
        for grant in chosen:
            self._reclaimed[grant.request.job_id] = Reclaim(grant.request.job_id, request.job_id, reason)
        self._promised.append(request)
        count = len(leaving) + len(chosen)
        return f"; {count} job{'s' if count > 1 else ''} of tenants that have borrowed will give room back"

    def _borrowers(self, request: GangRequest, gone: set[str]) -> list[Grant]:
        """Return the jobs that may have to give their room back, those first whose stop costs least."""
        assert self._now is not None
        now = self._now
        found = [
            grant
            for grant in self._granted
            if grant.movable
            and grant.request.job_id not in gone
            and grant.request.tenant != request.tenant
            and grant.granted_at + self._policy.least_run <= now
        ]
        claims = {tenant: self._shares.claim(tenant) for tenant in {grant.request.tenant for grant in found}}
        return sorted(
            found,
            key=lambda grant: (
                PRIORITIES.index(grant.request.priority),
                -claims[grant.request.tenant],
                grant.at_risk_seconds(now),
                grant.request.job_id,
            ),
        )


def _kind(request: GangRequest) -> GangRequest:
    """Return the request without what makes it one job's: equal for all gangs about which the answers are the same."""
    return replace(request, job_id="", requested_at=datetime.min, priority="normal")


def _without(requests: Sequence[GangRequest], gone: Sequence[Grant]) -> list[GangRequest]:
    names = {grant.request.job_id for grant in gone}
    return [request for request in requests if request.job_id not in names]


def _behind(request: GangRequest, ahead: GangRequest) -> str:
    """Return which job is directly before this one, and why if it came later. Of another tenant only the name is
    told."""
    if ahead.tenant != request.tenant:
        return f"behind a job of tenant {ahead.tenant}"
    later = (ahead.requested_at, ahead.job_id) > (request.requested_at, request.job_id)
    return f"behind {ahead.job_id}" + (f", whose priority is {ahead.priority}" if later else "")


def _free(request: GangRequest, running: Sequence[GangRequest], nodes: Sequence[Node]) -> str:
    """Return what is free of the things that are short, or of CPUs when nothing is."""
    kept = [node for node in nodes if node.open_to(request.placement) and node.selected_by(request.placement)]
    places = [node for node in kept if request.gpus or not node.gpus_only]
    if not kept and request.placement.selector:
        return f"no node with {request.placement.text} is ready"
    if not places:
        return "no node is ready" if not kept else "no node is ready but for jobs with GPUs"
    if len(places) < len(nodes) and (placed := free_after(running, nodes)) is not None:
        left = [placed[node.name] for node in places]
        cpus, memory = sum(free[0] for free in left), sum(free[1] for free in left)
    else:
        cpus = _left([(r.amounts[0], r) for r in running], sum(node.amounts[0] for node in places))
        memory = _left([(r.amounts[1], r) for r in running], sum(node.amounts[1] for node in places))
    cpus_all, memory_all = (sum(node.amounts[i] for node in places) for i in (0, 1))
    texts = {
        "cpus": f"{_number(cpus / 1000)} of {_count(cpus_all / 1000, 'CPU')} free",
        "memory": f"{_memory(memory)} of {_memory(memory_all)} memory free",
    }
    short: list[str] = []
    need = request.amounts
    if need[0] * request.learners > cpus:
        short.append(texts["cpus"])
    if need[1] * request.learners > memory:
        short.append(texts["memory"])
    if request.gpus:
        fitting = [node for node in kept if node.takes_kind(request)]
        users = [r for r in running if request.gpu_type is None or r.gpu_type == request.gpu_type]
        gpus_all = sum(node.gpus for node in fitting)
        gpus = _left([(r.gpus, r) for r in users], gpus_all)
        if request.gpus * request.learners > gpus:
            short.append(f"{gpus} of {_count(gpus_all, _gpu(request))} free")
    if short:
        return ", ".join(short)
    return f"{texts['cpus']}, {texts['memory']}"


def _left(used: Sequence[tuple[int, GangRequest]], whole: int) -> int:
    return max(0, whole - sum(amount * request.learners for amount, request in used))


def _why_never(request: GangRequest, nodes: Sequence[Node]) -> str | None:
    """Return why the gang never starts, even when nothing else runs; None if it can. A cluster without nodes may get
    some."""
    disks = [node.disk_mib for node in nodes]
    largest = max((disk for disk in disks if disk is not None), default=0)
    if request.disk_mib > largest and None not in disks and disks:
        return (
            f"resources.disk: a learner asks for {request.disk_mib / 1024:.1f} GiB of its node's disk, and no node has "
            f"more than {largest / 1024:.1f} GiB to give"
        )
    if (lacking := no_such_node(request.placement, nodes)) is not None:
        return lacking
    if not nodes or not never_fits(request, nodes):
        return None
    kinds = sorted({node.gpu_type or "unnamed" for node in nodes if node.gpus})
    if request.gpus and not kinds:
        return f"needs {_need(request)}, but no node has a GPU; ask for 0 GPUs"
    if request.gpus and request.gpu_type and request.gpu_type not in kinds:
        there = ", ".join(kinds)
        return f"needs {_need(request)}, but no node has {request.gpu_type}; there is {there}: ask for one of these"
    have = ", ".join(_node(node) for node in nodes[:5]) + (f" and {len(nodes) - 5} more" if len(nodes) > 5 else "")
    return f"needs {_need(request)}, more than all nodes together can hold ({have}); ask for fewer or smaller learners"


def _node(node: Node) -> str:
    text = f"{node.name}: {_count(node.cpus, 'CPU')}, {_memory(node.memory_mib)}"
    text = f"{text}, {_count(node.gpus, node.gpu_type or 'GPU')}" if node.gpus else text
    return f"{text}, for jobs with GPUs only" if node.gpus_only else text


def learner_text(request: GangRequest) -> str:
    """Return what each learner of the gang needs: `0.5 CPUs + 2 GiB + 1 GPU`."""
    parts = [_count(request.cpus, "CPU"), _memory(request.memory_mib) if request.memory_mib else ""]
    parts.append(_count(request.gpus, _gpu(request)) if request.gpus else "")
    where = f" on {request.placement.text}" if request.placement.selector else ""
    return " + ".join(part for part in parts if part) + where


def _need(request: GangRequest) -> str:
    return f"{request.learners} x {learner_text(request)}"


def _gpu(request: GangRequest) -> str:
    return f"{request.gpu_type} GPU" if request.gpu_type else "GPU"


def _count(number: float, noun: str) -> str:
    return f"{_number(number)} {noun}" + ("" if number == 1 else "s")


def _number(number: float) -> str:
    return f"{number:.3f}".rstrip("0").rstrip(".")


def _memory(mib: int) -> str:
    return f"{_number(round(mib / 1024, 1))} GiB" if mib >= 1024 else f"{mib} MiB"


def _ordinal(number: int) -> str:
    suffix = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"
