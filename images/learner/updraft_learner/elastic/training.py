"""The loop of an elastic program: the iterator and `step`. The package's docstring shows them in use."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from updraft_learner import contract, runtime
from updraft_learner.elastic import exchange
from updraft_learner.elastic.alive import AliveLock
from updraft_learner.elastic.errors import LearnerFenced, StateLost
from updraft_learner.elastic.group import Broken, Group, serve_store, wait_for_switch
from updraft_learner.elastic.link import Link, own_host
from updraft_learner.elastic.member_state import MemberState
from updraft_learner.elastic.membership import Generation, Peer
from updraft_learner.elastic.prefetcher import seed_all
from updraft_learner.elastic.samples import SampleSource
from updraft_learner.elastic.saving import Saving, Wish
from updraft_learner.elastic.state_transfer import copy_state
from updraft_learner.elastic.step_reports import StepReports
from updraft_learner.elastic.training_state import TrainingState

SAY_SECONDS = 15.0  # after which a learner says that it waits for the others
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


class Training:
    """One learner's part of an elastic training. `init` makes it; iterate over it once.

    Attributes:
        outcome: Empty while it trains; then "finished", "left", or "unneeded": the training ended before this learner
            could join. Only after "finished" the model is the result.
        changes: Of its group, oldest first.
    """

    def __init__(
        self,
        state: TrainingState,
        samples: SampleSource,
        hang_seconds: float,
        *,
        name: str,
        address: str | None = None,
        after_step: Callable[[], object] | None = None,
        virtual_ranks: int = 0,
        max_grad_norm: float | None = None,
        saving: Saving | None = None,
        alive: AliveLock | None = None,
        exits: bool = False,
    ) -> None:
        self._state, self._samples = state, samples
        self._hang_seconds, self._after_step, self._virtual_ranks = hang_seconds, after_step, virtual_ranks
        self._max_grad_norm, self._saving, self._alive = max_grad_norm, saving, alive
        self._exits = exits  # whether the process ends when this learner is not needed any more
        self.outcome = ""
        self.changes: list[GroupChange] = []
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
        self._wish = Wish.NOTHING
        self._gathers = False  # whether all learners give their parts of the optimizer's state to rank 0 now
        self._gathered_at: int | None = None  # the step after which they last did
        self._next: Generation | None = None  # to switch to before the next step
        self._waited: float | None = None  # the generation is given up, after so many seconds
        self._missing: tuple[str, ...] = ()  # of a generation that did not form: whom this learner has not met
        self._store, self._link = _linked(name, address)

    @property
    def steps(self) -> int:
        """Return how many committed steps of the whole training this learner's state includes."""
        return self._state.steps

    @property
    def epoch(self) -> int:
        """Return the epoch of the current batch, from 0."""
        return self._samples.epoch(self._state.cursor)

    @property
    def generation(self) -> int:
        with self._link.locked() as member:
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
        with self._link.locked() as member:
            member.leaving = True
            self._link.send({"type": "leave"})

    def state_dict(self) -> dict[str, Any]:
        """Return the training state, for a checkpoint. In the loop, call it between two steps: not where `step`
        returned False.

        With `sharded`, it is this learner's part of the state. Save that of each learner after the same step.
        """
        return self._state.to_save()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Go on from a checkpoint; before the loop, and the same on all learners.

        Args:
            state: What `state_dict` returned; with `sharded`, the list of what it returned on each learner.

        Raises:
            ValueError: it is of a training with other data, batch, epochs or seed; or parts are missing, or they are
                not of the same step.
        """
        self._state.load(state)

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
            if self._alive is not None:
                self._alive.take()
            self._join()
            while not self.outcome:
                if self._waited is not None:
                    self._recover()
                elif self._gathers:
                    self._save_shards()
                elif self._next is not None:
                    self._switch(self._next)
                elif self._samples.finished(self._state.cursor):
                    self._finish()
                else:
                    self._save_if_asked()
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
        self._exchange.add(part, self._weight, with_square=self._state.grown is not None)
        if self._virtual_ranks:
            self._state.optimizer.zero_grad()
            if part == 0:
                self._buffers_after = self._state.copied_buffers()
            self._state.restore_buffers(self._buffers)
        return not self._parts and self._commit()

    def _save_if_asked(self) -> None:
        """Save if it is time to, and end the program if the platform asks for that."""
        if self._saving is None:
            return
        self._wish = self._saving.wish(self.rank, self.learners, self.leave)
        if self._wish.saves and self._state.shards is not None:
            return  # `_commit` tells the others, and all come to `_save_shards` after this step
        if self._wish.saves:
            self._saving.save(self.state_dict(), self.steps, block=self._wish.ends)
        if self._wish.ends:
            runtime.preempted_exit()

    def _save_shards(self) -> None:
        """Save the optimizer's state of all learners; each of them calls this after the same step."""
        assert self._saving is not None
        self._gathers = False
        state = self._gathered()
        if self._waited is None:
            self._gathered_at = self.steps
        if state is not None:
            self._saving.save(state, self.steps, block=self._wish.ends)
            if self._wish.ends:
                runtime.preempted_exit()

    def _gathered(self) -> dict[str, Any] | None:
        """Return the whole state on rank 0; None on others, and if a learner is lost meanwhile."""
        assert self._group is not None
        shards = None
        if self._state.shards is not None:
            try:
                shards = self._state.shards.gather(self._group)
            except Broken as exc:
                self._waited = exc.waited
                return None
        return self._state.to_save(shards) if self.rank == 0 else None

    def _one_step(self) -> Iterator[Any]:
        self._parts = self._samples.parts(self._state.cursor)
        self._buffers = self._state.copied_buffers()
        self._buffers_after = None
        self._work = 0.0
        self._reports.begin()
        while self._parts and self._waited is None:
            part = self._parts[0]
            batch, self._weight = self._samples.get(self._state.cursor, part)
            if not self._weight:
                self._parts.pop(0)
                continue
            if self._virtual_ranks:
                seed_all(f"{self._samples.as_json()['seed']}/{self.steps}/{part}")
            self._drawn = True
            before = self._state.steps, self._waited
            yield batch
            if self._drawn:
                raise RuntimeError("the last batch was not used: call training.step(loss) once for each batch")
            if (self._state.steps, self._waited) != before:
                return  # it was the last part
            if self._is_broken():
                self._undo(0.0)
        if self._waited is None:
            self._refuse_idleness()
            self._commit()

    def _refuse_idleness(self) -> None:
        """Raise RuntimeError if `step` is not called before this step is committed, and the program relies on that."""
        if self._state.also and self._after_step is None:
            raise RuntimeError(
                f"this step has too few samples for {self.learners} learners, so this one has no batch, and the "
                f"program cannot change {', '.join(self._state.also)} here: give init(after_step=...), for example "
                "after_step=scheduler.step"
            )

    def _commit(self) -> bool:
        """Exchange gradients and update the parameters. Return False if a learner was lost; then nothing changed."""
        assert self._exchange is not None
        assert self._group is not None
        self._reports.computed(self._work)
        with self._link.locked() as member:
            flag, is_broken = member.flag(), member.is_broken()
        try:
            if is_broken:
                raise Broken("another learner gave up this generation", 0.0)
            if self._buffers_after is not None:
                self._state.restore_buffers(self._buffers_after)
            saves = int(self._state.shards is not None and self._wish.saves)
            (flag, saves), facts = self._exchange.sum((flag, saves), self._samples.facts())
            with self._link.locked() as member:
                self._check_fence(member)
            self._update(self._samples.divisor(facts))
        except Broken as exc:
            self._undo(exc.waited)
            return False
        self._state.optimizer.zero_grad()
        self._state.cursor = self._samples.after(self._state.cursor, facts)
        self._state.steps += 1
        if self._after_step is not None:
            self._after_step()
        with self._link.locked() as member:
            member.step = self._state.steps
            self._next = member.agreed(flag)
        self._gathers = saves > 0
        self._reports.committed(self._state.steps)
        return True

    def _update(self, divisor: float) -> None:
        """Change the parameters by the summed gradients. Raises Broken: then they are as they were."""
        assert self._exchange is not None
        assert self._group is not None
        if divisor != 1.0:
            for each in self._state.gradients():
                each.div_(divisor)
        rate: AbstractContextManager[None] = nullcontext()
        if (grown := self._state.grown) is not None:
            square = sum(float(each.double().square().sum()) for each in self._state.gradients())
            grown.add(self._exchange.square_sum, square, self._group.size)
            rate = grown.applied(self._state.optimizer, self._group.size)
        if self._max_grad_norm is not None:
            self._clip(self._max_grad_norm)
        with rate:
            if self._state.shards is None:
                self._state.optimizer.step()
            else:
                with torch.no_grad():
                    self._state.shards.begin_step()
                    self._state.shards.update(self._group)

    def _clip(self, most: float) -> None:
        """Scale the gradients as clip_grad_norm_ does. The norm is summed in 64 bits: all learners shall have the same
        factor, and another processor may sum in another order."""
        norms = [float(torch.linalg.vector_norm(each, dtype=torch.float64)) for each in self._state.gradients()]
        factor = most / (math.hypot(*norms) + 1e-6)
        if not factor >= 1.0:
            for each in self._state.gradients():
                each.mul_(factor)

    def _undo(self, waited: float) -> None:
        """Give up the step, and the generation."""
        self._state.optimizer.zero_grad()
        self._parts = []
        self._state.restore_buffers(self._buffers)
        self._waited = waited

    def _join(self) -> None:
        """Become a member of a generation, the first or a later one."""
        self._link.start()
        began = time.monotonic()
        said = False
        while True:
            found = self._link.wait(_for_newcomer, SAY_SECONDS)
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
        with self._link.locked() as member:
            return member.offered() != offered or bool(member.target or member.fenced or member.finished)

    def _switch(self, plan: Generation) -> None:
        self._next = None
        with self._link.locked() as member:
            staying = member.me.name in plan.names
        if self._state.shards is not None and not self._hand_over(plan):
            return
        if staying:
            self._form(plan, "switch", time.monotonic())
            return
        self._link.wait(lambda member: member.left or member.is_broken() or None, FAREWELL_SECONDS)
        with self._link.locked() as member:
            needed = member.is_broken() and not (member.left or member.fenced)
        if needed:  # the others failed to form the generation; this learner still has the state
            self._waited = 0.0
        else:
            self.outcome = "left"

    def _hand_over(self, plan: Generation) -> bool:
        """Give those who stay the parts of the optimizer's state that only learners hold which leave. Return False if a
        learner was lost meanwhile."""
        assert self._state.shards is not None
        assert self._group is not None
        with self._link.locked() as member:
            assert member.plan is not None
            ranks = [member.plan.names.index(name) for name in plan.names if name in member.plan.names]
        if len(ranks) == self._group.size:
            return True
        try:
            self._state.shards.distribute(self._group, ranks)
        except Broken as exc:
            self._waited = exc.waited
            return False
        return True

    def _recover(self) -> None:
        """Report the newest step, wait for the next generation, and form it."""
        began = time.monotonic()
        if self._saving is not None and runtime.stop_asked_of_all():
            if self._state.shards is None:
                if self.learners and self.rank == 0:
                    self._saving.save(self.state_dict(), self.steps)
                runtime.preempted_exit()
            if self._gathered_at == self.steps:  # rank 0 has what it saves
                runtime.preempted_exit()
        self._next, self._gathers = None, False
        with self._link.locked() as member:
            if not member.finished:
                self._link.send(member.report(self._waited or 0.0, self._missing))
        self._drop_group()
        self._waited, self._missing = None, ()
        self._link.wait(lambda member: member.fenced or member.target or member.left or member.finished or None)
        with self._link.locked() as member:
            plan, left = member.target, member.left
            if plan is None and not left:
                self._check_fence(member)
        if plan is None:
            self.outcome = "left" if left else "unneeded"
        else:
            self._form(plan, "loss", began)

    def _form(self, plan: Generation, cause: str, began: float) -> None:
        with self._link.locked() as member:
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
            self._state.model, self._state.optimizer, group, self._virtual_ranks, len(self._samples.facts())
        )
        copy_seconds = time.monotonic() - met
        change = GroupChange(plan.generation, group.size, cause, met - began, copy_seconds, copied)
        self.changes.append(change)
        pause_seconds = None if cause == "start" else change.meet_seconds + change.copy_seconds
        with self._link.locked() as member:
            self._link.send({**member.formed(plan, self.steps), "pause_seconds": pause_seconds})

    def _copy_state(self, plan: Generation, group: Group, me: str) -> int:
        """Give the newest state to who does not have it. Return how many bytes that took."""
        holds, steps, copied = me in plan.holders, self.steps, 0
        if len(plan.holders) < len(plan.members):
            state, copied = copy_state(group, self._holders(plan), self._state.to_copy() if holds else None)
            if not holds:
                self._state.load_copied(state)
        if self._state.shards is not None:
            self._state.shards.settle(holds, steps, self.steps)
        with self._link.locked() as member:
            member.step = self.steps
        if self._state.shards is not None:
            copied += self._state.shards.distribute(group, list(range(group.size)))
        return copied

    def _holders(self, plan: Generation) -> list[int]:
        return [plan.names.index(each) for each in plan.holders]

    def _finish(self) -> None:
        """End, once everybody has the last step."""
        assert self._group is not None
        last = self._gathered() if self._saving is not None else None
        if self._waited is not None:
            return
        try:
            self._group.sum([torch.ones(1)])
        except Broken as exc:
            self._waited = exc.waited
            return
        with self._link.locked() as member:
            self._check_fence(member)
        self._link.send({"type": "done"})
        self.outcome = "finished"
        if self._saving is not None and last is not None:
            self._saving.save(last, self.steps)

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
        with self._link.locked() as member:
            return member.is_broken()

    def _drop_group(self) -> None:
        if self._group is not None:
            self._group.close()
        self._group = self._exchange = None

    def _close(self) -> None:
        self._drop_group()
        self._link.close()
        if self._alive is not None:
            self._alive.release()
        self._samples.close()


def _linked(name: str, address: str | None) -> tuple[Any, Link]:
    """Return this learner's store, for the generations whose rank 0 it becomes, and its link to the coordinator."""
    to = None
    if address is not None:
        host, _, port = address.rpartition(":")
        to = (host, int(port))
    here = own_host(to)
    store = serve_store(here)
    member = MemberState(Peer(name, here, store.port))
    if to is None:
        member.target = Generation(1, "alone", (member.me,), (member.me.name,))
    return store, Link(member, to, os.environ.get(contract.ENDPOINT_TOKEN_ENV, ""))


def _for_newcomer(member: MemberState) -> tuple[Generation | None, Generation | None] | None:
    """Return the plan to form, or the offered one; neither: look at the state. None: wait."""
    if member.fenced or member.finished or member.must_report():
        return None, None
    offered = member.offered()
    return (member.target, offered) if member.target or offered else None
