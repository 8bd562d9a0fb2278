"""Train with Keras 3: checkpoints, metrics and a stop of the platform.

    from updraft_learner.adapters import keras as updraft_keras

    updraft_keras.fit(model, x, y, epochs=20)  # in place of model.fit(x, y, epochs=20)

A checkpoint holds the weights and the optimizer's state. It is saved at the end of an epoch. When the platform asks the
program to stop within an epoch, what was learnt is saved at once, and the restarted program begins that epoch again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from updraft_learner.adapters import common

common.need("keras", "3.4", "4")

import keras  # noqa: E402 - the version is checked first

FILE = "model.weights.h5"


class Checkpoints(keras.callbacks.Callback):  # type: ignore[misc]
    """Save the model's weights and its optimizer, log its metrics, and leave when the platform asks for it.

    Args:
        every_seconds: How often a checkpoint is saved; by default as the manifest says, else every 60 s.

    Attributes:
        initial_epoch: The epoch to begin with (`model.fit(initial_epoch=)`), from 0.

    Raises CheckpointError if the last checkpoint is none of Keras's.
    """

    def __init__(self, every_seconds: float | None = None) -> None:
        super().__init__()
        self._checkpoints = common.FolderCheckpoints("keras", every_seconds)
        self._saved = self._checkpoints.latest()
        self.initial_epoch = 0 if self._saved is None else int(self._saved.facts["epochs"])
        self._epochs = self.initial_epoch
        self._step = 0 if self._saved is None else self._saved.step

    def on_train_begin(self, logs: Any = None) -> None:
        """Load the last checkpoint into the model."""
        if self._saved is not None:
            if not self.model.built:
                raise ValueError(
                    "the model has no weights yet, so the checkpoint cannot be loaded into it; give it an Input layer, "
                    "or call model.build(...) before fit"
                )
            self.model.optimizer.build(self.model.trainable_variables)
            self.model.load_weights(self._saved.path / FILE)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the step, and save and leave when the platform asks the program to stop."""
        self._step += 1
        if common.stop_requested():
            self._save({}, block=True)
            common.leave(self._step)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Log the epoch, and save when it is time."""
        self._epochs = epoch + 1
        values = common.numbers(logs or {})
        common.log(values, self._step)
        total = self.params.get("epochs") or 0
        steps = self.params.get("steps") or 0
        common.progress(self._step, total * steps, epoch=self._epochs, epochs=total)
        last = self._epochs >= total
        if last or self._checkpoints.due():
            self._save(values, block=last)

    def _save(self, metrics: dict[str, float], *, block: bool) -> None:
        def write(folder: Path) -> None:
            self.model.save_weights(folder / FILE)

        self._checkpoints.save(write, self._step, facts={"epochs": self._epochs}, metrics=metrics, block=block)


def fit(
    model: Any, *data: Any, callbacks: list[Any] | None = None, every_seconds: float | None = None, **arguments: Any
) -> Any:
    """Return what `model.fit` returns for these arguments; a restarted program continues from its last checkpoint."""
    checkpoints = Checkpoints(every_seconds)
    arguments["initial_epoch"] = max(checkpoints.initial_epoch, arguments.get("initial_epoch", 0))
    return model.fit(*data, callbacks=[*(callbacks or []), checkpoints], **arguments)
