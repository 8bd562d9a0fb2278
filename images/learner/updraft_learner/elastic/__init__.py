"""Training that learners join, leave and may be lost from, while the others train on.

    from updraft_learner import elastic

    training = elastic.init(model, optimizer, data, batch=64, epochs=10)
    for pixels, labels in training:
        training.step(cross_entropy(model(pixels), labels))
    if training.outcome == "finished" and training.rank == 0:
        torch.save(model.state_dict(), "model.pt")

Each sample is used exactly once in an epoch, in the chain of steps that leads to the final model. All learners hold
the same parameters, bit for bit. `docs/design/0040-stop-free-resizing.md` describes the protocol.

Importing this needs only the standard library; `init` imports PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from updraft_learner.elastic.errors import LearnerFenced, StateLost
    from updraft_learner.elastic.setup import init
    from updraft_learner.elastic.training import GroupChange, Training

__all__ = ["GroupChange", "LearnerFenced", "StateLost", "Training", "init"]
_HOMES = {
    "GroupChange": "training",
    "LearnerFenced": "errors",
    "StateLost": "errors",
    "Training": "training",
    "init": "setup",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _HOMES[name]
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
