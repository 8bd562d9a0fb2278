"""Train a PyTorch model with several processes of one machine that exchange gradients through shared memory.

    from updraft_learner import shared

    def learn(learner: shared.SharedLearner) -> None:
        images, labels = load()
        for step in learner.steps():  # after a kill: from the step that was lost
            batch = slice(...)  # of this learner, for this step
            loss = cross_entropy(learner.model(images[batch]), labels[batch])
            loss.backward()
            learner.push()

    if __name__ == "__main__":
        shared.train(model, learn, steps=10_000, optimizer=shared.Adam(lr=1e-3), learners=4)

A server process applies the gradients to weights that lie in shared memory. A killed learner or server is started
again, and each gradient that was pushed is applied exactly once (docs/design/0039-shared-memory.md).
docs/howto/shared-memory.md shows how to use it.

Importing this needs only the standard library: each name is fetched from its module when it is first used. NumPy is
imported with the memory, PyTorch with the learner.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from updraft_learner.shared.errors import (
        InvalidSetting,
        InvalidSharedModel,
        NotEnoughSharedMemory,
        ProgramFailed,
        SharedTrainingError,
        TooManyKills,
        TrainingStalled,
    )
    from updraft_learner.shared.learner import SharedLearner
    from updraft_learner.shared.optimizers import SGD, Adam
    from updraft_learner.shared.training import Trained, learners_asked, train

_MODULES = {
    "errors": (
        "InvalidSetting",
        "InvalidSharedModel",
        "NotEnoughSharedMemory",
        "ProgramFailed",
        "SharedTrainingError",
        "TooManyKills",
        "TrainingStalled",
    ),
    "learner": ("SharedLearner",),
    "optimizers": ("SGD", "Adam"),
    "training": ("Trained", "learners_asked", "train"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "SGD",
    "Adam",
    "InvalidSetting",
    "InvalidSharedModel",
    "NotEnoughSharedMemory",
    "ProgramFailed",
    "SharedLearner",
    "SharedTrainingError",
    "TooManyKills",
    "Trained",
    "TrainingStalled",
    "learners_asked",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
