"""Train with XGBoost: checkpoints, metrics and a stop of the platform.

    from updraft_learner.adapters import xgboost as updraft_xgboost

    booster = updraft_xgboost.train(params, rows, num_boost_round=500, evals=[(rows, "train")])

The scikit-learn classes take the callback:

    checkpoints = updraft_xgboost.Checkpoints(rounds=500)
    model = XGBClassifier(n_estimators=checkpoints.rounds_left, callbacks=[checkpoints])
    model.fit(x, y, xgb_model=checkpoints.model)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from updraft_learner.adapters import common

common.need("xgboost", "2.0", "4")

import xgboost  # noqa: E402 - the version is checked first
from xgboost.callback import TrainingCallback  # noqa: E402

MODEL_FILE = "model.ubj"


class Checkpoints(TrainingCallback):  # type: ignore[misc]
    """Save the trees of a training, log its metrics, and leave when the platform asks for it.

    Args:
        rounds: Rounds of the whole training, those before a restart included.
        every_seconds: How often a checkpoint is saved; by default as the manifest says, else every 60 s.

    Attributes:
        model: Path of the model to continue from (`xgb_model=`), or None.
        rounds_left: Rounds that are still to train.

    Raises CheckpointError if the last checkpoint is none of XGBoost's.
    """

    def __init__(self, rounds: int, every_seconds: float | None = None) -> None:
        super().__init__()
        self._checkpoints = common.FolderCheckpoints("xgboost", every_seconds)
        self._rounds = rounds
        saved = self._checkpoints.latest()
        self.model = None if saved is None else str(saved.path / MODEL_FILE)
        self.rounds_left = max(rounds - (0 if saved is None else saved.step), 0)

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        """Do what is due after a round; `epoch` begins with 0 after a restart, the model's rounds do not."""
        done = int(model.num_boosted_rounds())
        values = _values(evals_log)
        common.log(values, done)
        common.progress(done, self._rounds)
        stop = common.stop_requested()
        if stop or self._checkpoints.due():
            self._save(model, done, values, block=stop)
        if stop:
            common.leave(done)
        return False

    def after_training(self, model: Any) -> Any:
        """Save the last checkpoint."""
        self._save(model, int(model.num_boosted_rounds()), {}, block=True)
        return model

    def _save(self, model: Any, done: int, values: dict[str, float], *, block: bool) -> None:
        def write(folder: Path) -> None:
            model.save_model(folder / MODEL_FILE)

        self._checkpoints.save(write, done, metrics=values, block=block)


def train(
    params: dict[str, Any],
    dtrain: Any,
    num_boost_round: int = 10,
    *,
    callbacks: list[Any] | None = None,
    every_seconds: float | None = None,
    **arguments: Any,
) -> Any:
    """Return what `xgboost.train` returns for these arguments; a restarted program trains the rounds that are left.

    An early stopping counts its patience anew after a restart. With `subsample` and the like, a restarted training
    draws other rows than one that was not interrupted, unless `seed_per_iteration` is set.
    """
    checkpoints = Checkpoints(num_boost_round, every_seconds)
    if checkpoints.model is not None:
        arguments["xgb_model"] = checkpoints.model
    return xgboost.train(
        params, dtrain, checkpoints.rounds_left, callbacks=[*(callbacks or []), checkpoints], **arguments
    )


def _values(evals_log: Any) -> dict[str, float]:
    """Return the newest value of each metric; with cross-validation it is a pair, whose first is the mean."""
    found = {}
    for data, of_data in evals_log.items():
        for metric, values in of_data.items():
            last = values[-1]
            found[f"{data}_{metric}"] = float(last[0] if isinstance(last, tuple) else last)
    return found
