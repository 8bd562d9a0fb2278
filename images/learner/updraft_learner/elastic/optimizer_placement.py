"""Which learners hold the optimizer's state of which parameters. Pure."""

from __future__ import annotations


def assign(sizes: list[int], holders: list[set[int]]) -> list[int]:
    """Return the owner of each parameter, by learner: even parts, and as few states as possible have to move.

    Args:
        sizes: Elements of each parameter.
        holders: What each learner holds now.
    """
    loads = [0] * len(holders)
    goal = -(-sum(sizes) // len(holders))
    owners = [0] * len(sizes)
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        room = [
            rank for rank in range(len(holders)) if index in holders[rank] and loads[rank] + sizes[index] <= goal
        ] or range(len(holders))
        owners[index] = min(room, key=lambda rank: (loads[rank], rank))
        loads[owners[index]] += sizes[index]
    return owners


def keeps(owners: list[int], learner: int, learners: int) -> set[int]:
    """Return what a learner holds: the parameters that it owns, and those of its neighbour, which it mirrors."""
    return {index for index, owner in enumerate(owners) if learner in (owner, (owner + 1) % learners)}


def transfers(
    sizes: list[int], holders: list[set[int]], wanted: dict[int, set[int]]
) -> dict[tuple[int, int], list[int]]:
    """Return which rank sends which parameters' states to which: (from, to) -> indices, so that all send about as much.

    Args:
        sizes: Elements of each parameter.
        holders: What each rank has.
        wanted: What ranks need, of which they have nothing.
    """
    loads = [0] * len(holders)
    found: dict[tuple[int, int], list[int]] = {}
    for to in sorted(wanted):
        for index in sorted(wanted[to]):
            source = min((rank for rank in range(len(holders)) if index in holders[rank]), key=lambda rank: loads[rank])
            loads[source] += sizes[index]
            found.setdefault((source, to), []).append(index)
    return found
