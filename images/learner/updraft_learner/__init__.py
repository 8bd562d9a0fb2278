"""Updraft inside the learner's pod, and the Python API for programs that train there.

    import updraft_learner as updraft

    updraft.log_metrics({"loss": 0.1}, step=3)

Importing this needs only the standard library and changes nothing in the process: each name is fetched from its module
when it is first used. docs/howto/write-a-program.md shows the API in use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from updraft_learner.checkpoint import Checkpoint, Checkpointer, CheckpointError, CorruptCheckpoint
    from updraft_learner.metrics import log_metrics, progress
    from updraft_learner.model import save_model
    from updraft_learner.predictions import save_predictions
    from updraft_learner.runtime import (
        attempt,
        checkpoint_dir,
        data_dir,
        init_dir,
        install_signal_handler,
        params,
        preempted_exit,
        rank,
        result_dir,
        stop_requested,
        world_size,
    )
    from updraft_learner.scaling import batch_size, lr_scale
    from updraft_learner.sharded import ShardedCheckpointer

__version__ = "0.1.0"

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Checkpointer",
    "CorruptCheckpoint",
    "ShardedCheckpointer",
    "attempt",
    "batch_size",
    "checkpoint_dir",
    "data_dir",
    "init_dir",
    "install_signal_handler",
    "log_metrics",
    "lr_scale",
    "params",
    "preempted_exit",
    "progress",
    "rank",
    "result_dir",
    "save_model",
    "save_predictions",
    "stop_requested",
    "world_size",
]

_MODULES = {
    "checkpoint": ("Checkpoint", "CheckpointError", "Checkpointer", "CorruptCheckpoint"),
    "metrics": ("log_metrics", "progress"),
    "model": ("save_model",),
    "predictions": ("save_predictions",),
    "scaling": ("batch_size", "lr_scale"),
    "sharded": ("ShardedCheckpointer",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF.get(name, 'runtime')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
