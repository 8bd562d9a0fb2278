"""Decide whether gangs fit onto nodes together.

Grants record amounts, not nodes, so all live gangs are placed together each time. Best fit, largest learners first,
answers nearly every case. If it fails, other orders are tried, and then a search that gives up after `SEARCH_STEPS`
placements. A "no" can therefore be wrong in rare crowded cases, and the gang waits longer than necessary. A "yes" comes
with a placement and is never wrong. The cluster's own scheduler may place pods differently; then a pod stays Pending
until a place is free, or until the deploy timeout.

Nodes that are alike and have the same amounts left are counted together (`Room`), so that a cluster of a thousand nodes
of three kinds costs little more than one of thirty nodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from updraft.allocation.model import Amounts, GangRequest, Node

SEARCH_STEPS = 5_000

Known = dict[object, dict[int, bool]]  # by what gangs ask of nodes: the kinds of nodes, and whether they take them
Spot = tuple[int, Amounts]  # the number of a kind of node, and what is left on such a node


class Room:
    """What is left on nodes: how many nodes of each kind have which amounts.

    Args:
        kinds: Nodes that differ in more than their names; the first one of each kind.
        left: The number of nodes by kind and amounts.
    """

    def __init__(self, kinds: Sequence[Node], left: dict[Spot, int], known: Known | None = None) -> None:
        self.kinds, self.left = kinds, left
        self._known: Known = {} if known is None else known

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> Room:
        """Return the nodes with all of their amounts."""
        counted = Counter((node.kind, node.left) for node in nodes)
        kinds = list(dict.fromkeys(kind for kind, _ in counted))
        numbers = {kind: number for number, kind in enumerate(kinds)}
        return cls(kinds, {(numbers[kind], left): count for (kind, left), count in counted.items()})

    def sums(self, numbers: Collection[int] | None = None) -> Amounts:
        """Return what is left on all nodes of these kinds, in all; without `numbers`, on all nodes."""
        cpus = memory = gpus = 0
        for (number, free), count in self.left.items():
            if numbers is None or number in numbers:
                cpus, memory, gpus = cpus + free[0] * count, memory + free[1] * count, gpus + free[2] * count
        return cpus, memory, gpus

    def gpus_of(self, kind: str) -> int:
        """Return how many GPUs of this type are left on all nodes."""
        return sum(
            free[2] * count for (number, free), count in self.left.items() if self.kinds[number].gpu_type == kind
        )

    def counts(self) -> list[int]:
        """Return the number of nodes of each kind."""
        found = [0] * len(self.kinds)
        for (number, _), count in self.left.items():
            found[number] += count
        return found

    def add(self, request: GangRequest, learners: int | None = None) -> bool:
        """Place a gang on the fullest nodes that hold it; return whether it fits. If it does not, some learners may
        have been placed. `learners`: as many in place of its own, of gangs that are alike."""
        need, left = request.amounts, learners or request.learners
        while left:
            best = self._tightest(request)
            if best is None:
                return False
            # A gang's learners are alike, and the tightest node only gets tighter: place as many as fit at once.
            most = _times(need, best[1]) or left
            times, nodes = min(left, most), min(self.left[best], left // most) or 1
            self.left[best] -= nodes
            if not self.left[best]:
                del self.left[best]
            spot = (best[0], _less(best[1], need, times))
            self.left[spot] = self.left.get(spot, 0) + nodes
            left -= times * nodes
        return True

    def copy(self) -> Room:
        return Room(self.kinds, dict(self.left), self._known)

    def _tightest(self, request: GangRequest) -> Spot | None:
        """Return the best place for a learner; None if no node holds it. This is the planner's innermost loop."""
        need, best, least = request.amounts, None, None
        cpus, memory, gpus = need
        where = request.placement
        known = self._known.setdefault((gpus > 0, request.gpu_type, where.selector, where.tolerations), {})
        for spot in self.left:
            number, free = spot
            if cpus > free[0] or memory > free[1] or gpus > free[2]:
                continue
            if (takes := known.get(number)) is None:
                takes = known[number] = _takes(self.kinds[number], request)
            if not takes:
                continue
            slack = _slack(self.kinds[number], free, need)
            if least is None or slack < least:
                best, least = spot, slack
        return best


def fits(requests: Sequence[GangRequest], nodes: Sequence[Node]) -> bool:
    """Return whether all learners of all requests can be placed on the nodes at the same time."""
    return free_after(requests, Room.of(nodes), nodes) is not None


def kinds_of(nodes: Iterable[Node]) -> Counter[Node]:
    """Return the kinds of nodes as if all were ready, and how many there are of each."""
    found = Counter[Node]()
    for kind, number in Counter(node.kind for node in nodes).items():
        found[kind if kind.ready else replace(kind, ready=True)] += number
    return found


def never_fits(request: GangRequest, nodes: Iterable[Node]) -> bool:
    """Return whether the gang exceeds the nodes when nothing else runs, and all of them are ready. Exact: the learners
    of one gang are all alike."""
    return exceeds(request, kinds_of(nodes))


def exceeds(request: GangRequest, kinds: Mapping[Node, int]) -> bool:
    """Return the same for nodes that are counted by kind, as `kinds_of` returns them."""
    return most_learners(request, kinds) < request.learners


def most_learners(request: GangRequest, kinds: Mapping[Node, int]) -> int:
    """Return how many of the gang's learners the nodes hold when nothing else runs, whatever number it asks for."""
    return sum(
        number * (_times(request.amounts, node.amounts) or request.learners)
        for node, number in kinds.items()
        if holds_one(node, request)
    )


def holds_one(node: Node, request: GangRequest) -> bool:
    """Return whether the node holds a learner of the gang when nothing else runs on it."""
    need, there = request.amounts, node.amounts
    return need[0] <= there[0] and need[1] <= there[1] and need[2] <= there[2] and _takes(node, request)


def free_after(requests: Sequence[GangRequest], whole: Room, nodes: Sequence[Node] = ()) -> Room | None:
    """Return what is left when all requests are placed; None if no placement was found.

    Args:
        whole: `Room.of(nodes)`.
        nodes: With them, a placement is searched for where the usual orders find none. That takes a hundred times as
            long.
    """
    if not sums_allow(requests, whole):
        return None
    cpus, memory, gpus = (max(1, amount) for amount in whole.sums())

    # Gangs with the fewest possible nodes first; among these the largest first.
    def by_share(request: GangRequest) -> tuple[float, ...]:
        need = request.amounts
        return (*_narrow(request), max(need[0] / cpus, need[1] / memory, need[2] / gpus))

    def by_memory(request: GangRequest) -> tuple[float, ...]:
        return (*_narrow(request), request.memory_mib, request.cpus)

    def by_cpus(request: GangRequest) -> tuple[float, ...]:
        return (*_narrow(request), request.cpus, request.memory_mib)

    alike: dict[object, tuple[GangRequest, int]] = {}
    for each in requests:
        what = each.amounts, each.gpu_type, each.placement.selector, each.placement.tolerations
        first, learners = alike.get(what, (each, 0))
        alike[what] = first, learners + each.learners
    for key in (by_share, by_memory, by_cpus):
        room = whole.copy()
        if all(room.add(*found) for found in sorted(alike.values(), key=lambda found: key(found[0]), reverse=True)):
            return room
    return _search(sorted(requests, key=by_share, reverse=True), nodes) if nodes else None


def add_to(room: Room, request: GangRequest) -> Room | None:
    """Return what is left if the request is added to a placement that left `room`; None if it does not fit."""
    found = room.copy()
    return found if found.add(request) else None


def sums_allow(requests: Iterable[GangRequest], whole: Room) -> bool:
    """Return the cheap necessary condition for `free_after`: sums over all nodes, and per accelerator type."""
    cpus = memory = gpus = 0
    typed: dict[str, int] = {}
    for request in requests:
        learners, need = request.learners, request.amounts
        cpus += learners * need[0]
        memory += learners * need[1]
        if need[2]:
            gpus += learners * need[2]
            if request.gpu_type:
                typed[request.gpu_type] = typed.get(request.gpu_type, 0) + learners * need[2]
    free = whole.sums()
    if cpus > free[0] or memory > free[1] or gpus > free[2]:
        return False
    return all(number <= whole.gpus_of(kind) for kind, number in typed.items())


def _narrow(request: GangRequest) -> tuple[bool, bool, int]:
    """Return a sort key of how few nodes a gang may lie on: named accelerator, any accelerator, labels, none."""
    return request.gpus > 0, bool(request.gpu_type), len(request.placement.selector)


def _takes(node: Node, request: GangRequest) -> bool:
    return node.open_to(request.placement) and node.takes_kind(request)


def _times(need: Amounts, free: Amounts) -> int:
    """Return how many learners fit into these amounts; 0 if they need nothing."""
    return min((f // n for n, f in zip(need, free, strict=True) if n > 0), default=0)


def _less(free: Amounts, need: Amounts, times: int) -> Amounts:
    return free[0] - need[0] * times, free[1] - need[1] * times, free[2] - need[2] * times


def _slack(node: Node, free: Amounts, need: Amounts) -> tuple[bool, int, float]:
    """Return a sort key of a node for a learner; the smallest is the best place. Nodes that are there come first. CPU
    work avoids nodes with accelerators, then the tightest fit wins."""
    wasted_gpus = free[2] if need[2] == 0 else 0
    whole = node.amounts
    return node.grows, wasted_gpus, sum((f - n) / max(1, w) for f, n, w in zip(free, need, whole, strict=True))


def _search(order: Sequence[GangRequest], nodes: Sequence[Node]) -> Room | None:
    """Search depth first over "how many learners of gang g go to node n", most first; bounded by SEARCH_STEPS."""
    free = [node.left for node in nodes]
    steps = 0

    # An explicit stack of (gang, node, learners of the gang still to place, times tried here) avoids the recursion
    # limit.
    stack: list[list[int]] = []
    if not order:
        return Room.of(nodes)

    def open_frame(gang: int, node: int, left: int) -> None:
        request, there = order[gang], free[node]
        holds = _takes(nodes[node], request) and all(n <= f for n, f in zip(request.amounts, there, strict=True))
        most = (_times(request.amounts, there) or request.learners) if holds else 0
        stack.append([gang, node, left, min(left, most) + 1, 0])

    open_frame(0, 0, order[0].learners)
    while stack:
        gang, node, left, next_times, taken = stack[-1]
        need = order[gang].amounts
        if taken:  # the search returned to this frame: undo its last choice
            free[node] = _less(free[node], need, -taken)
            stack[-1][4] = 0
        if next_times == 0:
            stack.pop()
            continue
        steps += 1
        if steps > SEARCH_STEPS:
            return None
        times = next_times - 1
        free[node] = _less(free[node], need, times)
        stack[-1][3], stack[-1][4] = times, times
        remaining = left - times
        if remaining == 0:
            if gang + 1 == len(order):
                return _room_of(nodes, free)
            open_frame(gang + 1, 0, order[gang + 1].learners)
        elif node + 1 < len(nodes):
            open_frame(gang, node + 1, remaining)
    return None


def _room_of(nodes: Sequence[Node], free: Sequence[Amounts]) -> Room:
    """Return what is left on each node, counted by kind."""
    kinds = list(dict.fromkeys(node.kind for node in nodes))
    numbers = {kind: number for number, kind in enumerate(kinds)}
    left = Counter((numbers[node.kind], there) for node, there in zip(nodes, free, strict=True))
    return Room(kinds, dict(left))
