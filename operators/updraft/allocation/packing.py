"""Decide whether gangs fit onto nodes together.

Grants record amounts, not nodes, so all live gangs are placed together each time. Best fit, largest learners first,
answers nearly every case. If it fails, other orders are tried, and then a search that gives up after `SEARCH_STEPS`
placements. A "no" can therefore be wrong in rare crowded cases, and the gang waits longer than necessary. A "yes" comes
with a placement and is never wrong. The cluster's own scheduler may place pods differently; then a pod stays Pending
until a place is free, or until the deploy timeout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from updraft.allocation.model import Amounts, GangRequest, Node

SEARCH_STEPS = 5_000


@dataclass
class _Space:
    """A node and the amounts that are left on it."""

    node: Node
    free: Amounts

    def holds(self, request: GangRequest) -> bool:
        need = request.amounts
        node = self.node
        if not node.open_to(request.placement):
            return False
        return node.takes_kind(request) and all(n <= f for n, f in zip(need, self.free, strict=True))

    def take(self, need: Amounts, times: int = 1) -> None:
        cpus, memory, gpus = self.free
        self.free = (cpus - need[0] * times, memory - need[1] * times, gpus - need[2] * times)


def fits(requests: Sequence[GangRequest], nodes: Sequence[Node]) -> bool:
    """Return whether all learners of all requests can be placed on the nodes at the same time."""
    return free_after(requests, nodes) is not None


def never_fits(request: GangRequest, nodes: Sequence[Node]) -> bool:
    """Return whether the gang exceeds the nodes when nothing else runs, and all of them are ready. Exact: the learners
    of one gang are all alike."""
    ready = (replace(node, ready=True) for node in nodes)
    return sum(_times(request, _Space(node, node.amounts)) for node in ready) < request.learners


def holds_one(node: Node, request: GangRequest) -> bool:
    """Return whether the node holds a learner of the gang when nothing else runs on it."""
    return _Space(node, node.amounts).holds(request)


def free_after(requests: Sequence[GangRequest], nodes: Sequence[Node]) -> dict[str, Amounts] | None:
    """Return what is left on each node when all requests are placed; None if no placement was found."""
    if not sums_allow(requests, nodes):
        return None
    total = [max(1, sum(node.amounts[i] for node in nodes)) for i in range(3)]

    def dominant_share(request: GangRequest) -> float:
        return max(amount / whole for amount, whole in zip(request.amounts, total, strict=True))

    # Gangs with the fewest possible nodes first; among these the largest first.
    by_share = sorted(requests, key=lambda r: (*_narrow(r), dominant_share(r)), reverse=True)
    by_memory = sorted(requests, key=lambda r: (*_narrow(r), r.memory_mib, r.cpus), reverse=True)
    by_cpus = sorted(requests, key=lambda r: (*_narrow(r), r.cpus, r.memory_mib), reverse=True)
    for order in (by_share, by_memory, by_cpus):
        placed = _best_fit(order, nodes)
        if placed is not None:
            return placed
    return _search(by_share, nodes)


def _narrow(request: GangRequest) -> tuple[bool, bool, int]:
    """Return a sort key of how few nodes a gang may lie on: named accelerator, any accelerator, labels, none."""
    return request.gpus > 0, bool(request.gpu_type), len(request.placement.selector)


def _times(request: GangRequest, space: _Space) -> int:
    """Return how many learners of this gang the space holds."""
    if not space.holds(request):
        return 0
    return min(
        (f // n for n, f in zip(request.amounts, space.free, strict=True) if n > 0),
        default=request.learners,
    )


def sums_allow(requests: Sequence[GangRequest], nodes: Sequence[Node]) -> bool:
    """Return the cheap necessary condition for `fits`: sums over all nodes, and per accelerator type."""
    for i in range(3):
        if sum(r.amounts[i] * r.learners for r in requests) > sum(node.amounts[i] for node in nodes):
            return False
    types = {r.gpu_type for r in requests if r.gpus and r.gpu_type}
    return all(
        sum(r.gpus * r.learners for r in requests if r.gpu_type == kind)
        <= sum(node.gpus for node in nodes if node.gpu_type == kind)
        for kind in types
    )


def _slack(space: _Space, need: Amounts) -> tuple[int, float]:
    """Return a sort key of a node for a learner; the smallest is the best place. CPU work avoids nodes with
    accelerators, then the tightest fit wins."""
    wasted_gpus = space.free[2] if need[2] == 0 else 0
    whole = space.node.amounts
    return wasted_gpus, sum((f - n) / max(1, w) for f, n, w in zip(space.free, need, whole, strict=True))


def add_to(free: Mapping[str, Amounts], request: GangRequest, nodes: Sequence[Node]) -> dict[str, Amounts] | None:
    """Return what is left if the request is added to a placement that left `free`; None if it does not fit."""
    return _best_fit([request], nodes, free)


def _best_fit(
    order: Sequence[GangRequest], nodes: Sequence[Node], free: Mapping[str, Amounts] | None = None
) -> dict[str, Amounts] | None:
    spaces = [_Space(node, node.amounts if free is None else free[node.name]) for node in nodes]
    for request in order:
        left = request.learners
        while left:
            possible = [space for space in spaces if space.holds(request)]
            if not possible:
                return None
            best = min(possible, key=lambda space: _slack(space, request.amounts))
            # A gang's learners are alike, and the tightest node only gets tighter: place as many as fit at once.
            times = min(left, _times(request, best))
            best.take(request.amounts, times)
            left -= times
    return {space.node.name: space.free for space in spaces}


def _search(order: Sequence[GangRequest], nodes: Sequence[Node]) -> dict[str, Amounts] | None:
    """Search depth first over "how many learners of gang g go to node n", most first; bounded by SEARCH_STEPS."""
    spaces = [_Space(node, node.amounts) for node in nodes]
    steps = 0

    # An explicit stack of (gang, node, learners of the gang still to place, times tried here) avoids the recursion
    # limit.
    stack: list[list[int]] = []
    if not order:
        return {space.node.name: space.free for space in spaces}

    def open_frame(gang: int, node: int, left: int) -> None:
        stack.append([gang, node, left, min(left, _times(order[gang], spaces[node])) + 1, 0])

    open_frame(0, 0, order[0].learners)
    while stack:
        gang, node, left, next_times, taken = stack[-1]
        need = order[gang].amounts
        if taken:  # the search returned to this frame: undo its last choice
            spaces[node].take(need, -taken)
            stack[-1][4] = 0
        if next_times == 0:
            stack.pop()
            continue
        steps += 1
        if steps > SEARCH_STEPS:
            return None
        times = next_times - 1
        spaces[node].take(need, times)
        stack[-1][3], stack[-1][4] = times, times
        remaining = left - times
        if remaining == 0:
            if gang + 1 == len(order):
                return {space.node.name: space.free for space in spaces}
            open_frame(gang + 1, 0, order[gang + 1].learners)
        elif node + 1 < len(spaces):
            open_frame(gang, node + 1, remaining)
    return None
