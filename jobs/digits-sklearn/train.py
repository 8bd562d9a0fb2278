"""Classify the digits with scikit-learn; MLflow's autolog records the rest.

On the platform, from the repository's root:

    updraft submit jobs/digits-sklearn --follow

On your own machine, beside an MLflow server:

    DATA_DIR=../data MLFLOW_TRACKING_URI=http://127.0.0.1:5000 python train.py --data digits/digits.csv

Nothing here is the platform's: MLFLOW_TRACKING_URI and MLFLOW_RUN_ID in the environment lead into the job's own run.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import mlflow
import numpy as np
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import accuracy_score, log_loss
from sklearn.pipeline import make_pipeline


def load_split(path: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels [N, 64] and labels [N]."""
    rows = np.loadtxt(path, delimiter=",", skiprows=1, dtype=str)
    rows = rows[rows[:, 0] == split]
    return rows[:, 2:].astype(np.float64), rows[:, 1].astype(np.int64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, default=200)
    parser.add_argument("--data", default="training/digits.csv", help="below DATA_DIR")
    config = parser.parse_args()
    path = Path(os.environ["DATA_DIR"]) / config.data

    mlflow.sklearn.autolog(log_models=False, log_datasets=False)
    train_x, train_y = load_split(path, "train")
    val_x, val_y = load_split(path, "val")
    with mlflow.start_run():
        model = make_pipeline(
            PCA(n_components=32, random_state=0), RandomForestClassifier(config.trees, random_state=0)
        )
        model.fit(train_x, train_y)
        probabilities = model.predict_proba(val_x)
        accuracy = accuracy_score(val_y, probabilities.argmax(axis=1))
        mlflow.log_metric("val_accuracy", accuracy)
        mlflow.log_metric("val_log_loss", log_loss(val_y, probabilities))
    print(f"{config.trees} trees: val_accuracy {accuracy:.4f} on {len(val_y)} samples")


if __name__ == "__main__":
    main()
