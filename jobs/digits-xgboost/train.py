"""Classify the digits with XGBoost.

On the platform, from the repository's root:

    updraft submit jobs/digits-xgboost --follow

On your own machine, with xgboost and mlflow installed:

    updraft run --local jobs/digits-xgboost --data training=jobs/data/digits
"""

from __future__ import annotations

import shutil

import mlflow
import numpy as np
import xgboost

import updraft_learner as updraft
from updraft_learner.adapters import xgboost as updraft_xgboost


def load(split: str) -> xgboost.DMatrix:
    """Return the pixels [N, 64] and labels [N] of a split."""
    rows = np.loadtxt(updraft.data_dir() / "training" / "digits.csv", delimiter=",", skiprows=1, dtype=str)
    rows = rows[rows[:, 0] == split]
    return xgboost.DMatrix(rows[:, 2:].astype(np.float32), rows[:, 1].astype(np.int64))


def main() -> None:
    config = {"rounds": 200, "max_depth": 4, "learning_rate": 0.1} | updraft.params()
    train, val = load("train"), load("val")
    booster = updraft_xgboost.train(
        {
            "objective": "multi:softprob",
            "num_class": 10,
            "max_depth": config["max_depth"],
            "eta": config["learning_rate"],
            "eval_metric": ["mlogloss", "merror"],
        },
        train,
        num_boost_round=config["rounds"],
        evals=[(train, "train"), (val, "val")],
        verbose_eval=20,
    )
    accuracy = float((booster.predict(val).argmax(1) == val.get_label()).mean())
    updraft.log_metrics({"val_accuracy": accuracy}, step=booster.num_boosted_rounds())
    model = updraft.result_dir() / "model"
    shutil.rmtree(model, ignore_errors=True)  # of a launch that was lost just before its end; MLflow replaces no folder
    mlflow.xgboost.save_model(booster, str(model))
    print(f"{booster.num_boosted_rounds()} rounds: val_accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
