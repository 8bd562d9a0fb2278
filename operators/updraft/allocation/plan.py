"""Plan the queue: tenants by quota and fair share, their jobs by priority and time; the whole gang or nothing.

- A job that stays within its tenant's quota goes before one that borrows. Then the tenant with the smallest claim
  (`updraft.allocation.shares`) is next, with its first job by `GangRequest.turn`.
- A job whose tenant may use no more waits, and so do the tenant's later jobs that need the same devices. Others pass
  it.
- The first job for which there is no room is passed by jobs that fit into what is free. They are asked for their room
  as soon as it can start with it. Without backfill, only jobs that can lie on none of its nodes pass it.
- If it is within the quota of its tenant, jobs of tenants that have borrowed give their room back for it.

A gang that can never fit is reported as impossible and does not block the queue.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from heapq import heapify, heappop, heapreplace
from operator import itemgetter

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
from updraft.allocation.packing import (
    Room,
    add_to,
    exceeds,
    free_after,
    holds_one,
    kinds_of,
    most_learners,
    never_fits,
    sums_allow,
)
from updraft.allocation.placement import no_such_node
from updraft.allocation.shares import Past, Shares
from updraft.tenants import PRIORITIES

Turn = tuple[datetime, str]
MOST_REPLACED = 3  # times in a round that everything is placed again, to find room for one more gang
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
        capacity = _with_labels_of(capacity, [*self._running, *queue])
        self._ready = capacity.open_to(request.placement for request in (*self._running, *queue))
        self._shares = Shares(policy.tenants, capacity.nodes, self._running, past)
        self._nodes, self._everything = capacity.nodes, kinds_of(capacity.nodes)
        self._smallest_disk = min((node.disk_mib or 0 for node in capacity.nodes), default=0)
        # Most of a thousand queued jobs ask for the same amounts: answer each question once per kind of gang.
        self._answers: dict[Hashable, _Answers] = {}
        self._of: dict[str, _Answers] = {}  # the same by job
        self._waits = False  # whether a job waits for room
        self._whole = Room.of(self._ready)
        self._free = free_after(self._running, self._whole, self._ready)
        self._kinds = self._whole.kinds
        self._counts = self._whole.counts()
        self._replaced = 0
        self._groups: dict[Hashable, _Free] = {}
        self._wanted: set[int] = set()  # the kinds of nodes that jobs which wait for room can use
        self._stopped: dict[str, dict[str, str]] = defaultdict(dict)  # by tenant: kinds of which it may use no more
        self._tried: set[str] = set()  # tenants for whose first waiting job room was reclaimed, or could not be
        self._promised: list[GangRequest] = []  # jobs that get what others give back
        self._reclaimed: dict[str, Reclaim] = {}
        self._ahead: GangRequest | None = None  # the waiting request directly before
        self._head: GangRequest | None = None  # the first one that waits for room
        self._passing: dict[str, str] = {}
        self._leaving = [grant for grant in granted if grant.leaving]
        self._known_costs: dict[str, tuple[int, float]] | None = None

    def plan(self, queue: Sequence[GangRequest]) -> Plan:
        """Decide about each job in its turn."""
        started: list[str] = []
        waiting: list[Waiting] = []
        impossible: list[Impossible] = []
        lines: dict[str, deque[tuple[Turn, GangRequest]]] = defaultdict(deque)
        ageing = self._policy.ageing
        for turn, request in sorted(((each.turn(ageing), each) for each in queue), key=itemgetter(0)):
            if (never := self._never(request)) is not None:
                impossible.append(Impossible(request.job_id, never))
            else:
                lines[request.tenant].append((turn, request))
        # A step changes the turn of one tenant alone, whose next job is pushed after it.
        turns = [self._next(*line[0]) for line in lines.values()]
        heapify(turns)
        while turns:
            _, request = lines[turns[0][-1]].popleft()
            decided = self._decide(request, len(waiting) + 1)
            if isinstance(decided, Waiting):
                waiting.append(decided)
            else:
                started.append(request.job_id)
            if line := lines[request.tenant]:
                heapreplace(turns, self._next(*line[0]))
            else:
                heappop(turns)
        reclaimed = tuple(self._reclaimed.values())
        return Plan(tuple(started), tuple(waiting), tuple(impossible), reclaimed, self._passing)

    def _decide(self, request: GangRequest, place: int) -> Waiting | None:
        """Decide about one job; return that it waits, with its place, or None if it starts."""
        if (hindrance := self._hindrance(request)) is None:
            self._shares.take(request)
            self._running.append(request)
            return None
        rule, reason = hindrance
        self._shares.foresee(request)
        self._ahead = request
        return Waiting(request.job_id, place, f"{_ordinal(place)} in the queue; {reason}", rule)

    def _never(self, request: GangRequest) -> str | None:
        known = self._answers.get(request.kind)
        if known is None:
            usable = frozenset(number for number, node in enumerate(self._kinds) if holds_one(node, request))
            usual = self._nodes and request.disk_mib <= self._smallest_disk
            enough = sum(self._counts[number] for number in usable) >= request.learners  # nodes that are ready
            known_to_fit = usual and (enough or not exceeds(request, self._everything))
            never = None if known_to_fit else _why_never(request, self._nodes)
            known = self._answers[request.kind] = _Answers(never, usable)
        self._of[request.job_id] = known
        return known.never or self._shares.never(request)

    def _next(self, turn: Turn, request: GangRequest) -> tuple[bool, float, Turn, str]:
        """Return the sort key of the tenant whose next job this is."""
        return self._shares.borrows(request), self._shares.claim(request.tenant), turn, request.tenant

    def _hindrance(self, request: GangRequest) -> tuple[Rule, str] | None:
        """Return the rule and the reason why the job waits; None if it starts, with its room taken from what is
        free."""
        stopped = self._stopped[request.tenant]
        for kind in request.devices if stopped else ():
            if kind in stopped:
                return "tenant", f"behind {stopped[kind]}, which waits for the quota of tenant {request.tenant}"
        if (lacking := self._shares.lacks(request)) is not None:
            kinds, reason = lacking
            stopped.update(dict.fromkeys(kinds, request.job_id))
            return "quota", f"needs {_need(request)}; {reason}"
        if (left := self._placed(request)) is not None:
            self._free = left
            return None
        if self._head is not None and (left := self._passes(request)) is not None:
            self._free = left
            self._passing[request.job_id] = self._head.job_id
            return None
        behind = "" if self._ahead is None else f"; {_behind(request, self._ahead)}"
        first = request.tenant not in self._tried
        self._tried.add(request.tenant)
        given = ""
        if self._head is None:
            self._head = request
            given = self._take_back(request)
        if first and not given:
            given = self._reclaim(request)
        answers = self._of[request.job_id]
        self._waits = True
        self._wanted |= answers.usable
        if answers.short is None:
            free = _free_text(request, self._left_for(request))
            answers.short = f"needs {_need(request)}; {free}{self._openings(request)}"
        return "room", f"{answers.short}{given}{behind}"

    def _placed(self, request: GangRequest) -> Room | None:
        """Return what is left free if the job starts now; None if it may not."""
        if not self._waits:
            # Try first beside the others where they are placed, then with everything placed again.
            left = add_to(self._free, request) if self._free is not None else None
            if left is None and self._replaced < MOST_REPLACED:
                self._replaced += 1
                left = free_after([*self._running, request], self._whole, self._ready)
            return left
        # It passes jobs that wait for room if it can lie on no node that one of them can use: the cluster's own
        # scheduler chooses among all nodes that a pod may lie on.
        if self._free is None or len(self._wanted) == len(self._kinds):
            return None
        return add_to(self._free, request) if self._wanted.isdisjoint(self._of[request.job_id].usable) else None

    def _passes(self, request: GangRequest) -> Room | None:
        """Return what is left free if the job passes the first one that waits for room; None if it may not, or if there
        is no room. While jobs give room back for another one, none passes: it would take that room.

        The first job is hardly delayed: as soon as it can start with the room of those that have passed it, they are
        asked to give it back. Other jobs that wait may be delayed. (EASY backfilling, Lifka, JSSPP 1995, with
        preemption in place of the users' estimates.)
        """
        if not self._policy.backfill or self._now is None or self._free is None or self._leaving or self._promised:
            return None
        answers = self._of[request.job_id]
        left = add_to(self._free, request) if answers.may_pass else None
        answers.may_pass = left is not None  # what is left only gets less
        return left

    def _take_back(self, request: GangRequest) -> str:
        """Choose the jobs that have passed this one and give their room back, now that it can start with it; return
        what its reason says of it."""
        passed = [grant for grant in self._granted if grant.behind == request.job_id and grant.movable]
        if not passed or self._now is None:
            return ""
        now = self._now
        gone = {grant.request.job_id for grant in self._leaving}
        staying = [each for each in self._running if each.job_id not in gone]
        chosen: list[Grant] = []
        room = bool(gone) and self._fits([*staying, request])
        costs = sorted(passed, key=lambda grant: (grant.at_risk_seconds(now), grant.request.job_id))
        for grant in [] if room else [each for each in costs if each.request.job_id not in gone]:
            chosen.append(grant)
            if room := self._fits([*_without(staying, chosen), request]):
                break
        if not room:
            return ""
        return self._ask(request, staying, chosen, len(gone), "it has passed a job that can start with its room")

    def _fits(self, requests: Sequence[GangRequest]) -> bool:
        """Return whether these have room together, by the usual orders only: it is asked for many sets of jobs."""
        return free_after(requests, self._whole) is not None

    def _ask(
        self,
        request: GangRequest,
        staying: Sequence[GangRequest],
        chosen: Sequence[Grant],
        leaving: int,
        reason: str,
        of: str = "",
    ) -> str:
        """Ask these jobs for their room, without those that are not needed after all; return what the reason of the job
        that gets it says of it."""
        for grant in tuple(chosen):
            fewer = [each for each in chosen if each is not grant]
            if self._fits([*_without(staying, fewer), request]):
                chosen = fewer
        for grant in chosen:
            self._reclaimed[grant.request.job_id] = Reclaim(grant.request.job_id, request.job_id, reason)
        self._promised.append(request)
        count = leaving + len(chosen)
        return f"; {count} job{'s' if count > 1 else ''}{of} will give room back"

    def _openings(self, request: GangRequest) -> str:
        """Return when pools get nodes that such learners can use, if not now."""
        found = dict.fromkeys(node.opening for node in self._everything if node.opening and holds_one(node, request))
        return "".join(f"; {opening}" for opening in found)

    def _left_for(self, request: GangRequest) -> _Free:
        """Return what is left for gangs that may lie on the same nodes as this one."""
        key = (request.placement, request.gpus > 0, request.gpu_type)
        if key not in self._groups:
            self._groups[key] = self._find_left_for(request)
        return self._groups[key]

    def _find_left_for(self, request: GangRequest) -> _Free:
        kinds, placement = list(enumerate(self._kinds)), request.placement
        kept = {n: kind for n, kind in kinds if kind.open_to(placement) and kind.selected_by(placement)}
        places = [n for n, kind in kept.items() if request.gpus or not kind.gpus_only]
        if not kept and placement.selector:
            return _Free(problem=f"no node with {placement.text} is ready")
        if not places:
            return _Free(problem="no node is ready" if not kept else "no node is ready but for jobs with GPUs")
        left, whole = self._whole.sums(places), self._in_all(places)
        running = self._running
        if len(places) < len(kinds) and self._free is not None:
            cpus, memory, _ = self._free.sums(places)
        else:
            cpus = _left([(each.amounts[0], each) for each in running], left[0])
            memory = _left([(each.amounts[1], each) for each in running], left[1])
        with_gpus = [n for n, kind in kept.items() if kind.takes_kind(request)]
        gpus_left, gpus_all = self._whole.sums(with_gpus)[2], self._in_all(with_gpus)[2]
        users = [each for each in running if request.gpu_type is None or each.gpu_type == request.gpu_type]
        gpus = _left([(each.gpus, each) for each in users], gpus_left)
        others = whole[0] - left[0], whole[1] - left[1], gpus_all - gpus_left
        return _Free((cpus, memory, gpus), (whole[0], whole[1], gpus_all), others)

    def _in_all(self, numbers: Collection[int]) -> Amounts:
        """Return what all nodes of these kinds give to pods, whatever uses it."""
        found = [(self._kinds[number].amounts, self._counts[number]) for number in numbers]
        cpus, memory, gpus = (sum(amounts[i] * count for amounts, count in found) for i in range(3))
        return cpus, memory, gpus

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
        room = bool(leaving) and self._fits([*staying, request])
        tries = 0
        for grant in [] if room else self._borrowers(request, gone):
            kinds = grant.request.devices.keys() & request.devices.keys()
            if not shares.borrowed(grant.request.tenant, kinds):
                continue
            shares.give(grant.request)
            chosen.append(grant)
            rest = _without(staying, chosen)
            if not sums_allow([*rest, request], self._whole):
                continue
            tries += 1
            if (room := self._fits([*rest, request])) or tries == MOST_TRIES:
                break
        if not room:
            return ""
        reason = f"tenant {request.tenant} takes back what is lent from its quota"
        return self._ask(request, staying, chosen, len(leaving), reason, " of tenants that have borrowed")

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
        costs = self._costs()

        def key(grant: Grant) -> tuple[int, float, float, str]:
            priority, at_risk = costs[grant.request.job_id]
            return priority, -claims[grant.request.tenant], at_risk, grant.request.job_id

        return sorted(found, key=key)

    def _costs(self) -> dict[str, tuple[int, float]]:
        """Return the priority of each running job, and the work that it loses if it cannot save, in seconds."""
        if self._known_costs is None:
            assert self._now is not None
            now = self._now
            self._known_costs = {
                grant.request.job_id: (PRIORITIES.index(grant.request.priority), grant.at_risk_seconds(now))
                for grant in self._granted
            }
        return self._known_costs


def _with_labels_of(capacity: Capacity, requests: Sequence[GangRequest]) -> Capacity:
    """Return the nodes with the labels that one of the gangs asks for, so that nodes which differ in others, such as
    their host names, are alike."""
    keys = {key for request in requests if request.placement.selector for key, _ in request.placement.selector}

    def plain(node: Node) -> Node:
        return replace(node, labels=frozenset(pair for pair in node.labels if pair[0] in keys))

    return Capacity(tuple(map(plain, capacity.nodes)))


def _without(requests: Sequence[GangRequest], gone: Sequence[Grant]) -> list[GangRequest]:
    names = {grant.request.job_id for grant in gone}
    return [request for request in requests if request.job_id not in names]


def _behind(request: GangRequest, ahead: GangRequest) -> str:
    """Return which job is directly before this one, and its priority if that is why. Of another tenant only the name
    is told."""
    if ahead.tenant != request.tenant:
        return f"behind a job of tenant {ahead.tenant}"
    higher = PRIORITIES.index(ahead.priority) > PRIORITIES.index(request.priority)
    because = f", whose priority is {ahead.priority}" if higher else ""
    return f"behind {ahead.job_id}{because}"


@dataclass
class _Answers:
    """What is the same for all gangs of a kind.

    Args:
        never: Why there is never room for it.
        usable: The numbers of the kinds of nodes that it may lie on.
        short: What it needs and what is free, once it was asked for.
        may_pass: Whether it may still fit into what the first waiting job leaves free.
    """

    never: str | None
    usable: frozenset[int]
    short: str | None = None
    may_pass: bool = True


@dataclass(frozen=True)
class _Free:
    """What is left on the nodes that a gang may lie on, whatever its amounts: CPUs in thousandths, MiB and GPUs, each
    with the whole, and with what pods of other workloads take. `problem`: why there is no such node."""

    left: Amounts = (0, 0, 0)
    whole: Amounts = (0, 0, 0)
    others: Amounts = (0, 0, 0)
    problem: str = ""


def _free_text(request: GangRequest, free: _Free) -> str:
    """Return what is free of the things that are short, or of CPUs and memory when nothing is."""
    if free.problem:
        return free.problem
    cpus, memory, gpus = free.left
    texts = {
        "cpus": f"{_number(cpus / 1000)} of {_count(free.whole[0] / 1000, 'CPU')} free",
        "memory": f"{_memory(memory)} of {_memory(free.whole[1])} memory free",
    }
    short: list[str] = []
    need = request.amounts
    if need[0] * request.learners > cpus:
        short.append(texts["cpus"])
    if need[1] * request.learners > memory:
        short.append(texts["memory"])
    if request.gpus and request.gpus * request.learners > gpus:
        short.append(f"{gpus} of {_count(free.whole[2], _gpu(request))} free")
    return ", ".join(short or [texts["cpus"], texts["memory"]]) + _others_text(free.others)


def _others_text(others: Amounts) -> str:
    """Return what pods of other workloads take; nothing if they take nothing."""
    cpus, memory, gpus = others
    parts = [_count(cpus / 1000, "CPU") if cpus else "", _memory(memory) if memory else ""]
    parts.append(_count(gpus, "GPU") if gpus else "")
    said = " + ".join(part for part in parts if part)
    return f" (pods of other workloads take {said})" if said else ""


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
    most = most_learners(request, kinds_of(nodes))
    advice = (
        f"ask for at most {most} such, or for smaller ones" if most else "no node holds one: ask for smaller learners"
    )
    return f"needs {_need(request)}, more than all nodes together can hold ({have}); {advice}"


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
