"""`plain.py`, made elastic: learners join, leave and die while the others train on. `diff -w plain.py train.py` shows
the lines that differ.

    DATA_DIR=../data python train.py --epochs 3 --data digits/digits.csv
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn, optim
from torch.nn import functional
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

import updraft_learner as updraft
from updraft_learner import elastic


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.conv1(x))
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2)
        x = functional.relu(self.fc1(self.dropout(torch.flatten(x, 1))))
        return functional.log_softmax(self.fc2(x), dim=1)


def train(args: argparse.Namespace, model: Net, device: torch.device, data: TensorDataset) -> None:
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=200, gamma=args.gamma)
    more = {"also": {"scheduler": scheduler}, "after_step": scheduler.step, "checkpoints": updraft.Checkpointer()}
    training = elastic.init(model, optimizer, data, batch=args.batch_size, epochs=args.epochs, **more)
    model.train()
    for step, (pixels, target) in enumerate(training):
        output = model(pixels.to(device))
        loss = functional.nll_loss(output, target.to(device))
        training.step(loss)
        if step % args.log_interval == 0:
            print(f"epoch {training.epoch}  step {step}  loss {loss.item():.4f}", flush=True)


def test(model: Net, device: torch.device, data: TensorDataset) -> None:
    model.eval()
    correct = 0
    with torch.no_grad():
        for pixels, target in DataLoader(data, batch_size=256):
            correct += int((model(pixels.to(device)).argmax(1) == target.to(device)).sum())
    print(f"val_accuracy {correct / len(data):.4f}", flush=True)


def load_split(name: str, split: str) -> TensorDataset:
    """Return pixels [N, 1, 8, 8] from 0 to 1, and labels [N]."""
    rows = np.loadtxt(updraft.data_dir() / name, delimiter=",", skiprows=1, dtype=str)
    rows = rows[rows[:, 0] == split]
    pixels = torch.from_numpy(rows[:, 2:].astype(np.float32)).reshape(-1, 1, 8, 8) / 16
    return TensorDataset(pixels, torch.from_numpy(rows[:, 1].astype(np.int64)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--data", default="training/digits.csv", help="below DATA_DIR")
    parser.set_defaults(**updraft.params())
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Net().to(device)
    train(args, model, device, load_split(args.data, "train"))
    test(model, device, load_split(args.data, "val"))


if __name__ == "__main__":
    main()
