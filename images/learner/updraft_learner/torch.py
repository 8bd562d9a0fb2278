"""Handle checkpoints of PyTorch states: a copy of the state that costs one memcpy, and its file.

The training thread copies tensors into CPU buffers that are reused for each save (pinned for CUDA tensors). A
background thread then serialises the buffers while training continues. Files are plain `torch.save` files, which
`torch.load(weights_only=True)` reads with or without this package.

A sharded state (FSDP, DTensor) goes through torch.distributed.checkpoint, which writes one file per rank and
`.metadata`, and can read them with any other number of ranks. This is the only module here that imports torch when it
is imported.
"""

from __future__ import annotations

import atexit
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch

from updraft_learner.checkpoint_format import CheckpointError

# What torch.load(weights_only=True) accepts besides tensors and containers.
_PLAIN_TYPES = (int, float, bool, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, Counter)


class StateBuffers:
    """CPU buffers for one copy of a state, reused while its tensors keep their shapes."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    def missing(self, state: Any) -> list[tuple[str, torch.Tensor, bool]]:
        """Name, shape (as a tensor without storage) and whether pinned, of the buffers that `state` still needs."""
        wanted = []
        for name, tensor in _tensors(state, "state"):
            if not self._fits(name, tensor) and tensor.layout == torch.strided:
                wanted.append((name, torch.empty_like(tensor.detach(), device="meta"), tensor.is_cuda))
        return wanted

    def reserve(self, wanted: list[tuple[str, torch.Tensor, bool]]) -> None:
        """Allocate buffers and touch their pages: the slow part of a first save, which a background thread can do."""
        for name, shape, pinned in wanted:
            self._buffers[name] = torch.empty_like(shape, device="cpu", pin_memory=pinned).zero_()

    def copy(self, state: Any) -> Any:
        """Return a copy of `state` whose tensors are buffers; valid until the next copy.

        Raises:
            TypeError: the state holds something that could not be loaded again with `weights_only=True`.
        """
        self.reserve(self.missing(state))
        seen: dict[tuple[Any, ...], torch.Tensor] = {}
        cuda = False

        def copy_tensor(name: str, tensor: torch.Tensor) -> torch.Tensor:
            nonlocal cuda
            if is_sharded(tensor):
                raise TypeError(
                    f"{name} is a {type(tensor).__qualname__}: each rank holds a shard of it; use ShardedCheckpointer"
                )
            if tensor.layout != torch.strided:
                return tensor.detach().to("cpu", copy=True)
            key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
            if tensor.numel() and key in seen:  # tied weights stay tied, and are written once
                return seen[key]
            buffer = self._buffers[name]
            buffer.copy_(tensor.detach(), non_blocking=tensor.is_cuda)
            cuda = cuda or tensor.is_cuda
            seen[key] = buffer
            return buffer

        copied = _map(state, "state", copy_tensor)
        if cuda:
            torch.cuda.synchronize()
        return copied

    def _fits(self, name: str, tensor: torch.Tensor) -> bool:
        buffer = self._buffers.get(name)
        return (
            buffer is not None
            and buffer.shape == tensor.shape
            and buffer.dtype == tensor.dtype
            and buffer.is_pinned() == tensor.is_cuda
        )


def size_bytes(wanted: list[tuple[str, torch.Tensor, bool]]) -> int:
    return sum(shape.numel() * shape.element_size() for _, shape, _ in wanted)


def is_sharded(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "to_local") or hasattr(tensor, "local_shards")


def write_state(state: Any, file: BinaryIO) -> None:
    torch.save(state, file)


def read_state(path: Path, map_location: Any) -> Any:
    return torch.load(path, map_location=map_location, weights_only=True)


class Ranks:
    """The ranks that save one checkpoint together; every rank makes every call.

    `front` and `behind` are separate CPU process groups, so that messages of the saving thread never mix with those of
    the training thread. Ranks with the same `place` share a directory: together they write one part, which `leader`
    completes.
    """

    def __init__(self, place: str) -> None:
        import torch.distributed as dist

        self.distributed = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self.rank = dist.get_rank() if self.distributed else 0
        self.front = dist.new_group(backend="gloo") if self.distributed else None
        self.behind = dist.new_group(backend="gloo") if self.distributed else None
        if not self.distributed:  # PyTorch warns of a single process, which is allowed here
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        places = self.gather(place)
        order = list(dict.fromkeys(places))
        self.part, self.parts = order.index(place) + 1, len(order)
        self.leader_rank = places.index(place)
        self.leader = self.leader_rank == self.rank
        if self.distributed:
            atexit.register(self.close)

    def close(self) -> None:
        """End both groups and join their threads. The other ranks are not asked.

        A thread that needs the interpreter's lock (to free a tensor) while the interpreter ends is ended by it, which
        aborts the process: `terminate called without an active exception`. The threads of a group end only when
        nothing refers to the group any more, also after `destroy_process_group()`.
        """
        import torch.distributed as dist

        groups, self.front, self.behind = (self.front, self.behind), None, None
        if dist.is_initialized():
            for group in groups:
                if group is not None:
                    dist.destroy_process_group(group)

    def connected(self) -> bool:
        """Return whether the ranks can still speak: a program may destroy its process group before it ends."""
        import torch.distributed as dist

        return not self.distributed or dist.is_initialized()

    def gather(self, value: Any, *, behind: bool = False) -> list[Any]:
        """Return the value of every rank, in order of the ranks."""
        if not self.distributed:
            return [value]
        import torch.distributed as dist

        group = self.behind if behind else self.front
        found: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(found, value, group=group)
        return found


class ShardBuffers:
    """Like `StateBuffers`, for a state that may contain DTensors: each rank copies its own shards."""

    def __init__(self) -> None:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        cuda = torch.cuda.is_available()
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=cuda, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=cuda
            )
        )

    def copy(self, state: Any) -> Any:
        """Return a copy of `state`, valid until the next copy. Raises TypeError as `StateBuffers.copy` does."""
        return self._stager.stage(_map(state, "state", lambda _, tensor: tensor))


def write_shards(state: Any, folder: Path, ranks: Ranks) -> None:
    """Write every rank's shards into its `folder`, flushed, and on rank 0 also their description. Runs in the
    background."""
    import torch.distributed.checkpoint as dcp

    writer = dcp.FileSystemWriter(folder, single_file_per_rank=True, sync_files=True)
    with _one_sentence():
        dcp.save(state, storage_writer=writer, process_group=ranks.behind, no_dist=not ranks.distributed)


def read_shards(into: dict[str, Any], folder: Path, ranks: Ranks) -> None:
    """Fill the tensors of `into` from a folder with the shards of all ranks; numbers and text are replaced in it."""
    import torch.distributed.checkpoint as dcp

    reader = dcp.FileSystemReader(folder)
    with _one_sentence():
        dcp.load(into, storage_reader=reader, process_group=ranks.front, no_dist=not ranks.distributed)


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Turn PyTorch's own error, which is no Exception and holds the tracebacks of all ranks, into one sentence."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as exc:
        said: dict[str, int] = {}
        for rank, (error, _) in sorted(exc.failures.items()):
            said.setdefault((str(error).strip() or type(error).__name__).splitlines()[0], rank)
        text = "; ".join(f"rank {rank}: {reason}" for reason, rank in said.items())
        raise CheckpointError(text) from exc


def _map(value: Any, name: str, copy_tensor: Callable[[str, torch.Tensor], torch.Tensor]) -> Any:
    """Rebuild `value` with its tensors replaced; containers are copied, so that later changes do not reach the file."""
    if isinstance(value, torch.Tensor):
        return copy_tensor(name, value)
    if type(value) in _PLAIN_TYPES:
        return value
    if isinstance(value, dict):
        items = [(_plain_key(key, name), _map(item, f"{name}[{key!r}]", copy_tensor)) for key, item in value.items()]
        if not isinstance(value, OrderedDict):
            return dict(items)
        ordered = OrderedDict(items)
        if hasattr(value, "_metadata"):  # the modules' versions, which load_state_dict needs
            ordered._metadata = dict(value._metadata)  # type: ignore[attr-defined]
        return ordered
    if type(value) in (list, tuple):
        return type(value)(_map(item, f"{name}[{index}]", copy_tensor) for index, item in enumerate(value))
    if type(value) is set:
        return {_plain_key(item, name) for item in value}
    if type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    raise TypeError(
        f"{name} is a {type(value).__module__}.{type(value).__qualname__}, which a checkpoint cannot hold; allowed are "
        "tensors, numbers, text, None and dicts, lists, tuples and sets of them (an object's .state_dict(), "
        "torch.from_numpy() for an array)"
    )


def _plain_key(key: Any, name: str) -> Any:
    if type(key) in (int, float, bool, str, bytes, type(None)):
        return key
    if type(key) is tuple:
        return tuple(_plain_key(part, name) for part in key)
    raise TypeError(f"{name} has the key {key!r}, a {type(key).__qualname__}; keys are numbers or text")


def _tensors(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(item, f"{name}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _tensors(item, f"{name}[{index}]")
