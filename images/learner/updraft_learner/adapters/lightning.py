"""Train with Lightning: checkpoints, metrics and a stop of the platform.

    from updraft_learner.adapters import lightning

    lightning.fit(trainer, model, datamodule=data)  # in place of trainer.fit(model, datamodule=data)

The checkpoints are Lightning's own files (`trainer.save_checkpoint`), so every strategy that writes one file works. The
files of a `ModelCheckpoint` stay where it writes them: give it a `dirpath` below RESULT_DIR to keep them as results.

Within an epoch, a restarted program goes on with the rows that follow only if its data loader has `state_dict` and
`load_state_dict`, as torchdata's StatefulDataLoader does. Any other begins with its first rows again; Lightning warns.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from updraft_learner import checkpoint_format as fmt
from updraft_learner import runtime
from updraft_learner.adapters import common

try:
    common.need("lightning", "2.2", "3")
    import lightning.pytorch as pl
except common.AdapterError:  # the same library under its older name
    common.need("pytorch-lightning", "2.2", "3")
    import pytorch_lightning as pl

FILE = "lightning.ckpt"

POSITIONAL = ("train_dataloaders", "val_dataloaders", "datamodule", "ckpt_path")  # of `trainer.fit`, after the model


class Checkpoints(pl.Callback):  # type: ignore[misc]
    """Save Lightning's checkpoints for the platform, log its metrics, and leave when the platform asks for it.

    Args:
        every_seconds: How often a checkpoint is saved; by default as the manifest says, else every 60 s.

    Attributes:
        ckpt_path: Path of the checkpoint to continue from (`trainer.fit(ckpt_path=)`), or None.

    Raises CheckpointError if the last checkpoint is none of Lightning's.
    """

    def __init__(self, every_seconds: float | None = None) -> None:
        self._checkpoints = common.FolderCheckpoints("lightning", every_seconds)
        self._agreement = common.Agreement()
        saved = self._checkpoints.latest()
        self.ckpt_path = None if saved is None else str(saved.path / FILE)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log, save and stop, each when it is time."""
        step = int(trainer.global_step)
        if step % max(trainer.log_every_n_steps, 1) == 0:
            common.log(trainer.logged_metrics, step)
            self._progress(trainer, step)
        # Batches and not steps: with accumulated gradients a step has several.
        due = self._checkpoints.due()
        save, stop = self._agreement.ask(self._batches(trainer), due=due, stop=common.stop_requested())
        if save:
            self._save(trainer, step, block=stop)
        if stop:
            common.barrier()
            common.leave(step)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Log what the validation measured."""
        if not trainer.sanity_checking:
            common.log(trainer.callback_metrics, int(trainer.global_step))

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the last checkpoint."""
        self._save(trainer, int(trainer.global_step), block=True)

    def _batches(self, trainer: Any) -> int:
        return int(trainer.fit_loop.epoch_loop.batch_progress.total.ready)

    def _progress(self, trainer: Any, step: int) -> None:
        total = trainer.estimated_stepping_batches
        if 0 < total < float("inf"):
            of_epochs = {"epoch": trainer.current_epoch, "epochs": int(trainer.max_epochs or 0)}
            common.progress(step, int(total), **(of_epochs if of_epochs["epochs"] > 0 else {}))

    def _save(self, trainer: Any, step: int, *, block: bool) -> None:
        """Write Lightning's file, which all processes do together, and hand it over."""
        prefix = f"{fmt.TEMPORARY_PREFIX}r{runtime.rank()}-lightning-"
        with tempfile.TemporaryDirectory(dir=self._checkpoints.directory, prefix=prefix) as folder:
            written = Path(folder) / FILE
            trainer.save_checkpoint(trainer.strategy.broadcast(str(written)))
            if written.exists():  # one process writes the file
                metrics = common.numbers(trainer.callback_metrics)
                self._checkpoints.save(
                    lambda target: shutil.move(written, target / FILE), step, metrics=metrics, block=block
                )


def fit(trainer: Any, model: Any, *data: Any, every_seconds: float | None = None, **arguments: Any) -> None:
    """Train as `trainer.fit` does for these arguments; a restarted program continues from its last checkpoint.

    A `ckpt_path` that is given counts only where the platform has no checkpoint yet.
    """
    arguments = {**dict(zip(POSITIONAL, data, strict=False)), **arguments}
    checkpoints = Checkpoints(every_seconds)
    trainer.callbacks.append(checkpoints)
    if checkpoints.ckpt_path is not None:
        arguments["ckpt_path"] = checkpoints.ckpt_path
    trainer.fit(model, **arguments)
