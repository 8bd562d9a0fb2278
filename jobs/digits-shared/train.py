"""Train with small batches and several processes that exchange gradients through shared memory.

On the platform, from the repository's root:

    updraft submit jobs/digits-shared --follow

On your own machine:

    DATA_DIR=../data python train.py --epochs 2 --data digits/digits.csv

Each learner runs `learn` and takes its own samples, by the number of the step. The main process starts the learners and
the server, saves checkpoints, and hands over the model.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn

import updraft_learner as updraft
from updraft_learner import shared

BATCH = 8  # samples of one learner's step


def parse_config() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", default="training/digits.csv", help="below DATA_DIR")
    parser.set_defaults(**updraft.params())
    return parser.parse_args()


def load_split(name: str, split: str) -> tuple[Tensor, Tensor]:
    """Pixels [N, 1, 8, 8] from 0 to 1, and labels [N]."""
    rows = np.loadtxt(updraft.data_dir() / name, delimiter=",", skiprows=1, dtype=str)
    rows = rows[rows[:, 0] == split]
    pixels = torch.from_numpy(rows[:, 2:].astype(np.float32)) / 16
    return pixels.reshape(-1, 1, 8, 8), torch.from_numpy(rows[:, 1].astype(np.int64))


def build_model() -> nn.Module:
    """GroupNorm in place of BatchNorm, whose running statistics learners would not share."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(4, 64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 2 * 2, 10)),
    )


def learn(learner: shared.SharedLearner) -> None:
    """What each learner does: the same order of samples for all, of which each takes its part."""
    config = parse_config()
    pixels, labels = load_split(config.data, "train")
    epoch, order = -1, torch.empty(0)
    steps = steps_of_epoch(len(labels), learner.learners)
    for step in learner.steps():
        if step // steps != epoch:
            epoch = step // steps
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(config.seed * 100_003 + epoch))
        first = (step % steps * learner.learners + learner.number) * BATCH
        chosen = order[first : first + BATCH]
        loss = nn.functional.cross_entropy(learner.model(pixels[chosen]), labels[chosen])
        loss.backward()
        learner.push()
        if step % 20 == 0:
            learner.log_metrics({"loss": loss.item()}, step=step)


def steps_of_epoch(samples: int, learners: int) -> int:
    """Steps of each learner; what is left of an epoch for less than a batch of all is left out."""
    return samples // (BATCH * learners)


def main() -> None:
    config = parse_config()
    torch.manual_seed(config.seed)
    model = build_model()
    _, labels = load_split(config.data, "train")
    steps = config.epochs * steps_of_epoch(len(labels), shared.learners_asked())
    trained = shared.train(
        model,
        learn,
        steps=steps,
        optimizer=shared.Adam(lr=config.learning_rate),
        checkpoints=updraft.Checkpointer(),
    )
    print(trained)

    pixels, labels = load_split(config.data, "val")
    model.eval()
    with torch.no_grad():
        logits: Tensor = model(pixels)
    metrics = {
        "val_loss": nn.functional.cross_entropy(logits, labels).item(),
        "val_accuracy": (logits.argmax(1) == labels).float().mean().item(),
    }
    print(metrics)
    updraft.log_metrics(metrics, step=steps)
    updraft.save_model(model, pixels[:8], metrics=metrics)


if __name__ == "__main__":
    main()
