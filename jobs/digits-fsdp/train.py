"""Train one model that is spread over several processes with PyTorch's FSDP2 (`fully_shard`).

On the platform, from the repository's root:

    updraft submit jobs/digits-fsdp --follow

On your own machine, two processes:

    DATA_DIR=../data torchrun --nproc-per-node 2 train.py --epochs 3 --data digits/digits.csv

Each process holds a shard of the parameters and of the optimizer's state. `ShardedCheckpointer` saves the shards of all
ranks as one checkpoint, from which any number of processes resumes. Rank 0 alone logs.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import updraft_learner as updraft


def parse_config() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64, help="of all processes together")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", default="training/digits.csv", help="below DATA_DIR")
    parser.set_defaults(**updraft.params())
    return parser.parse_args()


def load_split(name: str, split: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return pixels [N, 64] from 0 to 1, and labels [N]."""
    rows = np.loadtxt(updraft.data_dir() / name, delimiter=",", skiprows=1, dtype=str)
    rows = rows[rows[:, 0] == split]
    pixels = torch.from_numpy(rows[:, 2:].astype(np.float32)) / 16
    return pixels.to(device), torch.from_numpy(rows[:, 1].astype(np.int64)).to(device)


def choose_device() -> torch.device:
    """Return this process' own GPU, if the learner has one for each process; else the CPU."""
    processes, process = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    if os.environ.get("GPU_COUNT") == "0" or torch.cuda.device_count() < processes:
        return torch.device("cpu")
    torch.cuda.set_device(process)
    return torch.device("cuda", process)


def build_model(device: torch.device) -> nn.Module:
    """Return the model with each block, and the rest, sharded over all ranks."""
    blocks = [nn.Sequential(nn.Linear(width, 128), nn.ReLU()) for width in (64, 128)]
    model = nn.Sequential(*blocks, nn.Linear(128, 10)).to(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def mean(value: Tensor) -> float:
    """Return the mean over all ranks, on all ranks."""
    total = value.detach().clone()
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


def main() -> None:
    config = parse_config()
    device = choose_device()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(config.seed)  # the same parameters on all ranks, before they are sharded
    model = build_model(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    held = sum(parameter.to_local().numel() for parameter in model.parameters())
    print(f"rank {rank} of {ranks} holds {held} parameters on {device}")

    def state(epoch: int) -> dict[str, Any]:
        model_state, optimizer_state = get_state_dict(model, optimizer)
        return {"model": model_state, "optimizer": optimizer_state, "epoch": epoch}

    # Resume.
    checkpoints = updraft.ShardedCheckpointer()
    first_epoch = 1
    restored = checkpoints.restore(into=state(0))
    if restored is not None:
        loaded, _ = restored
        set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
        first_epoch = loaded["epoch"] + 1
        print(f"rank {rank} resumed after epoch {loaded['epoch']}")

    # Loop: every rank takes its part of each batch, in an order that all ranks know.
    pixels, labels = load_split(config.data, "train", device)
    seen_pixels, seen_labels = load_split(config.data, "val", device)
    steps = len(pixels) // config.batch_size
    for epoch in range(first_epoch, config.epochs + 1):
        order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(config.seed + epoch))
        for step in range(steps):
            batch = order[step * config.batch_size : (step + 1) * config.batch_size][rank::ranks]
            loss = nn.functional.cross_entropy(model(pixels[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            accuracy = mean((model(seen_pixels).argmax(1) == seen_labels).float().mean())
        metrics = {"loss": mean(loss), "val_accuracy": accuracy}
        if rank == 0:
            updraft.log_metrics(metrics, step=epoch * steps)
            updraft.progress(step=epoch * steps, total=config.epochs * steps, epoch=epoch, epochs=config.epochs)
            print(f"epoch {epoch}/{config.epochs}  loss {metrics['loss']:.4f}  val_accuracy {accuracy:.4f}")
        stop = mean(torch.tensor(float(updraft.stop_requested()), device=device)) > 0 and epoch < config.epochs
        if stop or epoch == config.epochs or checkpoints.due():
            checkpoints.save(state(epoch), epoch * steps, metrics=metrics, block=stop or epoch == config.epochs)
        if stop:
            updraft.preempted_exit()
    checkpoints.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
