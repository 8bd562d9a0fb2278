"""Train a small convolutional network on the digits.

On the platform, from the repository's root:

    updraft submit jobs/digits-cnn --follow

On your own machine, with results and checkpoints below ./updraft-out (a second call goes on from the last checkpoint):

    DATA_DIR=../data python train.py --epochs 5 --data digits/digits.csv

Parameters come from the manifest's `params`, and each may be given as an option. It trains on a GPU where there is one.
The random numbers of an epoch depend on the seed and the epoch alone, so on a CPU a training that was interrupted ends
with the same weights as one that was not.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator

import torch
from digits import DigitsNet, augment, load_split
from torch import Tensor, nn

import updraft_learner as updraft


def parse_config() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--width", type=int, default=48, help="channels of the first convolution")
    parser.add_argument("--learning-rate", type=float, default=2e-4, help="at the start; falls to 0 along a cosine")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", default="training/digits.csv", help="below DATA_DIR")
    parser.set_defaults(**updraft.params())
    return parser.parse_args()


def batches(count: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    yield from torch.randperm(count, generator=generator).split(size)


@torch.no_grad()
def evaluate(model: nn.Module, pixels: Tensor, labels: Tensor) -> dict[str, float]:
    model.eval()
    logits = model(pixels)
    loss = nn.functional.cross_entropy(logits, labels)
    return {"val_loss": loss.item(), "val_accuracy": (logits.argmax(1) == labels).float().mean().item()}


def main() -> None:
    config = parse_config()

    # Build.
    torch.manual_seed(config.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_pixels, train_labels = load_split(updraft.data_dir() / config.data, "train")
    val_pixels, val_labels = load_split(updraft.data_dir() / config.data, "val")
    val_pixels, val_labels = val_pixels.to(device), val_labels.to(device)
    model = DigitsNet(config.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=config.epochs)
    steps_per_epoch = math.ceil(len(train_labels) / config.batch_size)
    total_steps = steps_per_epoch * config.epochs
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{len(train_labels)} samples to train on, {parameters:,} parameters, on {device}")

    # Resume.
    checkpoints = updraft.Checkpointer()
    first_epoch, metrics = 1, {}
    restored = checkpoints.restore()
    if restored is not None:
        state, step = restored
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
        first_epoch, metrics = state["epoch"] + 1, state["metrics"]
        print(f"resumed after epoch {state['epoch']}, step {step}")

    # Loop.
    for epoch in range(first_epoch, config.epochs + 1):
        started = time.monotonic()
        generator = torch.Generator().manual_seed(config.seed * 1_000_003 + epoch)
        model.train()
        losses = []
        for batch in batches(len(train_labels), config.batch_size, generator):
            logits = model(augment(train_pixels[batch], generator).to(device))
            loss = nn.functional.cross_entropy(logits, train_labels[batch].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        learning_rate = schedule.get_last_lr()[0]
        schedule.step()

        step = epoch * steps_per_epoch
        metrics = {"loss": torch.stack(losses).mean().item(), **evaluate(model, val_pixels, val_labels)}
        metrics["learning_rate"] = learning_rate
        updraft.log_metrics(metrics, step=step)
        updraft.progress(step=step, total=total_steps, epoch=epoch, epochs=config.epochs)
        print(
            f"epoch {epoch}/{config.epochs}  loss {metrics['loss']:.4f}  val_loss {metrics['val_loss']:.4f}  "
            f"val_accuracy {metrics['val_accuracy']:.4f}  {time.monotonic() - started:.2f} s"
        )

        stop = updraft.stop_requested() and epoch < config.epochs
        if stop or checkpoints.due() or epoch == config.epochs:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
                "epoch": epoch,
                "metrics": metrics,
            }
            checkpoints.save(state, step, metrics=metrics, block=stop or epoch == config.epochs)
        if stop:
            print(f"asked to stop: saved after epoch {epoch}")
            updraft.preempted_exit()

    # Close.
    folder = updraft.save_model(model, val_pixels[:8], metrics=metrics)
    print(f"model saved: {folder}")


if __name__ == "__main__":
    main()
