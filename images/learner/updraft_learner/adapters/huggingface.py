"""Train with Hugging Face's Trainer: checkpoints, metrics and a stop of the platform.

    from updraft_learner.adapters import huggingface

    huggingface.train(trainer)  # in place of trainer.train()

The Trainer's own folders (`checkpoint-500`) become checkpoints of the platform: those that it saves by its own
strategy, and one each time `checkpoints.every` of the manifest has passed.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from updraft_learner.adapters import common

common.need("transformers", "4.57", "6")

from transformers import TrainerCallback  # noqa: E402 - the version is checked first

PREFIX = "checkpoint-"


class Checkpoints(TrainerCallback):  # type: ignore[misc]
    """Hand the Trainer's checkpoints and metrics to the platform, and leave when the platform asks for it.

    Args:
        every_seconds: How often the Trainer is asked to save; by default as the manifest says, else every 60 s.

    Raises CheckpointError if the last checkpoint is none of the Trainer's.
    """

    def __init__(self, every_seconds: float | None = None) -> None:
        self._checkpoints = common.FolderCheckpoints("transformers", every_seconds)
        self._agreement = common.Agreement()
        self._stops = False
        self._metrics: dict[str, float] = {}

    def restore(self, output_dir: str) -> str | None:
        """Copy the last checkpoint into the Trainer's folder, where its rotation knows it, and return its path; None if
        there is none. Every process of the training calls this."""
        saved = self._checkpoints.latest()
        if saved is None:
            return None
        name = f"{PREFIX}{saved.step}"
        target = Path(output_dir) / name
        if os.environ.get("LOCAL_RANK", "0") in ("", "0") and not target.exists():
            unfinished = target.with_name(f".{name}-{os.getpid()}")
            shutil.copytree(saved.path / name, unfinished)
            unfinished.rename(target)
        common.barrier()
        return str(target)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Ask the Trainer to save when it is time, and to save and end when the platform asks the program to stop."""
        due = self._checkpoints.due()
        save, stop = self._agreement.ask(state.global_step, due=due, stop=common.stop_requested())
        if save:
            control.should_save = True
        if stop:
            self._stops = True
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Record what the Trainer logs."""
        values = common.numbers(logs or {})
        self._metrics.update(values)
        common.log(values, state.global_step)
        if state.max_steps > 0:
            epochs = {"epoch": int(state.epoch), "epochs": int(state.num_train_epochs)} if state.epoch else {}
            common.progress(state.global_step, state.max_steps, **epochs)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Make a checkpoint of the platform from the folder that the Trainer has just written."""
        common.barrier()  # the other processes add their random states to the folder
        step = int(state.global_step)
        source = Path(args.output_dir) / f"{PREFIX}{step}"

        def write(folder: Path) -> None:
            shutil.copytree(source, folder / source.name)

        last = self._stops or step >= state.max_steps
        self._checkpoints.save(write, step, metrics=self._metrics, block=last)
        if self._stops:
            common.barrier()  # no process ends the training of the others before the checkpoint is written
            common.leave(step)


def train(trainer: Any, *, every_seconds: float | None = None, **arguments: Any) -> Any:
    """Return what `trainer.train` returns; a restarted program continues from its last checkpoint.

    A `resume_from_checkpoint` that is given counts only where the platform has no checkpoint yet.
    """
    checkpoints = Checkpoints(every_seconds)
    trainer.add_callback(checkpoints)
    if (path := checkpoints.restore(trainer.args.output_dir)) is not None:
        arguments["resume_from_checkpoint"] = path
    return trainer.train(**arguments)
