"""Classify the digits with Keras.

On the platform, from the repository's root:

    updraft submit jobs/digits-keras --follow

On your own machine, with keras, tensorflow and mlflow installed:

    updraft run --local jobs/digits-keras --data training=jobs/data/digits
"""

from __future__ import annotations

import shutil

import keras
import mlflow
import numpy as np

import updraft_learner as updraft
from updraft_learner.adapters import keras as updraft_keras


def load(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels [N, 8, 8, 1], from 0 to 1, and labels [N] of a split."""
    rows = np.loadtxt(updraft.data_dir() / "training" / "digits.csv", delimiter=",", skiprows=1, dtype=str)
    rows = rows[rows[:, 0] == split]
    return rows[:, 2:].astype(np.float32).reshape(-1, 8, 8, 1) / 16, rows[:, 1].astype(np.int64)


def main() -> None:
    config = {"epochs": 10, "width": 32, "learning_rate": 0.001, "seed": 1} | updraft.params()
    keras.utils.set_random_seed(config["seed"])
    (x, y), (val_x, val_y) = load("train"), load("val")
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(config["width"], 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(config["learning_rate"]),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    updraft_keras.fit(model, x, y, epochs=config["epochs"], batch_size=64, validation_data=(val_x, val_y), verbose=2)
    accuracy = float((model.predict(val_x, verbose=0).argmax(1) == val_y).mean())
    folder = updraft.result_dir() / "model"
    shutil.rmtree(
        folder, ignore_errors=True
    )  # of a launch that was lost just before its end; MLflow replaces no folder
    mlflow.keras.save_model(model, str(folder))
    print(f"val_accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
