"""Plan the queue: by priority and time of the request; the whole gang or nothing; no backfill.

A job behind the first waiting job waits even if it would fit. Priority ages: a job is overtaken only by jobs of a
higher priority that come within a bounded time after it. So waiting ends when the jobs in front end. A gang that can
never fit is reported as impossible and does not block the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache

from updraft.allocation.model import AGEING, Capacity, GangRequest, Grant, Impossible, Node, Plan, Waiting
from updraft.allocation.packing import add_to, free_after, never_fits
from updraft.allocation.placement import no_such_node


def plan_admissions(
    queue: Sequence[GangRequest], granted: Sequence[Grant], capacity: Capacity, *, ageing: timedelta = AGEING
) -> Plan:
    """Decide which jobs start now, which wait and why, and which can never start.

    Args:
        queue: In any order; it is served by `GangRequest.turn`.
        ageing: The waiting time that counts as much as one level of priority.

    Impossible is judged against all nodes, also those that are not ready now: a lost node makes jobs wait, not fail.
    """
    running = [grant.request for grant in granted]
    started: list[str] = []
    waiting: list[Waiting] = []
    impossible: list[Impossible] = []
    ready = capacity.open_to(request.placement for request in (*running, *queue))
    # Most of a thousand queued jobs ask for the same amounts: answer each question once per kind of gang.
    never = cache(lambda kind: _why_never(kind, capacity.nodes))
    wait = cache(lambda kind: f"needs {_need(kind)}; {_free(kind, running, ready)}")
    ahead: GangRequest | None = None  # the waiting request directly before
    free = free_after(running, ready)
    for request in sorted(queue, key=lambda r: r.turn(ageing)):
        kind = replace(request, job_id="", requested_at=datetime.min, priority="normal")
        if (reason := never(kind)) is not None:
            impossible.append(Impossible(request.job_id, reason))
            continue
        if ahead is None:
            # Try first beside the others where they are placed, then with everything placed again.
            left = add_to(free, request, ready) if free is not None else None
            left = left or free_after([*running, request], ready)
            if left is not None:
                free = left
                running.append(request)
                started.append(request.job_id)
                continue
        # No later job starts, so the free amounts do not change from here on.
        place = len(waiting) + 1
        behind = f"; {_behind(request, ahead)}" if ahead is not None else ""
        waiting.append(Waiting(request.job_id, place, f"{_ordinal(place)} in the queue; {wait(kind)}{behind}"))
        ahead = request
    return Plan(tuple(started), tuple(waiting), tuple(impossible))


def _behind(request: GangRequest, ahead: GangRequest) -> str:
    """Return which job is directly before this one, and why if it came later."""
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
