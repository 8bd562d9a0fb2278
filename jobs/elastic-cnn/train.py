"""Train a convolutional network with learners that join, leave and die while the others train on.

Alone, on your own machine:

    DATA_DIR=../data python train.py --epochs 3 --data digits/digits.csv

With several learners: start `python -m updraft_learner.elastic.coordinator --state state.json --port 29400`, and any
number of learners with UPDRAFT_ELASTIC=127.0.0.1:29400, at any time. What makes the program elastic is marked with (1)
to (3). With `virtual_ranks`, it gives the same model bit for bit, whatever happens to the learners.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import updraft_learner as updraft
from updraft_learner import elastic


def parse_config() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", default="training/digits.csv", help="below DATA_DIR")
    parser.set_defaults(**updraft.params())
    return parser.parse_args()


def load_split(name: str, split: str) -> tuple[Tensor, Tensor]:
    """Return pixels [N, 1, 8, 8] from 0 to 1, and labels [N]."""
    rows = np.loadtxt(updraft.data_dir() / name, delimiter=",", skiprows=1, dtype=str)
    rows = rows[rows[:, 0] == split]
    pixels = torch.from_numpy(rows[:, 2:].astype(np.float32)) / 16
    return pixels.reshape(-1, 1, 8, 8), torch.from_numpy(rows[:, 1].astype(np.int64))


def build_model() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 * 2 * 2, 10)),
    )


def main() -> None:
    config = parse_config()
    torch.manual_seed(config.seed)
    pixels, labels = load_split(config.data, "train")
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    training = elastic.init(  # (1)
        model,
        optimizer,
        TensorDataset(pixels, labels),
        batch=64,
        epochs=config.epochs,
        seed=config.seed,
        virtual_ranks=4,
        warm_up=lambda: cross_entropy(model(pixels[:16]), labels[:16]),
        checkpoints=updraft.Checkpointer(),
    )
    for some_pixels, some_labels in training:  # (2)
        loss = cross_entropy(model(some_pixels), some_labels)
        if training.step(loss) and training.rank == 0:  # (3)
            updraft.log_metrics({"loss": loss.item(), "learners": training.learners}, step=training.steps)

    print(f"{training.outcome} after {training.steps} steps in {len(training.changes)} groups", flush=True)
    if training.outcome == "finished" and training.rank == 0:
        val_pixels, val_labels = load_split(config.data, "val")
        model.eval()
        with torch.no_grad():
            accuracy = (model(val_pixels).argmax(1) == val_labels).float().mean().item()
        print(f"val_accuracy {accuracy:.4f}", flush=True)
        updraft.save_model(model, val_pixels[:8], metrics={"val_accuracy": accuracy})


if __name__ == "__main__":
    main()
