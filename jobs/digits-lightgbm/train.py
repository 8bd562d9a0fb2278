"""Classify the digits with LightGBM.

On the platform, from the repository's root:

    updraft submit jobs/digits-lightgbm --follow

On your own machine, with lightgbm and mlflow installed:

    updraft run --local jobs/digits-lightgbm --data training=jobs/data/digits
"""

from __future__ import annotations

import shutil

import lightgbm
import mlflow
import numpy as np

import updraft_learner as updraft
from updraft_learner.adapters import lightgbm as updraft_lightgbm


def load(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels [N, 64] and labels [N] of a split."""
    rows = np.loadtxt(updraft.data_dir() / "training" / "digits.csv", delimiter=",", skiprows=1, dtype=str)
    rows = rows[rows[:, 0] == split]
    return rows[:, 2:].astype(np.float64), rows[:, 1].astype(np.int64)


def main() -> None:
    config = {"rounds": 200, "leaves": 15, "learning_rate": 0.1} | updraft.params()
    (x, y), (val_x, val_y) = load("train"), load("val")
    train = lightgbm.Dataset(x, y, free_raw_data=False)
    booster = updraft_lightgbm.train(
        {
            "objective": "multiclass",
            "num_class": 10,
            "num_leaves": config["leaves"],
            "learning_rate": config["learning_rate"],
            "num_threads": 1,
            "verbose": -1,
        },
        train,
        num_boost_round=config["rounds"],
        valid_sets=[train, lightgbm.Dataset(val_x, val_y, reference=train, free_raw_data=False)],
        valid_names=["train", "val"],
    )
    accuracy = float((booster.predict(val_x).argmax(1) == val_y).mean())
    updraft.log_metrics({"val_accuracy": accuracy}, step=booster.current_iteration())
    model = updraft.result_dir() / "model"
    shutil.rmtree(model, ignore_errors=True)  # of a launch that was lost just before its end; MLflow replaces no folder
    mlflow.lightgbm.save_model(booster, str(model))
    print(f"{booster.current_iteration()} rounds: val_accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
