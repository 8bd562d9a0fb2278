"""The loop of an elastic program: `init`, the iterator and `step`. The package's docstring shows them in use."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, default_collate

from updraft_learner.elastic import exchange
from updraft_learner.elastic.errors import LearnerFenced
from updraft_learner.elastic.group import Broken, Group, serve_store, wait_for_switch
from updraft_learner.elastic.link import Link
from updraft_learner.elastic.member_state import MemberState
from updraft_learner.elastic.membership import Generation, Peer
from updraft_learner.elastic.prefetcher import Prefetcher
from updraft_learner.elastic.sample_order import DataCursor, SampleOrder, share

ADDRESS_ENV = "UPDRAFT_ELASTIC"
HANG_ENV = "UPDRAFT_ELASTIC_HANG_SECONDS"
HANG_SECONDS = 60.0
FAREWELL_SECONDS = 5.0  # how long a learner that leaves waits until the others have formed their generation


@dataclass(frozen=True)
class GroupChange:
    """How long this learner stood still for a change of its group.

    Attributes:
        cause: "start", "switch" (agreed on), or "loss" (of a learner).
        meet_seconds: Until everybody was connected; for a loss also the wait for the coordinator's decision.
        copy_seconds: Until those without the newest state had it.
    """

    generation: int
    learners: int
    cause: str
    meet_seconds: float
    copy_seconds: float


def init(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Any,
    *,
    batch: int,
    epochs: int,
    seed: int = 0,
    also: Mapping[str, Any] | None = None,
    warm_up: Callable[[], torch.Tensor] | None = None,
    collate: Callable[[list[Any]], Any] = default_collate,
    ahead: int = 2,
    hang_seconds: float | None = None,
    address: str | None = None,
    name: str | None = None,
) -> Training:
    """Prepare this learner; the others train on meanwhile. It joins them when its loop begins.

    Args:
        model: The model itself, not DistributedDataParallel's replica. All learners get the parameters of one.
        optimizer: Of the parameters whose gradients are exchanged.
        data: A map-style data set: `len(data)` and `data[index]`, the same on all learners.
        batch: Samples of one step, all learners together. It stays the same, however many they are.
        epochs: How often each sample is used.
        seed: Of the order of the samples. Like batch and epochs, it must be the same on all learners.
        also: More that belongs to the training state, by name: objects with state_dict and load_state_dict, such as a
            learning-rate scheduler. The program changes them after a `step` that returned True, and only then.
        warm_up: Returns a loss of any input of the usual shape. It is called once, so that the first step is as fast
            as the others; it changes nothing.
        collate: Makes a batch of a list of samples.
        ahead: How many steps' samples are fetched ahead, in threads.
        hang_seconds: A learner that keeps the others waiting for longer is lost. Longer than any step takes. By
            default UPDRAFT_ELASTIC_HANG_SECONDS, else 60.
        address: Of the coordinator, "host:port"; by default UPDRAFT_ELASTIC. Without one this learner trains alone.
        name: Of this learner, never used before; by default one is made.

    Raises:
        TypeError: the data or the model are of a kind that cannot be elastic; the message says what to use.
        ValueError: a number is out of range.
    """
    _refuse(model, data)
    exchange.check(optimizer)
    order = SampleOrder(len(data), batch, epochs, seed)
    address = address or os.environ.get(ADDRESS_ENV) or None
    if hang_seconds is None:
        hang_seconds = float(os.environ.get(HANG_ENV) or HANG_SECONDS)
    name = name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    training = Training(
        model, optimizer, order, Prefetcher(order, data, collate, ahead), dict(also or {}), hang_seconds
    )
    training._prepare(warm_up)
    training._register(name, address)
    return training


class Training:
    """One learner's part of an elastic training. `init` makes it; iterate over it once.

    Attributes:
        steps: Committed steps of the whole training that this learner's state includes.
        outcome: Empty while it trains; then "finished", "left", or "unneeded": the training ended before this learner
            could join. Only after "finished" the model is the result.
        changes: Of its group, oldest first.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        order: SampleOrder,
        prefetcher: Prefetcher,
        also: dict[str, Any],
        hang_seconds: float,
    ) -> None:
        self._model, self._optimizer, self._also = model, optimizer, also
        self._order, self._prefetcher = order, prefetcher
        self._hang_seconds = hang_seconds
        self.steps = 0
        self.outcome = ""
        self.changes: list[GroupChange] = []
        self._cursor = DataCursor()
        self._store: Any = None
        self._link: Link | None = None
        self._group: Group | None = None
        self._exchange: exchange.GradientExchange | None = None
        self._buffers: list[torch.Tensor] = []  # as they were before this step's forward pass
        self._weight = 0.0
        self._drawn = self._started = False
        self._next: Generation | None = None  # to switch to before the next step
        self._waited: float | None = None  # the generation is given up, after so many seconds

    @property
    def epoch(self) -> int:
        """Return the epoch of the current batch, from 0."""
        return self._cursor.epoch

    @property
    def generation(self) -> int:
        with self._linked().locked() as member:
            return member.generation

    @property
    def rank(self) -> int:
        return self._group.rank if self._group else 0

    @property
    def learners(self) -> int:
        """Return how many learners share the current step."""
        return self._group.size if self._group else 0

    def leave(self) -> None:
        """Ask to leave. The loop ends at the next switch; until then this learner trains on. The last one stays."""
        with self._linked().locked() as member:
            member.leaving = True
            self._linked().send({"type": "leave"})

    def state_dict(self) -> dict[str, Any]:
        """Return the whole training state, for a checkpoint. In the loop, call it before `step` or after it."""
        return {
            "model": self._model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "also": {name: each.state_dict() for name, each in self._also.items()},
            "steps": self.steps,
            "cursor": [self._cursor.epoch, self._cursor.position],
            "order": self._order.as_json(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; before the loop, and the same on all learners.

        Raises:
            ValueError: it is of a training with other data, batch, epochs or seed.
        """
        if state["order"] != self._order.as_json():
            raise ValueError(
                f"the state is of a training with {state['order']}, this learner has {self._order.as_json()}"
            )
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        for name, each in self._also.items():
            each.load_state_dict(state["also"][name])
        self.steps = int(state["steps"])
        self._cursor = DataCursor(*state["cursor"])

    def __iter__(self) -> Iterator[Any]:
        """Yield this learner's part of each step.

        Raises:
            LearnerFenced: the others went on without this learner.
        """
        if self._started:
            raise RuntimeError("a training is iterated once; it goes through all epochs by itself")
        self._started = True
        try:
            self._join()
            while not self.outcome:
                if self._waited is not None:
                    self._recover()
                elif self._next is not None:
                    self._switch(self._next)
                elif self._order.finished(self._cursor):
                    self._finish()
                else:
                    yield from self._one_step()
        finally:
            self._close()

    def step(self, loss: torch.Tensor) -> bool:
        """Do the backward pass, exchange gradients, update the parameters and clear the gradients.

        Args:
            loss: The mean over this learner's batch.

        Returns:
            Whether the step is committed. If not, a learner was lost: the model is as before, and the loop goes on with
            the same samples, shared among those who are left.

        Raises:
            LearnerFenced: the others went on without this learner.
            RuntimeError: it is not called once for each batch of the loop.
        """
        if not self._drawn:
            raise RuntimeError(
                "step() belongs to a batch of the training: write `for batch in training:` around it, instead of a "
                "loop over a DataLoader, and call it once for each batch"
            )
        self._drawn = False
        loss.backward()
        return self._commit()

    def _one_step(self) -> Iterator[Any]:
        indices = self._order.draw(self._cursor)
        mine = share(indices, self.rank, self.learners)
        self._weight = len(mine) / len(indices)
        with torch.no_grad():
            self._buffers = [each.detach().clone() for each in self._model.buffers()]
        if not mine:
            self._commit()
            return
        batch = self._prefetcher.get(self._cursor)
        self._drawn = True
        yield batch
        if self._drawn:
            raise RuntimeError("the last batch was not used: call training.step(loss) once for each batch")

    def _commit(self) -> bool:
        with torch.no_grad():
            return self._exchange_and_update()

    def _exchange_and_update(self) -> bool:
        assert self._exchange is not None
        with self._linked().locked() as member:
            flag = member.flag()
        try:
            if self._is_broken():
                raise Broken("another learner gave up this generation", 0.0)
            flag = self._exchange.sum(self._weight, flag)
        except Broken as exc:
            self._optimizer.zero_grad()
            for buffer, before in zip(self._model.buffers(), self._buffers, strict=True):
                buffer.copy_(before)
            self._waited = exc.waited
            return False
        with self._linked().locked() as member:
            _raise_if_fenced(member)
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._cursor = self._order.after(self._cursor)
        self.steps += 1
        with self._linked().locked() as member:
            member.step = self.steps
            self._next = member.agreed(flag)
        return True

    def _join(self) -> None:
        """Become a member of a generation, the first or a later one."""
        self._linked().start()
        began = time.monotonic()
        while True:
            found = self._linked().wait(_for_newcomer)
            assert found is not None
            plan, offered = found
            if plan is not None:
                return self._form(plan, "start", began)
            if offered is None:
                return self._recover()
            if wait_for_switch(offered, lambda offered=offered: self._moved_on(offered)):  # type: ignore[misc]
                return self._form(offered, "start", time.monotonic())
            time.sleep(0.01)

    def _moved_on(self, offered: Generation) -> bool:
        with self._linked().locked() as member:
            return member.offered() != offered or bool(member.target or member.fenced or member.finished)

    def _switch(self, plan: Generation) -> None:
        self._next = None
        with self._linked().locked() as member:
            staying = member.me.name in plan.names
        if staying:
            return self._form(plan, "switch", time.monotonic())
        self._linked().wait(lambda member: member.left or member.is_broken() or None, FAREWELL_SECONDS)
        with self._linked().locked() as member:
            needed = member.is_broken() and not (member.left or member.fenced)
        if needed:  # the others failed to form the generation; this learner still has the state
            self._waited = 0.0
        else:
            self.outcome = "left"

    def _recover(self) -> None:
        """Report the newest step, wait for the next generation, and form it."""
        began = time.monotonic()
        self._drop_group()
        self._next = None
        with self._linked().locked() as member:
            if not member.finished:
                self._linked().send(member.report(self._waited or 0.0))
        self._waited = None
        self._linked().wait(lambda member: member.fenced or member.target or member.left or member.finished or None)
        with self._linked().locked() as member:
            plan, left = member.target, member.left
            if plan is None and not left:
                _raise_if_fenced(member)
        if plan is None:
            self.outcome = "left" if left else "unneeded"
        else:
            self._form(plan, "loss", began)

    def _form(self, plan: Generation, cause: str, began: float) -> None:
        with self._linked().locked() as member:
            member.trying(plan)
            me = member.me.name
        try:
            group = Group(plan, plan.names.index(me), self._store, self._is_broken, self._hang_seconds)
            met = time.monotonic()
            self._drop_group()
            self._group = group
            self._copy_state(plan, group, me)
        except Broken as exc:
            self._waited = exc.waited
            return
        self._exchange = exchange.GradientExchange(self._model, self._optimizer, group)
        self._prefetcher.regroup(group.rank, group.size)
        with self._linked().locked() as member:
            self._linked().send(member.formed(plan, self.steps))
        self.changes.append(GroupChange(plan.generation, group.size, cause, met - began, time.monotonic() - met))

    def _copy_state(self, plan: Generation, group: Group, me: str) -> None:
        holds = me in plan.holders
        if len(plan.holders) < len(plan.members):
            root = plan.names.index(plan.holders[0])
            state = group.copy_from(root, self.state_dict() if group.rank == root else None)
            if not holds:
                self.load_state_dict(state)
        with self._linked().locked() as member:
            member.step = self.steps

    def _finish(self) -> None:
        """End, once everybody has the last step."""
        assert self._group is not None
        try:
            self._group.sum([torch.ones(1)])
        except Broken as exc:
            self._waited = exc.waited
            return
        with self._linked().locked() as member:
            _raise_if_fenced(member)
        self._linked().send({"type": "done"})
        self.outcome = "finished"

    def _is_broken(self) -> bool:
        with self._linked().locked() as member:
            return member.is_broken()

    def _drop_group(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = self._exchange = None

    def _close(self) -> None:
        self._drop_group()
        self._linked().close()
        self._prefetcher.close()

    def _linked(self) -> Link:
        assert self._link is not None
        return self._link

    def _prepare(self, warm_up: Callable[[], torch.Tensor] | None) -> None:
        """Do what is slow the first time, on a group of this learner alone."""
        alone = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
        alone.allreduce([torch.zeros(1)]).wait()
        if warm_up is None:
            return
        before = [each.detach().clone() for each in self._model.buffers()]
        warm_up().backward()
        self._optimizer.zero_grad()
        with torch.no_grad():
            for buffer, value in zip(self._model.buffers(), before, strict=True):
                buffer.copy_(value)

    def _register(self, name: str, address: str | None) -> None:
        to = None
        if address is not None:
            host, _, port = address.rpartition(":")
            to = (host, int(port))
        here = _own_host(to)
        self._store = serve_store(here)
        member = MemberState(Peer(name, here, self._store.port))
        if to is None:
            member.target = Generation(1, "alone", (member.me,), (member.me.name,))
        self._link = Link(member, to)


def _for_newcomer(member: MemberState) -> tuple[Generation | None, Generation | None] | None:
    """Return the plan to form, or the offered one; neither: look at the state. None: wait."""
    if member.fenced or member.finished or member.must_report():
        return None, None
    offered = member.offered()
    return (member.target, offered) if member.target or offered else None


def _raise_if_fenced(member: MemberState) -> None:
    if member.fenced:
        raise LearnerFenced(member.fenced)


def _own_host(coordinator: tuple[str, int] | None) -> str:
    """Return the address under which the other learners reach this process."""
    if coordinator is None:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
        probe.connect(coordinator)
        return str(probe.getsockname()[0])


def _refuse(model: Any, data: Any) -> None:
    if isinstance(data, IterableDataset):
        raise TypeError(
            f"{type(data).__name__} is an IterableDataset: nobody can tell which of its samples are used already. Give "
            "a map-style data set (__len__ and __getitem__), for example one that reads a sample by its offset in a "
            "file; or do without updraft_learner.elastic: the platform then resizes by checkpoint and relaunch"
        )
    if isinstance(data, DataLoader):
        raise TypeError("give the data set itself, not its DataLoader: the training draws the batches")
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise TypeError(f"{type(data).__name__} has no length or no index; give a map-style data set")
    if isinstance(model, DistributedDataParallel):
        raise TypeError("give the model itself, not DistributedDataParallel's replica: step() exchanges the gradients")
