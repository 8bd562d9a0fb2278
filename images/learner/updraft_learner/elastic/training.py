"""The loop of an elastic program: `init`, the iterator and `step`. The package's docstring shows them in use."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, default_collate

from updraft_learner import contract, runtime
from updraft_learner.checkpoint import Checkpointer
from updraft_learner.elastic import exchange
from updraft_learner.elastic.errors import LearnerFenced, StateLost
from updraft_learner.elastic.group import Broken, Group, serve_store, wait_for_switch
from updraft_learner.elastic.learning_rate import GrownRate
from updraft_learner.elastic.link import Link
from updraft_learner.elastic.member_state import MemberState
from updraft_learner.elastic.membership import Generation, Peer
from updraft_learner.elastic.optimizer_shards import OptimizerShards
from updraft_learner.elastic.prefetcher import Prefetcher, seed_all
from updraft_learner.elastic.sample_order import SampleOrder
from updraft_learner.elastic.samples import SampleSource
from updraft_learner.elastic.saving import Saving
from updraft_learner.elastic.shard_order import ShardOrder
from updraft_learner.elastic.shard_reader import ShardReader, Shards
from updraft_learner.elastic.state_transfer import copy_state
from updraft_learner.elastic.state_transfer import warm_up as warm_up_transfer
from updraft_learner.elastic.step_reports import StepReports

HANG_SECONDS = 60.0
RESOLVE_SECONDS = 120.0  # for the coordinator's name, which a cluster gives to it once its pod has an address
SAY_SECONDS = 15.0  # after which a learner says that it waits for the others
MOST_LANES = 16  # by default
FAREWELL_SECONDS = 5.0  # how long a learner that leaves waits until the others have formed their generation


@dataclass(frozen=True)
class GroupChange:
    """How long this learner stood still for a change of its group.

    Attributes:
        cause: "start", "switch" (agreed on), or "loss" (of a learner).
        meet_seconds: Until everybody was connected; for a loss also the wait for the coordinator's decision.
        copy_seconds: Until those without the newest state had it.
        copied_bytes: How much was sent for that to each learner that had nothing; of the optimizer's state in parts,
            what this learner received.
    """

    generation: int
    learners: int
    cause: str
    meet_seconds: float
    copy_seconds: float
    copied_bytes: int = 0


def init(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Any,
    *,
    batch: int,
    epochs: int,
    seed: int = 0,
    grow: str | None = None,
    virtual_ranks: int = 0,
    sharded: bool = False,
    also: Mapping[str, Any] | None = None,
    after_step: Callable[[], object] | None = None,
    warm_up: Callable[[], torch.Tensor] | None = None,
    collate: Callable[[list[Any]], Any] = default_collate,
    ahead: int = 2,
    workers: int = 0,
    checkpoints: Checkpointer | None = None,
    lanes: int | None = None,
    hang_seconds: float | None = None,
    address: str | None = None,
    name: str | None = None,
) -> Training:
    """Prepare this learner; the others train on meanwhile. It joins them when its loop begins.

    Args:
        model: The model itself, not DistributedDataParallel's replica. All learners get the parameters of one.
        optimizer: Of the parameters whose gradients are exchanged.
        data: A map-style data set: `len(data)` and `data[index]`, the same on all learners. Or one in shards:
            `data.shards()`, and `data.open(shard, offset)`, which yields the samples of a shard from an offset on.
        batch: Samples of one step, all learners together. It stays the same, however many they are; see `grow`.
        epochs: How often each sample is used.
        seed: Of the order of the samples. Like batch and epochs, it must be the same on all learners.
        grow: "linear", "sqrt" or "adascale": the batch is that of one learner, so a step has more samples if there are
            more learners, and the learning rate of each update is multiplied: by their number, by its square root, or
            by AdaScale's gain, which is measured.
        virtual_ranks: Compute each step in so many parts, whatever the number of learners: the training has the same
            bits with any of them, and with any change of it. A learner then has several parts of each step, one after
            the other. PyTorch's random numbers, those of `random` and of NumPy are a function of the seed, the step and
            the part; a data set that uses them needs `workers`. BatchNorm's averages are those of part 0. All learners
            must compute alike: the same kind of processor, the same number of threads. 0: each learner computes one.
        sharded: Hold the optimizer's state of each parameter on two learners instead of all of them. For optimizers
            that update a parameter from its own gradient and state, as most of torch.optim's do.
        also: More that belongs to the training state, by name: objects with state_dict and load_state_dict, such as a
            learning-rate scheduler. They change in `after_step`, and only there.
        after_step: Is called after each committed step on each learner, such as `scheduler.step`.
        warm_up: Returns a loss of any input of the usual shape. It is called once, so that the first step is as fast
            as the others; it changes nothing.
        collate: Makes a batch of a list of samples.
        ahead: How many steps' samples are fetched ahead.
        workers: Processes that fetch samples; 0: threads do, which suits data sets that wait more than they compute.
        checkpoints: Go on from its newest checkpoint, save the training state as often as it says, and once more when
            the platform asks the job to stop, which then ends the program. Rank 0 saves, whichever learner that is.
            Not with `sharded`.
        lanes: How many shards are read at the same time, by all learners together, if the data set is in shards. A
            learner has no samples if there are more learners than lanes. By default 16, if there are as many shards
            and the batch is as large.
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
    if grow is not None and virtual_ranks:
        raise ValueError("grow and virtual_ranks exclude each other: with virtual ranks the batch is fixed")
    if checkpoints is not None and sharded:
        raise ValueError("checkpoints and sharded exclude each other: save the state_dict() of each learner yourself")
    if workers < 0:
        raise ValueError(f"workers is {workers}; it must be at least 0")
    grown = GrownRate(grow, batch) if grow is not None else None
    samples: SampleSource
    if _is_in_shards(data):
        if grown is not None or workers:
            option = "grow" if grown is not None else "workers"
            raise ValueError(f"{option} does not go with a data set in shards; leave it out")
        number = len(data.shards())
        lanes = min(MOST_LANES, number, batch) if lanes is None else min(lanes, number)
        shard_order = ShardOrder(number, lanes, batch, epochs, seed, virtual_ranks)
        samples = ShardReader(shard_order, data, collate, ahead)
    else:
        order = SampleOrder(len(data), batch, epochs, seed, virtual_ranks, grows=grown is not None)
        samples = Prefetcher(order, data, collate, ahead, workers)
    started_by_platform = address is None and contract.ELASTIC_ENV in os.environ
    address = address or os.environ.get(contract.ELASTIC_ENV) or None
    if hang_seconds is None:
        hang_seconds = float(os.environ.get(contract.ELASTIC_HANG_ENV) or HANG_SECONDS)
    name = name or f"{os.environ.get('LEARNER_ID') or socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    training = Training(
        model,
        optimizer,
        samples,
        dict(also or {}),
        hang_seconds,
        after_step=after_step,
        virtual_ranks=virtual_ranks,
        grown=grown,
        shards=OptimizerShards(optimizer) if sharded else None,
    )
    training._prepare(warm_up)
    training._exits = started_by_platform
    if checkpoints is not None:
        training._save_to(checkpoints)
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
        samples: SampleSource,
        also: dict[str, Any],
        hang_seconds: float,
        *,
        after_step: Callable[[], object] | None = None,
        virtual_ranks: int = 0,
        grown: GrownRate | None = None,
        shards: OptimizerShards | None = None,
    ) -> None:
        self._model, self._optimizer, self._also = model, optimizer, also
        self._buffers_of = [each._buffers for each in model.modules()]  # as they are now: a program may replace them
        self._samples = samples
        self._hang_seconds, self._after_step = hang_seconds, after_step
        self._virtual_ranks, self._grown, self._shards = virtual_ranks, grown, shards
        self.steps = 0
        self.outcome = ""
        self.changes: list[GroupChange] = []
        self._cursor = samples.first()
        self._store: Any = None
        self._link: Link | None = None
        self._group: Group | None = None
        self._place = (0, 0)  # rank and size of the newest group
        self._exchange: exchange.GradientExchange | None = None
        self._buffers: list[torch.Tensor] = []  # as they were before this step's forward pass
        self._buffers_after: list[torch.Tensor] | None = None  # those of virtual rank 0, after it
        self._parts: list[int] = []  # of this step, yet to be computed
        self._weight = 0.0  # of the current one
        self._work = 0.0  # that this learner has done for this step
        self._reports = StepReports()
        self._drawn = self._started = False
        self._saving: Saving | None = None
        self._exits = False  # whether the process ends when this learner is not needed any more
        self._next: Generation | None = None  # to switch to before the next step
        self._waited: float | None = None  # the generation is given up, after so many seconds
        self._missing: tuple[str, ...] = ()  # of a generation that did not form: whom this learner has not met

    @property
    def epoch(self) -> int:
        """Return the epoch of the current batch, from 0."""
        return self._samples.epoch(self._cursor)

    @property
    def generation(self) -> int:
        with self._linked().locked() as member:
            return member.generation

    @property
    def rank(self) -> int:
        """Return this learner's number in the group, from 0; after the loop, in the last group."""
        return self._place[0]

    @property
    def learners(self) -> int:
        """Return how many learners share the current step, or shared the last one; 0 before the first."""
        return self._place[1]

    def leave(self) -> None:
        """Ask to leave. The loop ends at the next switch; until then this learner trains on. The last one stays."""
        with self._linked().locked() as member:
            member.leaving = True
            self._linked().send({"type": "leave"})

    def state_dict(self) -> dict[str, Any]:
        """Return the training state, for a checkpoint. In the loop, call it between two steps: not where `step`
        returned False.

        With `sharded`, it is this learner's part of the state. Save that of each learner after the same step.
        """
        state = self._common_state()
        state["optimizer"] = self._optimizer.state_dict()
        if self._shards is not None:
            state["optimizer"]["state"] = {}
            state["shards"] = self._shards.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on from a checkpoint; before the loop, and the same on all learners.

        Args:
            state: What `state_dict` returned; with `sharded`, the list of what it returned on each learner.

        Raises:
            ValueError: it is of a training with other data, batch, epochs or seed; or parts are missing, or they are
                not of the same step.
        """
        parts = [state] if isinstance(state, Mapping) else list(state)
        first = parts[0]
        if first["order"] != (own := self._samples.as_json()):
            raise ValueError(f"the state is of a training with {first['order']}, this learner has {own}")
        if len({int(each["steps"]) for each in parts}) > 1:
            raise ValueError(
                f"the parts of the checkpoint are of steps {sorted({int(each['steps']) for each in parts})}; "
                "give the parts of one step"
            )
        if ("shards" in first) != (self._shards is not None):
            raise ValueError("the state and this training must both be sharded, or none of them")
        self._optimizer.load_state_dict(first["optimizer"])
        if self._shards is not None:
            self._shards.load_state_dict(each["shards"] for each in parts)
        self._load_common(first)

    def _common_state(self) -> dict[str, Any]:
        """Return what all learners have: the state without the optimizer's."""
        return {
            "model": self._model.state_dict(),
            "also": {name: each.state_dict() for name, each in self._also.items()},
            "grown": self._grown.state_dict() if self._grown else {},
            "steps": self.steps,
            "cursor": self._samples.to_json(self._cursor),
            "order": self._samples.as_json(),
        }

    def _load_common(self, state: Mapping[str, Any]) -> None:
        self._model.load_state_dict(state["model"])
        for name, each in self._also.items():
            each.load_state_dict(state["also"][name])
        if self._grown is not None:
            self._grown.load_state_dict(state["grown"])
        self.steps = int(state["steps"])
        self._cursor = self._samples.from_json(state["cursor"])

    def __iter__(self) -> Iterator[Any]:
        """Yield this learner's part of each step.

        If the platform has started this process, it ends with 0 here when the learner has left, or was not needed.

        Raises:
            LearnerFenced: the others went on without this learner. On the platform the program ends instead.
            StateLost: with `sharded`, both learners that held a part of the optimizer's state are lost. On the platform
                the program ends instead, and is started again.
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
                elif self._samples.finished(self._cursor):
                    self._finish()
                elif self._saving is not None and not self._saving.may_go_on(
                    self.rank, self.learners, self.steps, self.state_dict, self.leave
                ):
                    runtime.preempted_exit()
                else:
                    yield from self._one_step()
        except StateLost as exc:
            if not self._exits:
                raise
            print(f"updraft: {exc}", file=sys.stderr, flush=True)
            runtime.preempted_exit()  # the platform starts the learners again
        finally:
            self._close()
        if self._exits and self.outcome != "finished":
            raise SystemExit(0)  # what comes after the loop is for those who finish the training

    def step(self, loss: torch.Tensor) -> bool:
        """Do the backward pass. After the last part of a step: exchange gradients, update the parameters and clear the
        gradients.

        Args:
            loss: The mean over this learner's batch.

        Returns:
            Whether the step is committed. If not, this learner has further parts of it (with `virtual_ranks`); or a
            learner was lost: then the model is as before, and the loop goes on with the same samples, shared among
            those who are left.

        Raises:
            LearnerFenced: the others went on without this learner.
            RuntimeError: it is not called once for each batch of the loop.
        """
        if not self._drawn:
            raise RuntimeError(
                "step() belongs to a batch of the training: write `for batch in training:` around it, instead of a "
                "loop over a DataLoader, and call it once for each batch"
            )
        assert self._exchange is not None
        self._drawn = False
        loss.backward()
        # Gradients and buffers need no gradients, so what follows records none, and saves a `no_grad` in each step.
        part = self._parts.pop(0)
        self._work += self._weight
        self._exchange.add(part, self._weight, with_square=self._grown is not None)
        if self._virtual_ranks:
            self._optimizer.zero_grad()
            if part == 0:
                self._buffers_after = self._copied_buffers()
            self._restore(self._buffers)
        return not self._parts and self._commit()

    def _save_to(self, checkpoints: Checkpointer) -> None:
        self._saving = Saving(checkpoints)
        if (state := self._saving.restored()) is not None:
            self.load_state_dict(state)

    def _one_step(self) -> Iterator[Any]:
        self._parts = self._samples.parts(self._cursor)
        self._buffers = self._copied_buffers()
        self._buffers_after = None
        self._work = 0.0
        self._reports.begin()
        while self._parts and self._waited is None:
            part = self._parts[0]
            batch, self._weight = self._samples.get(self._cursor, part)
            if not self._weight:
                self._parts.pop(0)
                continue
            if self._virtual_ranks:
                seed_all(f"{self._samples.as_json()['seed']}/{self.steps}/{part}")
            self._drawn = True
            before = self.steps, self._waited
            yield batch
            if self._drawn:
                raise RuntimeError("the last batch was not used: call training.step(loss) once for each batch")
            if (self.steps, self._waited) != before:
                return  # it was the last part
            if self._is_broken():
                self._undo(0.0)
        if self._waited is None:
            self._refuse_idleness()
            self._commit()

    def _refuse_idleness(self) -> None:
        """Raise RuntimeError if `step` is not called before this step is committed, and the program relies on that."""
        if self._also and self._after_step is None:
            raise RuntimeError(
                f"this step has too few samples for {self.learners} learners, so this one has no batch, and the "
                f"program cannot change {', '.join(self._also)} here: give init(after_step=...), for example "
                "after_step=scheduler.step"
            )

    def _commit(self) -> bool:
        """Exchange gradients and update the parameters. Return False if a learner was lost; then nothing changed."""
        assert self._exchange is not None
        assert self._group is not None
        self._reports.computed(self._work)
        with self._linked().locked() as member:
            flag, is_broken = member.flag(), member.is_broken()
        try:
            if is_broken:
                raise Broken("another learner gave up this generation", 0.0)
            if self._buffers_after is not None:
                self._restore(self._buffers_after)
            flag, facts = self._exchange.sum(flag, self._samples.facts())
            with self._linked().locked() as member:
                self._check_fence(member)
            self._update(self._samples.divisor(facts))
        except Broken as exc:
            self._undo(exc.waited)
            return False
        self._optimizer.zero_grad()
        self._cursor = self._samples.after(self._cursor, facts)
        self.steps += 1
        if self._after_step is not None:
            self._after_step()
        with self._linked().locked() as member:
            member.step = self.steps
            self._next = member.agreed(flag)
        self._reports.committed(self.steps)
        return True

    def _update(self, divisor: float) -> None:
        """Change the parameters by the summed gradients. Raises Broken: then they are as they were."""
        assert self._exchange is not None
        assert self._group is not None
        if divisor != 1.0:
            for group in self._optimizer.param_groups:
                for each in group["params"]:
                    if each.grad is not None:
                        each.grad.div_(divisor)
        rate: AbstractContextManager[None] = nullcontext()
        if self._grown is not None:
            gradients = [each.grad for group in self._optimizer.param_groups for each in group["params"]]
            square = sum(float(each.double().square().sum()) for each in gradients if each is not None)
            self._grown.add(self._exchange.square_sum, square, self._group.size)
            rate = self._grown.applied(self._optimizer, self._group.size)
        with rate:
            if self._shards is None:
                self._optimizer.step()
            else:
                with torch.no_grad():
                    self._shards.begin_step()
                    self._shards.update(self._group)

    def _undo(self, waited: float) -> None:
        """Give up the step, and the generation."""
        self._optimizer.zero_grad()
        self._parts = []
        self._restore(self._buffers)
        self._waited = waited

    def _restore(self, buffers: list[torch.Tensor]) -> None:
        for buffer, value in zip(self._model_buffers(), buffers, strict=True):
            buffer.copy_(value)

    def _copied_buffers(self) -> list[torch.Tensor]:
        return [each.detach().clone() for each in self._model_buffers()]

    def _model_buffers(self) -> list[torch.Tensor]:
        return [each for some in self._buffers_of for each in some.values() if each is not None]

    def _join(self) -> None:
        """Become a member of a generation, the first or a later one."""
        self._linked().start()
        began = time.monotonic()
        said = False
        while True:
            found = self._linked().wait(_for_newcomer, SAY_SECONDS)
            if found is None:
                if not said:
                    print("updraft_learner.elastic: waiting for the other learners", file=sys.stderr, flush=True)
                said = True
                continue
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
        if self._shards is not None and not self._hand_over(plan):
            return
        if staying:
            self._form(plan, "switch", time.monotonic())
            return
        self._linked().wait(lambda member: member.left or member.is_broken() or None, FAREWELL_SECONDS)
        with self._linked().locked() as member:
            needed = member.is_broken() and not (member.left or member.fenced)
        if needed:  # the others failed to form the generation; this learner still has the state
            self._waited = 0.0
        else:
            self.outcome = "left"

    def _hand_over(self, plan: Generation) -> bool:
        """Give those who stay the parts of the optimizer's state that only learners hold which leave. Return False if a
        learner was lost meanwhile."""
        assert self._shards is not None
        assert self._group is not None
        with self._linked().locked() as member:
            assert member.plan is not None
            ranks = [member.plan.names.index(name) for name in plan.names if name in member.plan.names]
        if len(ranks) == self._group.size:
            return True
        try:
            self._shards.distribute(self._group, ranks)
        except Broken as exc:
            self._waited = exc.waited
            return False
        return True

    def _recover(self) -> None:
        """Report the newest step, wait for the next generation, and form it."""
        began = time.monotonic()
        if self._saving is not None and runtime.stop_asked_of_all():
            runtime.preempted_exit()  # rank 0 has saved
        self._drop_group()
        self._next = None
        with self._linked().locked() as member:
            if not member.finished:
                self._linked().send(member.report(self._waited or 0.0, self._missing))
        self._waited, self._missing = None, ()
        self._linked().wait(lambda member: member.fenced or member.target or member.left or member.finished or None)
        with self._linked().locked() as member:
            plan, left = member.target, member.left
            if plan is None and not left:
                self._check_fence(member)
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
            self._group, self._place = group, (group.rank, group.size)
            copied = self._copy_state(plan, group, me)
        except Broken as exc:
            self._waited, self._missing = exc.waited, tuple(plan.names[rank] for rank in exc.missing)
            return
        self._samples.regroup(group.rank, group.size)
        self._exchange = exchange.GradientExchange(
            self._model, self._optimizer, group, self._virtual_ranks, len(self._samples.facts())
        )
        copy_seconds = time.monotonic() - met
        change = GroupChange(plan.generation, group.size, cause, met - began, copy_seconds, copied)
        self.changes.append(change)
        pause_seconds = None if cause == "start" else change.meet_seconds + change.copy_seconds
        with self._linked().locked() as member:
            self._linked().send({**member.formed(plan, self.steps), "pause_seconds": pause_seconds})

    def _copy_state(self, plan: Generation, group: Group, me: str) -> int:
        """Give the newest state to who does not have it. Return how many bytes that took."""
        holds, steps, copied = me in plan.holders, self.steps, 0
        if len(plan.holders) < len(plan.members):
            state, copied = copy_state(group, self._holders(plan), self._copied_state() if holds else None)
            if not holds:
                self._load_copied(state)
        if self._shards is not None:
            self._shards.settle(holds, steps, self.steps)
        with self._linked().locked() as member:
            member.step = self.steps
        if self._shards is not None:
            copied += self._shards.distribute(group, list(range(group.size)))
        return copied

    def _holders(self, plan: Generation) -> list[int]:
        return [plan.names.index(each) for each in plan.holders]

    def _copied_state(self) -> dict[str, Any]:
        """Return what a learner copies: the whole state, but the optimizer's own if it is in parts."""
        state, optimizer = self._common_state(), self._optimizer.state_dict()
        return {**state, "optimizer": {**optimizer, "state": {}} if self._shards else optimizer}

    def _load_copied(self, state: Mapping[str, Any]) -> None:
        if self._shards is None:
            self._optimizer.load_state_dict(state["optimizer"])
        else:
            for group, given in zip(self._optimizer.param_groups, state["optimizer"]["param_groups"], strict=True):
                group.update({name: value for name, value in given.items() if name != "params"})
        self._load_common(state)

    def _finish(self) -> None:
        """End, once everybody has the last step."""
        assert self._group is not None
        try:
            self._group.sum([torch.ones(1)])
        except Broken as exc:
            self._waited = exc.waited
            return
        with self._linked().locked() as member:
            self._check_fence(member)
        self._linked().send({"type": "done"})
        self.outcome = "finished"
        if self._saving is not None and self.rank == 0:
            self._saving.save(self.state_dict(), self.steps)

    def _check_fence(self, member: MemberState) -> None:
        """Raise LearnerFenced if the others went on without this learner. On the platform the program ends: another
        learner is in its place already, or all start again."""
        if not member.fenced:
            return
        if self._exits:
            print(f"updraft: {member.fenced}", file=sys.stderr, flush=True)
            runtime.preempted_exit()
        raise LearnerFenced(member.fenced)

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
        self._samples.close()

    def _linked(self) -> Link:
        assert self._link is not None
        return self._link

    def _prepare(self, warm_up: Callable[[], torch.Tensor] | None) -> None:
        """Do what is slow the first time, on a group of this learner alone."""
        alone = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
        alone.allreduce([torch.zeros(1)]).wait()
        warm_up_transfer(self._copied_state())
        if warm_up is None:
            return
        before = self._copied_buffers()
        warm_up().backward()
        self._optimizer.zero_grad()
        with torch.no_grad():
            self._restore(before)

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
        self._link = Link(member, to, os.environ.get(contract.ENDPOINT_TOKEN_ENV, ""))


def _for_newcomer(member: MemberState) -> tuple[Generation | None, Generation | None] | None:
    """Return the plan to form, or the offered one; neither: look at the state. None: wait."""
    if member.fenced or member.finished or member.must_report():
        return None, None
    offered = member.offered()
    return (member.target, offered) if member.target or offered else None


def _own_host(coordinator: tuple[str, int] | None) -> str:
    """Return the address under which the other learners reach this process."""
    if coordinator is None:
        return "127.0.0.1"
    until = time.monotonic() + RESOLVE_SECONDS
    while True:
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
                probe.connect(coordinator)
                return str(probe.getsockname()[0])
        except OSError:
            if time.monotonic() > until:
                raise
        time.sleep(0.5)


def _is_in_shards(data: Any) -> bool:
    return isinstance(data, Shards) and not hasattr(data, "__getitem__")


def _refuse(model: Any, data: Any) -> None:
    if isinstance(model, DistributedDataParallel):
        raise TypeError("give the model itself, not DistributedDataParallel's replica: step() exchanges the gradients")
    if _is_in_shards(data):
        return
    if isinstance(data, DataLoader):
        raise TypeError("give the data set itself, not its DataLoader: the training draws the batches")
    if isinstance(data, IterableDataset):
        raise TypeError(
            f"{type(data).__name__} is an IterableDataset: nobody can tell which of its samples are used already. Give "
            "it the methods shards() and open(shard, offset), which yields the samples of a shard from an offset on; "
            "or give a map-style data set (__len__ and __getitem__); or do without updraft_learner.elastic: the "
            "platform then resizes by checkpoint and relaunch"
        )
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise TypeError(
            f"{type(data).__name__} has no length or no index; give a map-style data set, or one with shards() and "
            "open(shard, offset)"
        )
