"""One step's exchange: gradients, buffers and some numbers, summed over the learners in one go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from updraft_learner.elastic.group import Group
from updraft_learner.elastic.ordered_sum import OrderedSum, subtrees
from updraft_learner.elastic.sample_order import bounds
from updraft_learner.elastic.state_transfer import as_bytes

FLAGS = 2


class GradientExchange:
    """Sums what the learners of one generation computed: `add` what was computed here, then `sum`.

    Gradients are weighted by samples, so that the sum is the gradient of the mean loss over the whole batch, however
    unequal the parts are. A parameter without gradient on all learners keeps none. Buffers (BatchNorm's averages)
    become those of rank 0, as with DistributedDataParallel.

    Its memory belongs to the generation: a collective that was given up may still write into it.

    Args:
        further: How many more facts are summed, exactly up to 2**53.
        virtual_ranks: So many gradients are summed in the order of virtual ranks: the sum has the same bits, however
            many learners there are. 0: one of each learner, in the order that is fastest.

    Attributes:
        square_sum: Of the last step, the sum of the squared norms of the learners' gradients, without their weights.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        group: Group,
        virtual_ranks: int = 0,
        further: int = 0,
    ) -> None:
        self._group, self._virtual_ranks = group, virtual_ranks
        self._parameters = _parameters(optimizer)
        self._buffers = list(model.buffers())
        facts = len(self._parameters) + 1 + FLAGS + further
        self._exact = bool(virtual_ranks or further)  # the facts do not fit into the type of the gradients
        by_type: dict[torch.dtype, list[int]] = {}
        for index, each in enumerate(self._parameters):
            by_type.setdefault(each.dtype, []).append(index)
        self._flat: list[torch.Tensor] = []
        self._places: list[dict[int, tuple[int, int]]] = []  # of each parameter in the flat gradients of its type
        for dtype, indices in by_type.items():
            places, begin = {}, 0
            for index in indices:
                places[index] = begin, begin + self._parameters[index].numel()
                begin = places[index][1]
            # The facts travel with the gradients: a second all-reduce would cost as much as the first, if it is small.
            extra = 0 if self._flat or self._exact else facts
            self._flat.append(torch.zeros(begin + extra, dtype=dtype))
            self._places.append(places)
        self._facts = torch.zeros(facts, dtype=torch.float64) if self._exact else self._flat[0][-facts:]
        self._bytes = torch.zeros(sum(each.numel() * each.element_size() for each in self._buffers), dtype=torch.uint8)
        self.square_sum = 0.0
        self.clear()

    def clear(self) -> None:
        """Forget what was added."""
        self._present = [0] * len(self._parameters)
        self._square = 0.0
        self._sums = [OrderedSum(self._virtual_ranks) for _ in self._flat]
        self._added = False

    def add(self, virtual_rank: int, weight: float, with_square: bool = False) -> None:
        """Add the gradients that the parameters have now.

        Args:
            virtual_rank: Whose they are; without virtual ranks, any.
            weight: Its part of the samples of the step.
            with_square: Sum the squared norm too.
        """
        gradients = [each.grad for each in self._parameters]
        for index, gradient in enumerate(gradients):
            self._present[index] += gradient is not None
        if with_square:
            self._square += sum(float(each.double().square().sum()) for each in gradients if each is not None)
        for flat, places, ordered in zip(self._flat, self._places, self._sums, strict=True):
            target = torch.zeros(flat.numel(), dtype=flat.dtype) if self._virtual_ranks else flat
            for index, (begin, end) in places.items():
                gradient = gradients[index]
                if gradient is None:
                    target[begin:end].zero_()
                else:
                    target[begin:end].view(gradient.shape).copy_(gradient).mul_(weight)
            if self._virtual_ranks:
                ordered.add(virtual_rank, target)
        self._added = True

    def sum(self, flags: tuple[int, int], further: Sequence[float] = ()) -> tuple[tuple[int, int], list[float]]:
        """Replace this learner's gradients by the sum of all that was added. Return the sums of the flags and of the
        further facts.

        Args:
            flags: Small enough to be exact in the type of the parameters.

        Raises:
            Broken: gradients and buffers are as they were.
        """
        if not self._added and not self._virtual_ranks:
            for flat in self._flat:
                flat.zero_()
        facts = [*map(float, self._present), self._square, *map(float, flags), *further]
        self._facts.copy_(torch.tensor(facts, dtype=torch.float64))
        tensors = [self._facts] if self._exact else []
        if not self._virtual_ranks:
            tensors += self._flat
        if self._buffers:
            self._bytes.zero_()
            if self._group.rank == 0:
                torch.cat([as_bytes(each) for each in self._buffers], out=self._bytes)
            tensors.append(self._bytes)
        self._group.sum(tensors)
        summed = [self._in_order(each, flat) for each, flat in zip(self._sums, self._flat, strict=True)]
        found: list[float] = self._facts.tolist()
        number = len(self._parameters)
        present, self.square_sum = found[:number], found[number]
        first, second, *rest = found[number + 1 :]
        for flat, places in zip(summed, self._places, strict=True):
            for index, (begin, end) in places.items():
                parameter, value = self._parameters[index], flat[begin:end]
                if not present[index]:
                    parameter.grad = None
                elif parameter.grad is None:
                    parameter.grad = value.view(parameter.shape).to(parameter.device, copy=True)
                else:
                    parameter.grad.copy_(value.view(parameter.shape))
        if self._buffers and self._group.rank:
            begin = 0
            for each in self._buffers:
                size = each.numel() * each.element_size()
                copied = self._bytes[begin : begin + size].clone().view(each.dtype).view(each.shape)
                each.copy_(copied)
                begin += size
        self.clear()
        return (round(first), round(second)), rest

    def _in_order(self, own: OrderedSum, flat: torch.Tensor) -> torch.Tensor:
        """Return the sum over all virtual ranks: each learner adds up one range of all vectors, and sends it to all."""
        group, ranks = self._group, self._virtual_ranks
        if not ranks:
            return flat
        owned = [bounds(ranks, rank, group.size) for rank in range(group.size)]
        for virtual_rank in range(*owned[group.rank]):
            # No sample was left for this one. It is the last ones that have none.
            if not any(_covers(node, virtual_rank) for node in own.nodes):
                own.add(virtual_rank, torch.zeros_like(flat))
        if group.size == 1:
            total: torch.Tensor = own.total()
            return total
        each = -(-flat.numel() // group.size)
        pad = torch.nn.functional.pad
        mine = [
            pad(own.nodes[node], (0, each * group.size - flat.numel())).view(group.size, each)
            for node in subtrees(*owned[group.rank])
        ]
        nothing = torch.empty(0, dtype=flat.dtype)
        given = [torch.cat([node[rank] for node in mine]) if mine else nothing for rank in range(group.size)]
        nodes = [subtrees(*parts) for parts in owned]
        received = group.exchange(given, [each * len(some) for some in nodes])
        ordered = OrderedSum(ranks)
        for some, values in zip(nodes, received, strict=True):
            ordered.nodes.update(zip(some, values.split(each), strict=True) if some else ())
        return torch.cat(group.gather(ordered.total()))[: flat.numel()]


def check(optimizer: torch.optim.Optimizer) -> None:
    """Raise ValueError if the gradients cannot be exchanged."""
    if not _parameters(optimizer):
        raise ValueError("the optimizer has no parameters")
    for each in _parameters(optimizer):
        if not each.dtype.is_floating_point:
            raise ValueError(f"a parameter has the type {each.dtype}; elastic training exchanges floating-point ones")


def _parameters(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]


def _covers(node: tuple[int, int], virtual_rank: int) -> bool:
    level, index = node
    return virtual_rank >> level == index
