"""Classify the digits with Lightning.

On the platform, from the repository's root:

    updraft submit jobs/digits-lightning --follow

On your own machine, with lightning installed:

    updraft run --local jobs/digits-lightning --data training=jobs/data/digits
"""

from __future__ import annotations

import lightning
import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import updraft_learner as updraft
from updraft_learner.adapters import lightning as updraft_lightning


def load(split: str) -> TensorDataset:
    """Return the pixels [N, 64], from 0 to 1, and labels [N] of a split."""
    rows = np.loadtxt(updraft.data_dir() / "training" / "digits.csv", delimiter=",", skiprows=1, dtype=str)
    rows = rows[rows[:, 0] == split]
    return TensorDataset(
        torch.from_numpy(rows[:, 2:].astype(np.float32) / 16), torch.from_numpy(rows[:, 1].astype(np.int64))
    )


class Digits(lightning.LightningModule):
    def __init__(self, width: int, learning_rate: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the scores [N, 10] of the pixels [N, 64]."""
        return self.layers(pixels)

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        loss = functional.cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        self.log("val_accuracy", (self(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), self.learning_rate)


def main() -> None:
    config = {"epochs": 10, "width": 128, "learning_rate": 0.001, "seed": 1} | updraft.params()
    lightning.seed_everything(config["seed"])
    model = Digits(config["width"], config["learning_rate"])
    trainer = lightning.Trainer(
        max_epochs=config["epochs"],
        accelerator="auto",
        enable_progress_bar=False,
        enable_checkpointing=False,
        logger=False,
        log_every_n_steps=10,
    )
    updraft_lightning.fit(
        trainer,
        model,
        DataLoader(load("train"), batch_size=64, shuffle=True),
        DataLoader(load("val"), batch_size=512),
    )
    updraft.save_model(model.layers.cpu().eval(), torch.zeros(2, 64))
    print(f"val_accuracy {trainer.callback_metrics['val_accuracy']:.4f}")


if __name__ == "__main__":
    main()
