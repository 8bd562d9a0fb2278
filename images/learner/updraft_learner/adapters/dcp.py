"""Save a sharded state with the calls of torch.distributed.checkpoint, as checkpoints of the platform.

    from updraft_learner.adapters import dcp

    step = dcp.load(state)  # in place of dcp.load(state, checkpoint_id=...); None when there is no checkpoint
    dcp.save(state, step=step)  # in place of dcp.save(state, checkpoint_id=...)

The state is what torch.distributed.checkpoint takes: nested dicts of tensors, DTensors and numbers, or objects with
`state_dict()` and `load_state_dict()`. Every process makes every call. A checkpoint can be loaded by more or fewer
processes than have saved it. `ShardedCheckpointer` does the same with a choice of when.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, SupportsFloat

from updraft_learner.sharded import ShardedCheckpointer


@functools.cache
def checkpointer() -> ShardedCheckpointer:
    """Return the one checkpointer of this process. The process group must exist before the first call."""
    return ShardedCheckpointer()


def load(state: dict[str, Any]) -> int | None:
    """Fill `state` from the newest checkpoint that is whole for all processes; return its step, or None.

    Raises CheckpointError if the checkpoint does not fit the state.
    """
    values = {name: _plain(value) for name, value in state.items()}
    restored = checkpointer().restore(values)
    if restored is None:
        return None
    loaded, step = restored
    for name, value in state.items():
        if hasattr(value, "load_state_dict"):
            value.load_state_dict(loaded[name])
        else:
            state[name] = loaded[name]
    return step


def save(
    state: Mapping[str, Any], *, step: int, metrics: Mapping[str, SupportsFloat] | None = None, wait: bool = False
) -> bool:
    """Save the state at `step`; a copy of it is written while the training goes on.

    Returns whether that step is, or will be, saved. With `wait`, return when the checkpoint is complete for all
    processes: use it for the last one, before the process group is destroyed. Raises CheckpointError as
    `ShardedCheckpointer.save` does.
    """
    return checkpointer().save({name: _plain(value) for name, value in state.items()}, step, metrics, block=wait)


def due() -> bool:
    """Return whether it is time for the next save, the same on all processes: `checkpoints.every` of the manifest."""
    return checkpointer().due()


def _plain(value: Any) -> Any:
    return value.state_dict() if hasattr(value, "state_dict") else value
