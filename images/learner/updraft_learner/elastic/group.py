"""The process group of one generation, over gloo: how its learners meet, exchange and hand over state.

gloo cannot interrupt a collective (`abort()` does nothing there, torch 2.15). So waiting is done in slices, and a
group in the middle of a collective is left alone: `_parked` keeps it and its tensors until gloo gives up by itself,
which no later group sees. A group is made directly, without `init_process_group`: old and new ones live side by side,
and the program may use torch.distributed for itself.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from updraft_learner.elastic.membership import Generation

SLICE = timedelta(milliseconds=20)
FIRST_SLICE, FIRST_SECONDS = timedelta(milliseconds=2), 0.05  # in which a collective of a small model is complete
POLL_SECONDS = 0.002
TELL_SECONDS = 0.2  # for a learner that gives up to find out whom it has not met
Value = TypeVar("Value")

_parked: list[tuple[Any, list[Any], list[torch.Tensor]]] = []


class Broken(Exception):
    """A learner of this generation is lost, or the coordinator says so.

    Attributes:
        waited: For how many seconds this learner had waited for the others.
        missing: Ranks that this learner has not met, while a generation formed.
    """

    def __init__(self, reason: str, waited: float, missing: Sequence[int] = ()) -> None:
        super().__init__(reason)
        self.waited, self.missing = waited, tuple(missing)


def serve_store(host: str) -> Any:
    """Start this process's rendezvous store, for the generations whose rank 0 it becomes."""
    return dist.TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))


class Group:
    """The learners of one generation.

    Args:
        plan: Of the generation.
        rank: Of this learner.
        own_store: What `serve_store` returned here.
        broken: Tells whether the generation is broken, so that waiting is useless.
        hang_seconds: How long to wait for the others, whatever they do.

    Raises:
        Broken: not everybody came.
    """

    def __init__(
        self, plan: Generation, rank: int, own_store: Any, broken: Callable[[], bool], hang_seconds: float
    ) -> None:
        self.rank, self.size = rank, len(plan.members)
        self._broken, self._hang_seconds = broken, hang_seconds
        self._working: list[tuple[Any, list[torch.Tensor]]] = []
        self._gloo: Any = None
        if self.size > 1:
            own = own_store if rank == 0 else None
            missing = [0] if rank else []  # until this learner has reached its store
            meet = lambda: _meet(plan, rank, own, broken, hang_seconds, missing)  # noqa: E731
            self._gloo = _in_thread(meet, broken, 2 * hang_seconds, missing)

    def sum(self, tensors: list[torch.Tensor]) -> None:
        """Replace each tensor by its sum over all ranks, bit for bit the same on each. Raises Broken."""
        if self._gloo is not None:
            self._finish([(self._start(lambda each=each: self._gloo.allreduce([each])), [each]) for each in tensors])  # type: ignore[misc]

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of all ranks, by rank; they have one shape and type. Raises Broken."""
        if self._gloo is None:
            return [tensor]
        given = tensor.contiguous().reshape(-1)
        found = torch.empty(self.size * given.numel(), dtype=given.dtype)
        self._finish([(self._start(lambda: self._gloo._allgather_base(found, given)), [found, given])])
        return [each.view(tensor.shape) for each in found.view(self.size, -1)]

    def exchange(self, given: list[torch.Tensor], sizes: list[int]) -> list[torch.Tensor]:
        """Send one tensor to each rank, and return what each rank sent to this one. Raises Broken.

        Args:
            given: By rank, of one dimension and one type; they may be empty.
            sizes: How many elements each rank sends to this one.
        """
        if self._gloo is None:
            return [given[0]]
        sent, found = torch.cat(given), torch.empty(sum(sizes), dtype=given[0].dtype)
        numbers = [each.numel() for each in given]
        self._finish([(self._start(lambda: self._gloo.alltoall_base(found, sent, sizes, numbers)), [found, sent])])
        return list(found.split(sizes))

    def broadcast(self, tensors: list[tuple[torch.Tensor, int]]) -> None:
        """Replace each tensor by that of the rank which is named with it; all at the same time. Raises Broken."""
        if self._gloo is None:
            return
        working = []
        for tensor, root in tensors:
            options = dist.BroadcastOptions()
            options.rootRank, options.rootTensor = root, 0
            start = lambda tensor=tensor, options=options: self._gloo.broadcast([tensor], options)  # noqa: E731
            working.append((self._start(start), [tensor]))
        self._finish(working)

    def broadcast_object(self, value: Any, root: int) -> Any:
        """Return the value of rank `root`: numbers, text, tensors, lists and dictionaries. Raises Broken."""
        if self._gloo is None:
            return value
        content = pack(value) if self.rank == root else torch.empty(0, dtype=torch.uint8)
        size = torch.tensor([content.numel()])
        self.broadcast([(size, root)])
        if self.rank != root:
            content = torch.empty(int(size), dtype=torch.uint8)
        self.broadcast([(content, root)])
        return value if self.rank == root else unpack(content)

    def close(self) -> None:
        """End the group, at once. The other learners notice."""
        for parked in [each for each in _parked if all(work.is_completed() for work in each[1])]:
            _parked.remove(parked)
        if self._gloo is not None and self._working:
            works, tensors = [work for work, _ in self._working], [each for _, some in self._working for each in some]
            _parked.append((self._gloo, works, tensors))
        last = [self._gloo]
        self._gloo, self._working = None, []
        if last[0] is not None:  # its end takes 20 ms: another thread drops the last reference
            threading.Thread(target=last.clear, name="updraft-elastic-close").start()

    def _start(self, act: Callable[[], Any]) -> Any:
        try:
            return act()
        except RuntimeError as exc:
            raise Broken(str(exc), 0.0) from exc

    def _finish(self, working: list[tuple[Any, list[torch.Tensor]]]) -> None:
        self._working = working
        began = time.monotonic()
        for work, _ in working:
            while not work.is_completed():
                try:
                    work.wait(FIRST_SLICE if time.monotonic() - began < FIRST_SECONDS else SLICE)
                except RuntimeError as exc:
                    waited = time.monotonic() - began
                    if work.is_completed():  # it failed, or it ended just after this slice of waiting
                        break
                    if self._broken():
                        raise Broken("another learner gave up this generation", waited) from exc
                    if waited > self._hang_seconds:
                        raise Broken(f"the others are silent for {waited:.1f} s", waited) from exc
            try:
                work.wait()
            except RuntimeError as exc:
                raise Broken(str(exc), time.monotonic() - began) from exc
        self._working = []


def pack(value: Any) -> torch.Tensor:
    """Return a value as bytes, a tensor of uint8."""
    packed = io.BytesIO()
    torch.save(value, packed)
    return torch.frombuffer(packed.getbuffer(), dtype=torch.uint8)


def unpack(content: torch.Tensor) -> Any:
    """Return the value that `pack` made bytes of."""
    return torch.load(io.BytesIO(content.numpy().tobytes()), weights_only=True)


def wait_for_switch(plan: Generation, give_up: Callable[[], bool]) -> bool:
    """Wait until rank 0 has begun to form the plan, which others have agreed on; False: not, or `give_up`."""

    def look() -> bool:
        store = dist.PrefixStore(_prefix(plan), _client(plan, 10.0))
        while not store.check(["here/0"]):
            if give_up():
                return False
            time.sleep(POLL_SECONDS)
        return True

    try:
        return _in_thread(look, give_up, float("inf"))
    except Broken:
        return False


def _meet(
    plan: Generation, rank: int, own_store: Any, broken: Callable[[], bool], seconds: float, missing: list[int]
) -> Any:
    """Return the process group of the generation. `missing` has the ranks that this learner has not met."""
    deadline = time.monotonic() + seconds
    base = own_store if own_store is not None else _client(plan, seconds)
    missing.clear()
    store = dist.PrefixStore(_prefix(plan), base)
    store.set(f"here/{rank}", "1")
    # gloo itself waits for a missing rank until its time is over, so nobody begins before all are there.
    everybody = [f"here/{each}" for each in range(len(plan.members))]
    while not store.check(everybody):
        if broken() or time.monotonic() > deadline:
            missing += [number for number, key in enumerate(everybody) if not store.check([key])]
            raise RuntimeError("not every learner came")
        time.sleep(POLL_SECONDS)
    options = dist.ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=seconds)
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=plan.members[rank].host, lazy_init=False)]
    return dist.ProcessGroupGloo(store, rank, len(plan.members), options)


def _client(plan: Generation, seconds: float) -> Any:
    first = plan.members[0]
    return dist.TCPStore(first.host, first.port, is_master=False, timeout=timedelta(seconds=seconds))


def _prefix(plan: Generation) -> str:
    return f"generation-{plan.generation}-{plan.token}"


def _in_thread(
    act: Callable[[], Value], give_up: Callable[[], bool], seconds: float, missing: Sequence[int] = ()
) -> Value:
    """Return what `act` returns; raise Broken if it fails, or as soon as it is no longer wanted, with what is in
    `missing` then.

    A store whose process is stopped does not answer, and torch waits for it without limit: such a thread is left alone.
    """
    done = threading.Event()
    found: list[Value] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(act())
        except BaseException as exc:  # noqa: BLE001 - handed to the waiting thread
            failed.append(exc)
        finally:
            done.set()

    began = time.monotonic()
    threading.Thread(target=run, name="updraft-elastic-meet", daemon=True).start()
    while not done.wait(SLICE.total_seconds()):
        if (give_up() or time.monotonic() - began > seconds) and not done.wait(TELL_SECONDS):
            raise Broken("not every learner came", time.monotonic() - began, missing)
    if failed:
        raise Broken(str(failed[0]), time.monotonic() - began, missing) from failed[0]
    return found[0]
