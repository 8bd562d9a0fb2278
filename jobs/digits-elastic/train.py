"""Train a model with as many learners as the platform gives, and with the batch that it chooses for them.

On the platform, from the repository's root:

    updraft submit jobs/digits-elastic --follow

On your own machine, two processes:

    DATA_DIR=../data torchrun --nproc-per-node 2 train.py --epochs 3 --data digits/digits.csv

When the platform changes the number of learners, it stops the program and starts it again from its checkpoint. So the
program keeps how many samples it has trained on, and every number of learners goes on with the sample that comes next:
each sample is used once in an epoch. What makes the program elastic is marked with (1) to (5).
"""

from __future__ import annotations

import argparse
import os

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import updraft_learner as updraft
from updraft_learner import scaling


def parse_config() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
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
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.3), nn.Linear(64 * 2 * 2, 10)),
    )


def choose_device() -> torch.device:
    """This rank's own GPU, where the job asks for some or the machine has one for each rank; else the CPU."""
    ranks_here, rank_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    if os.environ.get("GPU_COUNT") == "0" or torch.cuda.device_count() < ranks_here:
        return torch.device("cpu")
    torch.cuda.set_device(rank_here)
    return torch.device("cuda", rank_here)


def any_rank(flag: bool, device: torch.device) -> bool:
    """True on every rank if it is true on one: learners may hear of a stop a step apart."""
    flags = torch.tensor([int(flag)], device=device)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return bool(flags.item())


class Samples:
    """The samples of all epochs, one after the other: each epoch has an order of its own, which all ranks know."""

    def __init__(self, number: int, seed: int) -> None:
        self._number, self._seed = number, seed
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def take(self, first: int, last: int) -> Tensor:
        """The samples from position `first` to before `last`, counted over all epochs."""
        parts = []
        while first < last:
            epoch, at = divmod(first, self._number)
            if epoch != self._epoch:
                generator = torch.Generator().manual_seed(self._seed * 100_003 + epoch)
                self._epoch, self._order = epoch, torch.randperm(self._number, generator=generator)
            until = min(self._number, at + last - first)
            parts.append(self._order[at:until])
            first += until - at
        return torch.cat(parts)


@torch.no_grad()
def evaluate(model: nn.Module, pixels: Tensor, labels: Tensor) -> dict[str, float]:
    model.eval()
    logits: Tensor = model(pixels)
    loss = nn.functional.cross_entropy(logits, labels)
    model.train()
    return {"val_loss": loss.item(), "val_accuracy": (logits.argmax(1) == labels).float().mean().item()}


def main() -> None:
    config = parse_config()
    device = choose_device()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, learners = dist.get_rank(), dist.get_world_size()

    share = updraft.batch_size(32)  # (1) of this learner, of the batch that the platform chose
    learning_rate = config.learning_rate * updraft.lr_scale()  # (2)
    print(f"rank {rank} of {learners} trains on {device} with {share} samples in a step", flush=True)

    torch.manual_seed(config.seed)
    train_pixels, train_labels = (part.to(device) for part in load_split(config.data, "train"))
    val_pixels, val_labels = (part.to(device) for part in load_split(config.data, "val"))
    model = build_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)

    # Resume.
    checkpoints = updraft.Checkpointer()
    step = seen = 0
    restored = checkpoints.restore()
    if restored is not None:
        state, step = restored
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        seen = state["seen"]  # (3) how many samples were trained on, by whatever number of learners
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        print(f"rank {rank} resumed after step {step} and {seen} samples", flush=True)

    def backward(network: nn.Module, chosen: Tensor) -> Tensor:
        loss = nn.functional.cross_entropy(network(train_pixels[chosen]), train_labels[chosen])
        loss.backward()
        return loss.detach()

    scaling.analyze(model, lambda n: backward(model, torch.arange(n)), (8, 32, 128))  # (4) how the job will scale
    replica = DistributedDataParallel(model)
    noise = scaling.GradientNoise(share)  # (5) up to which batch it is worth it
    noise.watch(replica)

    # Loop.
    samples = Samples(len(train_labels), config.seed)
    total, batch = config.epochs * len(train_labels), share * learners
    metrics: dict[str, float] = {}
    while seen < total:
        first = seen + rank * share
        loss = backward(replica, samples.take(first, first + share))
        noise.update(model, step=step)
        optimizer.step()
        optimizer.zero_grad()
        step, seen = step + 1, seen + batch

        last = seen >= total
        if rank == 0:
            updraft.log_metrics({"loss": loss.item()}, step=step)
            updraft.progress(step=step, total=step + (total - seen + batch - 1) // batch)
        if seen // len(train_labels) != (seen - batch) // len(train_labels) or last:
            metrics = evaluate(model, val_pixels, val_labels)
            if rank == 0:
                updraft.log_metrics(metrics, step=step)
                print(f"{seen} of {total} samples  val_accuracy {metrics['val_accuracy']:.4f}", flush=True)
        stop = any_rank(updraft.stop_requested(), device) and not last
        if stop or last or checkpoints.due():
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "seen": seen}
            checkpoints.save(state, step, metrics=metrics, block=stop or last)  # only rank 0 saves
        if stop:
            updraft.preempted_exit()

    if rank == 0:
        updraft.save_model(model, val_pixels[:8], metrics=metrics)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
