"""Checkpoints of a shared-memory training: pause the learners, save, and let them go on; or stop where asked to.

The word `limit` says after which step learners pause. It is set to one that no learner has passed. Once each has pushed
so many gradients and all are applied, nothing in the shared memory changes, and what is there is the state after that
step. A learner that was on its way past the limit moves the limit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from updraft_learner import metrics, runtime
from updraft_learner.shared.errors import InvalidSharedModel
from updraft_learner.shared.memory import SLOTS, Segment

if TYPE_CHECKING:
    import torch

    from updraft_learner.checkpoint import Checkpointer

PROGRESS_SECONDS = 2.0
METRICS_SECONDS = 10.0
LEAST_SECONDS = 0.2  # of an interval whose steps are counted


class CheckpointManager:
    """What the process that called `train` does for checkpoints, stops and progress; `look` is called again and again.

    Args:
        memory: The shared memory.
        steps: Of each learner, in all.
        model: Gets the weights for each checkpoint.
        parameters: Of the model, in the order of the shared memory.
        checkpoints: Where to save; None: nothing is saved, and a stop is not looked for.
    """

    def __init__(
        self,
        memory: Segment,
        steps: int,
        model: torch.nn.Module,
        parameters: list[torch.nn.Parameter],
        checkpoints: Checkpointer | None,
    ) -> None:
        self._memory, self._layout, self._steps = memory, memory.layout, steps
        self._model, self._parameters, self._checkpoints = model, parameters, checkpoints
        self._pausing = self._stops = False
        self._told_at = -PROGRESS_SECONDS
        self._counted_at, self._counted = time.monotonic(), [0] * self._layout.learners

    def restore(self) -> None:
        """Go on from the newest checkpoint, if there is one."""
        restored = None if self._checkpoints is None else self._checkpoints.restore()
        if restored is not None:
            state, step = restored
            self._model.load_state_dict(state["model"])
            self._write(state, step)
            self._counted = [step] * self._layout.learners
            print(f"resumed after step {step} of {self._steps}", flush=True)

    def _write(self, state: Mapping[str, Any], step: int) -> None:
        memory, layout, moments = self._memory, self._layout, state["moments"]
        if len(moments) != layout.moments or any(len(each) != layout.elements for each in moments):
            raise InvalidSharedModel(
                f"the checkpoint at step {step} has {len(moments)} arrays of moments, which do not suit this model and "
                "optimizer; resume with those that wrote it"
            )
        for target, source in zip(memory.moments, moments, strict=True):
            target[:] = source.numpy()
        for range_ in range(layout.ranges):
            memory.store(layout.updates(range_), state["updates"])
            memory.store(layout.stalest(range_), state["stalest"])
            for learner in range(layout.learners):
                memory.store(layout.applied(range_, learner), step)
        for learner in range(layout.learners):
            # A training that goes on with other learners counts what was skipped with the first one.
            skipped = state["skipped"] if learner == 0 else 0
            for slot in range(SLOTS):
                memory.store(layout.skips(learner, slot), 2 * skipped)
            memory.store(layout.pushed(learner), step)

    def begin(self) -> None:
        """Note that the processes start now."""
        self._counted_at = time.monotonic()

    def look(self) -> None:
        """Begin a pause if a checkpoint is due or a stop was asked for; save once nothing moves.

        Raises:
            SystemExit: with the exit code for a stop on request, after the checkpoint is complete.
        """
        self._tell()
        if self._checkpoints is None:
            return
        if not self._stops and runtime.stop_requested():
            self._stops = self._pausing = True
        if not self._pausing:
            if not self._checkpoints.due():
                return
            self._pausing = True
        if (step := self._still()) is None:
            return
        if step < self._steps:
            self.save(step, block=self._stops)
            if self._stops:
                runtime.preempted_exit()
        self._pausing = False
        self._memory.store(self._layout.limit, 0)

    def _still(self) -> int | None:
        """Set the limit; return the step once each learner has pushed so many gradients, and all are applied."""
        memory, layout = self._memory, self._layout
        pushed = [memory.load(layout.pushed(each)) for each in range(layout.learners)]
        limit = memory.load(layout.limit)
        if max(pushed) > limit or not limit:
            limit = min(self._steps, max(pushed) + 1)
            memory.store(layout.limit, limit)
        applied = (memory.least_applied(each) for each in range(layout.learners))
        return limit if all(each == limit for each in (*pushed, *applied)) else None

    def save(self, step: int, *, block: bool) -> None:
        """Save the state after `step`; nothing may be under way."""
        if self._checkpoints is None:
            return
        import torch

        memory, layout = self._memory, self._layout
        self.read()
        state = {
            "model": self._model.state_dict(),
            "moments": [torch.from_numpy(each.copy()) for each in memory.moments],
            "updates": memory.load(layout.updates(0)),
            "stalest": max(memory.load(layout.stalest(each)) for each in range(layout.ranges)),
            "skipped": sum(memory.skipped(each) for each in range(layout.learners)),
        }
        # While its buffers are being prepared, or the last one is still being written, it is not saved: it stays due.
        self._checkpoints.save(state, step, block=block)

    def read(self) -> None:
        """Copy the weights into the model."""
        import torch

        place = 0
        with torch.no_grad():
            for each in self._parameters:
                values = torch.from_numpy(self._memory.weights[place : place + each.numel()].copy())
                each.copy_(values.view(each.shape))
                place += each.numel()

    def write(self) -> None:
        """Copy the model's weights into the shared memory."""
        place = 0
        for each in self._parameters:
            self._memory.weights[place : place + each.numel()] = each.detach().numpy().reshape(-1)
            place += each.numel()

    def _tell(self) -> None:
        """Report the step of the slowest learner, from time to time."""
        if (now := time.monotonic()) - self._told_at >= PROGRESS_SECONDS:
            self._told_at = now
            layout = self._layout
            step = min(self._memory.load(layout.pushed(each)) for each in range(layout.learners))
            metrics.append({"progress": {"step": step, "total": self._steps}})
        if now - self._counted_at >= METRICS_SECONDS:
            self._count(now)

    def finish(self) -> None:
        """Save the state after the last step, and record the metrics of what was left of the training."""
        if (now := time.monotonic()) - self._counted_at >= LEAST_SECONDS:
            self._count(now)
        self.save(self._steps, block=True)

    def _count(self, now: float) -> None:
        """Record each learner's steps per second since the last call, and how many of its gradients were skipped."""
        pushed = [self._memory.load(self._layout.pushed(each)) for each in range(self._layout.learners)]
        seconds = now - self._counted_at
        for learner, (done, before) in enumerate(zip(pushed, self._counted, strict=True)):
            values = {"steps_per_second": (done - before) / seconds, "skipped": self._memory.skipped(learner)}
            named = {f"process_{learner}/{name}": value for name, value in values.items()}
            metrics.append({"step": done, "metrics": named})
        self._counted_at, self._counted = now, pushed
