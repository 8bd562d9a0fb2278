"""Classify the digits with a vision transformer and Hugging Face's Trainer.

On the platform, from the repository's root:

    updraft submit jobs/digits-huggingface --follow

On your own machine, with transformers, accelerate and datasets installed:

    updraft run --local jobs/digits-huggingface --data training=jobs/data/digits
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import updraft_learner as updraft
from updraft_learner.adapters import huggingface


class Digits(Dataset[dict[str, Any]]):
    """The pixels [1, 8, 8], from 0 to 1, and the label of each digit of a split."""

    def __init__(self, split: str) -> None:
        rows = np.loadtxt(updraft.data_dir() / "training" / "digits.csv", delimiter=",", skiprows=1, dtype=str)
        rows = rows[rows[:, 0] == split]
        self.pixels = torch.from_numpy(rows[:, 2:].astype(np.float32).reshape(-1, 1, 8, 8) / 16)
        self.labels = torch.from_numpy(rows[:, 1].astype(np.int64))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"pixel_values": self.pixels[index], "labels": self.labels[index]}


def main() -> None:
    config = {"epochs": 8, "learning_rate": 0.002, "seed": 1} | updraft.params()
    train, val = Digits("train"), Digits("val")
    torch.manual_seed(config["seed"])
    model = ViTForImageClassification(
        ViTConfig(
            image_size=8,
            patch_size=2,
            num_channels=1,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            num_labels=10,
        )
    )
    arguments = TrainingArguments(
        output_dir=str(updraft.result_dir() / "trainer"),
        num_train_epochs=config["epochs"],
        learning_rate=config["learning_rate"],
        per_device_train_batch_size=64,
        per_device_eval_batch_size=512,
        logging_steps=10,
        save_strategy="no",  # the adapter saves as the manifest says
        report_to=[],
        seed=config["seed"],
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=train,
        eval_dataset=val,
        compute_metrics=lambda result: {"accuracy": float((result.predictions.argmax(1) == result.label_ids).mean())},
    )
    huggingface.train(trainer)
    accuracy = trainer.evaluate()["eval_accuracy"]
    updraft.log_metrics({"val_accuracy": accuracy}, step=trainer.state.global_step)
    model.save_pretrained(updraft.result_dir() / "model")
    print(f"val_accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
