"""Train a small network on the digits, in the way of FfDL's examples: options, environment variables, print.

    updraft submit jobs/ffdl-digits --follow
    RESULT_DIR=. python3 train.py --dataset ../data/digits/digits.csv --epochs 3

Knows neither Updraft nor MLflow: reads a file below DATA_DIR, prints its metrics, writes the model to RESULT_DIR.
"""

from __future__ import annotations

import argparse
import os

import numpy as np
import torch
from torch import nn


def load(path: str, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    rows = np.loadtxt(path, delimiter=",", skiprows=1, dtype=str)
    rows = rows[rows[:, 0] == split]
    return torch.from_numpy(rows[:, 2:].astype(np.float32)) / 16, torch.from_numpy(rows[:, 1].astype(np.int64))


def main() -> None:
    parser = argparse.ArgumentParser(description="PyTorch digits")
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=0.002)
    args = parser.parse_args()
    result_dir = os.environ["RESULT_DIR"]
    print("Training", os.environ.get("TRAINING_ID", "here"), "learner", os.environ.get("LEARNER_ID", "1"), flush=True)

    torch.manual_seed(0)
    train_x, train_y = load(args.dataset, "train")
    test_x, test_y = load(args.dataset, "test")
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=args.learning_rate)
    for epoch in range(1, args.epochs + 1):
        for batch in torch.randperm(len(train_y)).split(args.batch_size):
            loss = nn.functional.cross_entropy(model(train_x[batch]), train_y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
        print(f"Epoch {epoch}, loss {loss.item():.4f}, accuracy {accuracy:.4f}", flush=True)

    path = os.path.join(result_dir, "model.pt")
    torch.save(model.state_dict(), path)
    print("Model saved in file:", path, flush=True)


if __name__ == "__main__":
    main()
