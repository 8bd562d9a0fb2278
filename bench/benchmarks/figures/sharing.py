"""FfDL's experiments on sharing a cluster, in virtual time: gangs, packing, and a tenant that asks for everything.

`NOTES` says what is simulated. FfDL's figures are those of Jayaram et al., FfDL: A Flexible Multi-tenant Deep Learning
Platform, Middleware 2019.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from scipy.optimize import LinearConstraint, milp
from scipy.sparse import lil_array
from simulator.simulation import START, Course, Simulation, Work

from benchmarks.options import Options
from benchmarks.results import Measured, TableOf, Value
from updraft.allocation import Capacity, GangRequest, Node, Policy, fits, plan_admissions
from updraft.allocation.packing import Room, sums_allow
from updraft.tenants import Tenant

NAME, TITLE = "sharing", "A shared cluster: gangs, packing, fairness"
DEVICES_PER_NODE, NODES, JOBS = 4, 15, 50
SIZES = ((2, 1), (2, 2), (4, 1), (4, 2))  # learners, devices of each
GANGS = {"2 learners with 1 device": ((2, 1),), "4 learners with 1 device": ((4, 1),), "mixed": SIZES}
SAMPLES = 20  # placements that BSA draws for a gang
LATE_SECONDS = 15 * 60.0

NOTES = (
    "*Gangs*: 50 jobs come at once to 15 nodes with 4 devices each; mixed are jobs of 2 or 4 learners with 1 or 2 "
    "devices. *Pod by pod*: the pods of all jobs in random order, each on the node with the most free devices, as the "
    "scheduler of Kubernetes spreads them; a job that lacks a learner holds its devices and does not run. *BSA*: jobs "
    "in random order, whole gangs by biased sampling as FfDL has it (20 random placements, in which nodes that are in "
    "use are drawn more often; the one on the fewest nodes is taken). *Planner*: `plan_admissions`. Devices are "
    "counted when nothing more can be placed. FfDL reports up to about 46 % of 60 devices held in vain pod by pod, "
    "and none with gangs.",
    "*Packing*: 100 nodes with 4 devices, jobs of one learner with 1, 2 or 4 devices, or of four with 1, that come at "
    "random and load the cluster by 90 %. Each starts in its turn when its gang fits, on the fullest nodes that hold "
    "it or on the emptiest, and stays there. FfDL reports over three times fewer jobs that waited for more than "
    "15 minutes.",
    "*Placement*: 3 to 12 gangs on 5 unlike nodes, added until CPUs, memory or GPUs are nearly used up, all of "
    "which a mixed-integer program can place (HiGHS, by SciPy). The planner tries best fit in three orders and then "
    "a bounded search.",
    "*Fairness*: three tenants with a quota of 20 of 60 devices each. The first one submits 300 jobs at once, the "
    "others one job in ten minutes on average. With the tenants of the planner, and with all jobs in one queue.",
)


def measure(options: Options) -> Measured:
    runs = options.pairs(20, 2)
    gangs = [_gangs(name, runs) for name in GANGS]
    late = [_late_jobs(random.Random(n), 1500 if not options.quick else 150) for n in range(max(2, runs // 4))]
    possible, found, at_once = _missed(10 * runs, random.Random(runs))
    fair = [_waits(random.Random(n), tenants=True) for n in range(max(1, runs // 4))]
    single = [_waits(random.Random(n), tenants=False) for n in range(max(1, runs // 4))]
    rows = [
        ("a job of the two others waits, median", _median(fair, "others"), _median(single, "others")),
        ("a job of the two others waits, 95th percentile", _median(fair, "others95"), _median(single, "others95")),
        ("a job of the first waits, median", _median(fair, "greedy"), _median(single, "greedy")),
        ("jobs that gave their room back", _median(fair, "preempted"), _median(single, "preempted")),
        ("all jobs have ended after", _median(fair, "makespan"), _median(single, "makespan")),
    ]
    return Measured(
        settings={"runs": runs},
        values=(
            Value(name="Placements that a MILP finds and the planner too", unit="%", samples=(100 * found / possible,)),
            Value(name="The same by best fit alone", unit="%", samples=(100 * at_once / possible,)),
            Value(name="Jobs that waited over 15 min: packed", unit="%", samples=tuple(p for p, _ in late)),
            Value(name="Jobs that waited over 15 min: spread", unit="%", samples=tuple(s for _, s in late)),
        ),
        tables=(
            TableOf(
                title=f"Of {NODES * DEVICES_PER_NODE} devices, in percent: mean (smallest to largest) of the runs",
                columns=("jobs", "placed", "held in vain", "free"),
                rows=tuple(row for rows in gangs for row in rows),
            ),
            TableOf(
                title="Three tenants, one of which submits 300 jobs at once; minutes, and jobs, medians of the runs",
                columns=("", "quotas, fair shares, taking back", "one queue"),
                rows=tuple(rows),
            ),
        ),
        notes=NOTES,
    )


# --- gangs -----------------------------------------------------------------------------------------------------------


def _gangs(kind: str, runs: int) -> list[tuple[str, str, str, str]]:
    """Return a row for each way of placing: the devices that are held in vain, and that are free."""
    ways: Mapping[str, Callable[[list[GangRequest], random.Random], tuple[int, int]]] = {
        "pod by pod": _pod_by_pod,
        "BSA": _bsa,
        "planner": _planned,
    }
    whole = NODES * DEVICES_PER_NODE
    vain: dict[str, list[float]] = {name: [] for name in ways}
    free: dict[str, list[float]] = {name: [] for name in ways}
    for run in range(runs):
        for name, place in ways.items():
            chance = random.Random(run)
            jobs = [_gang(n, GANGS[kind], chance) for n in range(JOBS)]
            chance.shuffle(jobs)
            held, left = place(jobs, chance)
            vain[name].append(100 * held / whole)
            free[name].append(100 * left / whole)
    return [(kind, name, _spread(vain[name]), _spread(free[name])) for name in ways]


def _spread(samples: Sequence[float]) -> str:
    return f"{statistics.mean(samples):.0f} ({min(samples):.0f} to {max(samples):.0f})"


def _gang(number: int, sizes: Sequence[tuple[int, int]], chance: random.Random) -> GangRequest:
    learners, devices = chance.choice(sizes)
    return GangRequest(f"job-{number:02d}", learners, 1, 0, devices, None, START)


def _pod_by_pod(jobs: list[GangRequest], chance: random.Random) -> tuple[int, int]:
    free = [DEVICES_PER_NODE] * NODES
    pods = [job for job in jobs for _ in range(job.learners)]
    chance.shuffle(pods)
    placed: dict[str, int] = {}
    for job in pods:
        node = max(range(NODES), key=lambda n: free[n])
        if free[node] >= job.gpus:
            free[node] -= job.gpus
            placed[job.job_id] = placed.get(job.job_id, 0) + 1
    vain = sum(placed.get(job.job_id, 0) * job.gpus for job in jobs if placed.get(job.job_id, 0) < job.learners)
    return vain, sum(free)


def _bsa(jobs: list[GangRequest], chance: random.Random) -> tuple[int, int]:
    free = [DEVICES_PER_NODE] * NODES
    for job in jobs:
        best: list[int] | None = None
        for _ in range(SAMPLES):
            found = _sampled(job, list(free), chance)
            if found is not None and (best is None or len(set(found)) < len(set(best))):
                best = found
        for node in best or ():
            free[node] -= job.gpus
    return 0, sum(free)


def _sampled(job: GangRequest, free: list[int], chance: random.Random) -> list[int] | None:
    """Draw a node for each learner, fuller ones more often; None if a learner finds none."""
    chosen = []
    for _ in range(job.learners):
        possible = [n for n in range(NODES) if free[n] >= job.gpus]
        if not possible:
            return None
        weights = [math.exp(DEVICES_PER_NODE - free[n]) for n in possible]
        (node,) = chance.choices(possible, weights)
        free[node] -= job.gpus
        chosen.append(node)
    return chosen


def _planned(jobs: list[GangRequest], chance: random.Random) -> tuple[int, int]:
    capacity = Capacity(tuple(Node(f"n{n}", 64, 0, DEVICES_PER_NODE) for n in range(NODES)))
    granted = set(plan_admissions(jobs, [], capacity).granted)
    return 0, NODES * DEVICES_PER_NODE - sum(job.learners * job.gpus for job in jobs if job.job_id in granted)


# --- placement -------------------------------------------------------------------------------------------------------


def _missed(number: int, chance: random.Random) -> tuple[int, int, int]:
    """Return of random crowded states: how many a MILP can place, how many of those the planner can, and how many the
    planner can without its search."""
    possible = found = at_once = 0
    while possible < number:
        nodes, gangs = _crowded(chance)
        if len(gangs) < 3 or not _milp_places(gangs, nodes):
            continue
        possible += 1
        found += fits(gangs, nodes)
        room = Room.of(nodes)
        at_once += all(room.add(gang) for gang in gangs)
    return possible, found, at_once


def _crowded(chance: random.Random) -> tuple[list[Node], list[GangRequest]]:
    """Return nodes, and gangs whose sums nearly use them up."""
    shapes = [(chance.choice((4, 8, 16)), chance.choice((8, 16, 32)), chance.choice((0, 4))) for _ in range(5)]
    nodes = [Node(f"n{n}", *shape) for n, shape in enumerate(shapes)]
    gangs, whole = list[GangRequest](), Room.of(nodes)
    while len(gangs) < 12:
        amounts = chance.choice((1, 2, 3, 5)), chance.choice((1, 3, 6, 9)), chance.choice((0, 0, 1, 2))
        request = GangRequest(f"g{len(gangs)}", chance.choice((1, 2, 3)), *amounts, None, START)
        if not sums_allow([*gangs, request], whole):
            break
        gangs.append(request)
    return nodes, gangs


def _milp_places(gangs: Sequence[GangRequest], nodes: Sequence[Node]) -> bool:
    """Return whether integers exist: how many learners of each gang go to each node."""
    count = len(gangs) * len(nodes)
    each = lil_array((len(gangs), count))
    amounts = lil_array((3 * len(nodes), count))
    for g, gang in enumerate(gangs):
        for n in range(len(nodes)):
            each[g, g * len(nodes) + n] = 1
            for i in range(3):
                amounts[3 * n + i, g * len(nodes) + n] = gang.amounts[i]
    learners = [gang.learners for gang in gangs]
    room = [node.amounts[i] for node in nodes for i in range(3)]
    found = milp(
        c=[0.0] * count,
        integrality=[1] * count,
        constraints=[LinearConstraint(each.tocsr(), learners, learners), LinearConstraint(amounts.tocsr(), ub=room)],
    )
    return bool(found.success)


# --- packing ---------------------------------------------------------------------------------------------------------


def _late_jobs(chance: random.Random, number: int) -> tuple[float, float]:
    """Return how many jobs of a stream, in percent, waited for more than 15 minutes: packed, and spread."""
    nodes, load = 100, 0.9
    kinds = (((1, 1), 0.5), ((1, 2), 0.2), ((1, 4), 0.2), ((4, 1), 0.1))
    sizes = chance.choices([size for size, _ in kinds], [weight for _, weight in kinds], k=number)
    lengths = [min(86_400.0, chance.lognormvariate(math.log(3600), 1.2)) for _ in range(number)]
    work = sum(learners * devices * seconds for (learners, devices), seconds in zip(sizes, lengths, strict=True))
    between = work / number / (load * nodes * DEVICES_PER_NODE)
    comes, at = [], 0.0
    for _ in range(number):
        at += chance.expovariate(1 / between)
        comes.append(at)
    stream = list(zip(comes, sizes, lengths, strict=True))
    return _late(stream, nodes, pack=True), _late(stream, nodes, pack=False)


def _late(stream: Sequence[tuple[float, tuple[int, int], float]], nodes: int, *, pack: bool) -> float:
    free = [DEVICES_PER_NODE] * nodes
    ends: list[tuple[float, list[int], int]] = []
    late, now = 0, 0.0
    for comes, (learners, devices), seconds in stream:
        now = max(now, comes)  # jobs start in their turn: not before the one ahead has started
        while True:
            for end in [end for end in ends if end[0] <= now]:
                ends.remove(end)
                for node in end[1]:
                    free[node] += end[2]
            chosen = _nodes_for(free, learners, devices, pack=pack)
            if chosen is not None:
                break
            now = min(end[0] for end in ends)
        for node in chosen:
            free[node] -= devices
        ends.append((now + seconds, chosen, devices))
        late += now - comes > LATE_SECONDS
    return 100 * late / len(stream)


def _nodes_for(free: Sequence[int], learners: int, devices: int, *, pack: bool) -> list[int] | None:
    left, chosen = list(free), []
    for _ in range(learners):
        possible = [n for n, number in enumerate(left) if number >= devices]
        if not possible:
            return None
        node = min(possible, key=lambda n: left[n]) if pack else max(possible, key=lambda n: left[n])
        left[node] -= devices
        chosen.append(node)
    return chosen


# --- fairness --------------------------------------------------------------------------------------------------------


def _waits(chance: random.Random, *, tenants: bool) -> dict[str, float]:
    capacity = Capacity(tuple(Node(f"n{n}", 64, 1 << 20, DEVICES_PER_NODE) for n in range(NODES)))
    works = [_work(f"greedy-{n:03d}", "greedy", 0.0, chance) for n in range(300)]
    for tenant in ("steady", "calm"):
        at = 0.0
        for n in range(60):
            at += chance.expovariate(1 / 600)
            works.append(_work(f"{tenant}-{n:02d}", tenant, at, chance))
    quota = {name: Tenant(quota={"gpu": 20}) for name in ("greedy", "steady", "calm")}
    if not tenants:
        works = [replace(work, request=replace(work.request, tenant="all")) for work in works]
    courses = Simulation(capacity, works, Policy(quota) if tenants else Policy()).run()
    others = [course for course in courses.values() if not course.work.request.job_id.startswith("greedy")]
    greedy = [course for course in courses.values() if course.work.request.job_id.startswith("greedy")]
    last = max(course.held[-1][1] for course in courses.values())
    return {
        "others": statistics.median(_minutes(others)),
        "others95": statistics.quantiles(_minutes(others), n=20)[-1],
        "greedy": statistics.median(_minutes(greedy)),
        "preempted": float(sum(course.preemptions for course in courses.values())),
        "makespan": (last - START).total_seconds() / 60,
    }


def _work(job_id: str, tenant: str, at: float, chance: random.Random) -> Work:
    learners, devices = chance.choice(SIZES)
    request = GangRequest(job_id, learners, 1, 0, devices, None, START + timedelta(seconds=at), tenant=tenant)
    return Work(request, min(4 * 3600.0, chance.lognormvariate(math.log(1200), 0.8)))


def _minutes(courses: Sequence[Course]) -> list[float]:
    return [course.waited_seconds / 60 for course in courses]


def _median(found: Sequence[Mapping[str, float]], name: str) -> float:
    return round(statistics.median(each[name] for each in found), 1)
