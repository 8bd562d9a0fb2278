"""Save the state of a JAX program with Orbax, as checkpoints of the platform.

    from updraft_learner.adapters import orbax

    checkpoints = orbax.Checkpoints()
    state, step = checkpoints.restore(state)  # as it was given, and 0, when the training starts from nothing
    for step in range(step + 1, steps + 1):
        state = update(state)
        checkpoints.step(state, step, {"loss": loss})

A state is any tree of arrays and numbers: of flax, optax or your own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, SupportsFloat, TypeVar

from updraft_learner.adapters import common

common.need("orbax-checkpoint", "0.11", "1")

import jax  # noqa: E402 - the version is checked first
import orbax.checkpoint as ocp  # noqa: E402

FOLDER = "state"
State = TypeVar("State")


class Checkpoints:
    """Save a state with Orbax when it is time, log metrics, and leave when the platform asks for it.

    Args:
        every_seconds: How often a checkpoint is saved; by default as the manifest says, else every 60 s.
        total_steps: Steps of the whole training, if they are known, for the progress that is shown.
    """

    def __init__(self, every_seconds: float | None = None, *, total_steps: int = 0) -> None:
        self._checkpoints = common.FolderCheckpoints("orbax", every_seconds)
        self._total_steps = total_steps

    def restore(self, state: State) -> tuple[State, int]:
        """Return the newest checkpoint's state and step; `state` itself and 0 when the training starts from nothing.

        Args:
            state: The state as the program begins with: its tree, shapes, types and shardings are those of the result.

        Raises:
            CheckpointError: The last checkpoint is none of Orbax's.
            ValueError: The checkpoint does not fit `state`.
        """
        saved = self._checkpoints.latest()
        if saved is None:
            return state, 0
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
        with ocp.StandardCheckpointer() as checkpointer:
            return checkpointer.restore(saved.path.absolute() / FOLDER, target), saved.step

    def step(self, state: Any, step: int, metrics: Mapping[str, SupportsFloat] | None = None) -> None:
        """Call this after each step: saves and logs when it is time, and leaves when the platform asks for it."""
        if metrics:
            common.log(metrics, step)
        common.progress(step, self._total_steps)
        stop = common.stop_requested()
        if stop or self._checkpoints.due() or step == self._total_steps:
            self.save(state, step, metrics, block=stop or step == self._total_steps)
        if stop:
            common.leave(step)

    def save(
        self, state: Any, step: int, metrics: Mapping[str, SupportsFloat] | None = None, *, block: bool = False
    ) -> bool:
        """Save now, unless another save runs; returns whether this step is, or will be, saved. With `block`, wait for
        it, and raise CheckpointError if it fails."""

        def write(folder: Path) -> None:
            with ocp.StandardCheckpointer() as checkpointer:
                checkpointer.save(folder.absolute() / FOLDER, state)

        return self._checkpoints.save(write, step, metrics=metrics, block=block)
