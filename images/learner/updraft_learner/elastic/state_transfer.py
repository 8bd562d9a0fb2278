"""Copies the training state to learners that do not have it, from all that do at the same time.

The first holder sends the structure of the state: everything but the contents of its tensors. Their contents, one after
the other, are one range of bytes; each holder sends another part of it. All holders have the same bits, so it does not
matter who sends which.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from updraft_learner.elastic.group import Group, pack, unpack
from updraft_learner.elastic.sample_order import bounds

ALIGNMENT = 64  # bytes: a tensor may be used where it arrives


def copy_state(group: Group, holders: list[int], state: Any) -> tuple[Any, int]:
    """Return the state of the holders, and how many bytes its tensors have. All ranks call it.

    Args:
        holders: Their ranks. The first one decides where its state differs from others'.
        state: Of this learner, if it is a holder.

    Raises:
        Broken: a learner is lost.
        RuntimeError: this holder's state has another structure than the first one's.
    """
    structure = group.broadcast_object(_structure(state) if group.rank == holders[0] else None, holders[0])
    sizes = [_padded(each) for each in _tensors(structure)]
    total = sum(sizes)
    receivers = [rank for rank in range(group.size) if rank not in holders]
    parts = {rank: bounds(total, number, len(holders)) for number, rank in enumerate(holders)}
    nothing = torch.empty(0, dtype=torch.uint8)
    if group.rank in parts:
        part = _bytes(list(_same(structure, state)), sizes, *parts[group.rank])
        given = [part if rank in receivers else nothing for rank in range(group.size)]
        group.exchange(given, [0] * group.size)
        return state, total
    expected = [parts[rank][1] - parts[rank][0] if rank in parts else 0 for rank in range(group.size)]
    content = torch.cat(group.exchange([nothing] * group.size, expected))
    begins = iter(_begins(sizes))
    return _filled(structure, content, begins), total


def warm_up(state: Any) -> None:
    """Do once what a copy of the state does, because the first time is slow."""
    structure = unpack(pack(_structure(state)))
    sizes = [_padded(each) for each in _tensors(structure)]
    content = _bytes(list(_same(structure, state)), sizes, 0, sum(sizes))
    _filled(structure, content, iter(_begins(sizes)))


def _structure(value: Any) -> Any:
    """Return the value with tensors that have a type and a shape, but no content."""
    if isinstance(value, torch.Tensor):
        return torch.empty(value.shape, dtype=value.dtype, device="meta")
    if isinstance(value, Mapping):
        found = copy.copy(value)  # with the versions of modules that a state_dict carries
        for key in value:
            found[key] = _structure(value[key])  # type: ignore[index]
        return found
    if type(value) in (list, tuple):
        return type(value)(_structure(each) for each in value)
    return value


def _tensors(structure: Any) -> Iterator[torch.Tensor]:
    if isinstance(structure, torch.Tensor):
        yield structure
    elif isinstance(structure, Mapping):
        for value in structure.values():
            yield from _tensors(value)
    elif type(structure) in (list, tuple):
        for value in structure:
            yield from _tensors(value)


def _same(structure: Any, state: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a state in the order of a structure."""
    if isinstance(structure, torch.Tensor):
        if not isinstance(state, torch.Tensor) or (state.shape, state.dtype) != (structure.shape, structure.dtype):
            raise RuntimeError(f"the learners' states differ: {type(state).__name__} where another has a tensor")
        yield state
    elif isinstance(structure, Mapping):
        for key, value in structure.items():
            if key not in state:
                raise RuntimeError(f"the learners' states differ: {key!r} is missing here")
            yield from _same(value, state[key])
    elif type(structure) in (list, tuple):
        for value, own in zip(structure, state, strict=True):
            yield from _same(value, own)


def _filled(structure: Any, content: torch.Tensor, begins: Iterator[int]) -> Any:
    """Return the structure with contents; its tensors share the memory of `content`."""
    if isinstance(structure, torch.Tensor):
        begin = next(begins)
        end = begin + structure.numel() * structure.element_size()
        return content[begin:end].view(structure.dtype).view(structure.shape)
    if isinstance(structure, Mapping):
        for key, value in structure.items():
            structure[key] = _filled(value, content, begins)  # type: ignore[index]
        return structure
    if type(structure) in (list, tuple):
        return type(structure)(_filled(each, content, begins) for each in structure)
    return structure


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the content of a tensor: uint8, one dimension, on the CPU; a view where that is possible."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _bytes(tensors: list[torch.Tensor], sizes: list[int], begin: int, end: int) -> torch.Tensor:
    """Return the bytes from `begin` to before `end` of the contents of tensors."""
    found = torch.zeros(end - begin, dtype=torch.uint8)
    for tensor, at, size in zip(tensors, _begins(sizes), sizes, strict=True):
        if at < end and at + size > begin:
            content = as_bytes(tensor)
            first, last = max(begin, at), min(end, at + content.numel())
            if first < last:
                found[first - begin : last - begin] = content[first - at : last - at]
    return found


def _begins(sizes: list[int]) -> list[int]:
    begins, at = [], 0
    for size in sizes:
        begins.append(at)
        at += size
    return begins


def _padded(tensor: torch.Tensor) -> int:
    size: int = tensor.numel() * tensor.element_size()
    return -(-size // ALIGNMENT) * ALIGNMENT
