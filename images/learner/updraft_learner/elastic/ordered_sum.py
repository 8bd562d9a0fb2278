"""Sums of floating-point numbers that have the same bits, however many learners compute them.

Floating-point addition is not associative, so the order of the additions decides about the last bits. Here it is a
binary tree over a fixed number of virtual ranks: virtual rank 0 and 1 are added, 2 and 3 are, then both sums, and so
on. A learner adds up the subtrees whose leaves are all its own, and sends nothing but their sums.
"""

from __future__ import annotations

from typing import Any

Node = tuple[int, int]  # level and index: the leaves from index * 2**level to before (index + 1) * 2**level


def subtrees(begin: int, end: int) -> list[Node]:
    """Return the largest whole subtrees over the leaves from `begin` to before `end`, from left to right."""
    found = []
    while begin < end:
        level = 0
        while begin % (2 << level) == 0 and begin + (2 << level) <= end:
            level += 1
        found.append((level, begin >> level))
        begin += 1 << level
    return found


class OrderedSum:
    """The sum of one value for each virtual rank.

    Args:
        virtual_ranks: How many there are.

    Attributes:
        nodes: Sums of subtrees. Values are tensors, or anything else that can be added.
    """

    def __init__(self, virtual_ranks: int) -> None:
        self._virtual_ranks = virtual_ranks
        self.nodes: dict[Node, Any] = {}

    def add(self, virtual_rank: int, value: Any) -> None:
        """Add the value of one virtual rank. Call it in ascending order: neighbours are summed as soon as possible."""
        level, index = 0, virtual_rank
        while index % 2 and (level, index - 1) in self.nodes:
            value = self.nodes.pop((level, index - 1)) + value
            level, index = level + 1, index // 2
        self.nodes[level, index] = value

    def total(self) -> Any:
        """Return the sum. Raises KeyError if the value of a virtual rank is missing."""
        return self._sum(max(0, (self._virtual_ranks - 1).bit_length()), 0)

    def _sum(self, level: int, index: int) -> Any:
        if (level, index) in self.nodes:
            return self.nodes[level, index]
        if level == 0:
            raise KeyError(f"the value of virtual rank {index} is missing")
        left = self._sum(level - 1, 2 * index)
        if (2 * index + 1) << (level - 1) >= self._virtual_ranks:
            return left
        return left + self._sum(level - 1, 2 * index + 1)
