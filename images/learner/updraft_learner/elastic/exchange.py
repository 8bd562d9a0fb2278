"""One step's exchange: gradients, buffers and the leader's flag, summed over the learners in one go."""

from __future__ import annotations

from typing import Any

import torch

from updraft_learner.elastic.group import Group


class GradientExchange:
    """Sums what the learners of one generation computed.

    Gradients are weighted by samples, so that the sum is the gradient of the mean loss over the whole batch, however
    unequal the parts are. A parameter without gradient on all learners keeps none. Buffers (BatchNorm's averages)
    become those of rank 0, as with DistributedDataParallel.

    Its memory belongs to the generation: a collective that was given up may still write into it.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, group: Group) -> None:
        self._group = group
        self._parameters = _parameters(optimizer)
        self._buffers = list(model.buffers())
        by_type: dict[torch.dtype, list[int]] = {}
        for index, each in enumerate(self._parameters):
            by_type.setdefault(each.dtype, []).append(index)
        self._flat: list[tuple[torch.Tensor, list[tuple[int, torch.Tensor]]]] = []
        for dtype, indices in by_type.items():
            extra = 0 if self._flat else len(self._parameters) + 1
            flat = torch.zeros(sum(self._parameters[index].numel() for index in indices) + extra, dtype=dtype)
            views, begin = [], 0
            for index in indices:
                shape = self._parameters[index].shape
                views.append((index, flat[begin : begin + shape.numel()].view(shape)))
                begin += shape.numel()
            self._flat.append((flat, views))
        self._present = self._flat[0][0][-len(self._parameters) - 1 : -1]  # how many learners have this gradient
        self._flag = self._flat[0][0][-1:]
        self._bytes = torch.zeros(sum(each.numel() * each.element_size() for each in self._buffers), dtype=torch.uint8)

    def sum(self, weight: float, flag: int) -> int:
        """Replace this learner's gradients by the sum of all learners'. Return the sum of the flags.

        Args:
            weight: This learner's part of the samples of the step.
            flag: Small enough to be exact in the type of the parameters.

        Raises:
            Broken: gradients and buffers are as they were.
        """
        for _, views in self._flat:
            for index, view in views:
                gradient = self._parameters[index].grad
                if gradient is None:
                    view.zero_()
                else:
                    view.copy_(gradient).mul_(weight)
        self._present.copy_(torch.tensor([float(each.grad is not None) for each in self._parameters]))
        self._flag.fill_(flag)
        tensors = [flat for flat, _ in self._flat]
        if self._buffers:
            self._bytes.zero_()
            if self._group.rank == 0:
                torch.cat([_as_bytes(each) for each in self._buffers], out=self._bytes)
            tensors.append(self._bytes)
        self._group.sum(tensors)
        present = self._present.tolist()
        for _, views in self._flat:
            for index, view in views:
                parameter = self._parameters[index]
                if not present[index]:
                    parameter.grad = None
                elif parameter.grad is None:
                    parameter.grad = view.to(parameter.device, copy=True)
                else:
                    parameter.grad.copy_(view)
        if self._buffers and self._group.rank:
            begin = 0
            for each in self._buffers:
                size = each.numel() * each.element_size()
                copied = self._bytes[begin : begin + size].clone().view(each.dtype).view(each.shape)
                each.copy_(copied)
                begin += size
        return round(float(self._flag))


def check(optimizer: torch.optim.Optimizer) -> None:
    """Raise ValueError if the gradients cannot be exchanged."""
    if not _parameters(optimizer):
        raise ValueError("the optimizer has no parameters")
    for each in _parameters(optimizer):
        if not each.dtype.is_floating_point:
            raise ValueError(f"a parameter has the type {each.dtype}; elastic training exchanges floating-point ones")


def _parameters(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
