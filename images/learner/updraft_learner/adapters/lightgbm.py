"""Train with LightGBM: checkpoints, metrics and a stop of the platform.

    from updraft_learner.adapters import lightgbm as updraft_lightgbm

    booster = updraft_lightgbm.train(params, rows, num_boost_round=500, valid_sets=[validation])

The scikit-learn classes take the callback:

    checkpoints = updraft_lightgbm.Checkpoints(rounds=500)
    model = LGBMClassifier(n_estimators=checkpoints.rounds_left)
    model.fit(x, y, callbacks=[checkpoints], init_model=checkpoints.model)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from updraft_learner.adapters import common

common.need("lightgbm", "4.0", "5")

import lightgbm  # noqa: E402 - the version is checked first

MODEL_FILE = "model.txt"
ROUNDS = {  # LightGBM's names of the parameter num_iterations
    *("num_iterations", "num_iteration", "n_iter", "num_tree", "num_trees", "num_round", "num_rounds", "nrounds"),
    *("num_boost_round", "n_estimators", "max_iter"),
}


class Checkpoints:
    """Save the trees of a training, log its metrics, and leave when the platform asks for it.

    Args:
        rounds: Rounds of the whole training, those before a restart included.
        every_seconds: How often a checkpoint is saved; by default as the manifest says, else every 60 s.

    Attributes:
        model: Path of the model to continue from (`init_model=`), or None.
        rounds_left: Rounds that are still to train.

    Raises CheckpointError if the last checkpoint is none of LightGBM's.
    """

    order = 100  # after early stopping (30) and what records results (20)
    before_iteration = False

    def __init__(self, rounds: int, every_seconds: float | None = None) -> None:
        self._checkpoints = common.FolderCheckpoints("lightgbm", every_seconds)
        self._rounds = rounds
        saved = self._checkpoints.latest()
        self.model = None if saved is None else str(saved.path / MODEL_FILE)
        self.rounds_left = max(rounds - (0 if saved is None else saved.step), 0)

    def __call__(self, environment: Any) -> None:
        """Do what is due after a round. LightGBM's own count includes the rounds of the model that it continues."""
        done = int(environment.iteration) + 1
        results = environment.evaluation_result_list or []
        values = {f"{result[0]}_{result[1]}": float(result[2]) for result in results}
        common.log(values, done)
        common.progress(done, self._rounds)
        last = done >= environment.end_iteration
        stop = common.stop_requested()
        if stop or last or self._checkpoints.due():

            def write(folder: Path) -> None:
                environment.model.save_model(folder / MODEL_FILE, num_iteration=-1)

            self._checkpoints.save(write, done, metrics=values, block=stop or last)
        if stop:
            common.leave(done)


def train(
    params: dict[str, Any],
    train_set: Any,
    num_boost_round: int = 100,
    *,
    callbacks: list[Any] | None = None,
    every_seconds: float | None = None,
    **arguments: Any,
) -> Any:
    """Return what `lightgbm.train` returns for these arguments; a restarted program trains the rounds that are left.

    A data set that was used before needs `free_raw_data=False`, as LightGBM continues with the raw rows. An early
    stopping counts its patience anew after a restart.
    """
    params = dict(params)
    for name in ROUNDS & params.keys():  # LightGBM lets these win over the argument
        num_boost_round = int(params.pop(name))
    checkpoints = Checkpoints(num_boost_round, every_seconds)
    if checkpoints.model is not None:
        arguments["init_model"] = checkpoints.model
    if checkpoints.rounds_left == 0:
        return lightgbm.Booster(model_file=checkpoints.model)
    return lightgbm.train(
        params, train_set, checkpoints.rounds_left, callbacks=[*(callbacks or []), checkpoints], **arguments
    )
