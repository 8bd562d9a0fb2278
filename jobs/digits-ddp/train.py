"""Train one model on several learners with PyTorch's DistributedDataParallel.

On the platform, from the repository's root:

    updraft submit jobs/digits-ddp --follow

On your own machine, two processes:

    DATA_DIR=../data torchrun --nproc-per-node 2 train.py --epochs 3 --data digits/digits.csv

The rendezvous comes from the environment (MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE), as everywhere. Each rank has a
GPU of its own, or all train on CPUs. Rank 0 alone logs, saves checkpoints and hands over the model; all ranks resume
from the checkpoint, and all leave together when any of them is asked to stop. At the end the ranks compare a digest of
their parameters: they trained one model.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import updraft_learner as updraft


def parse_config() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--batch-size", type=int, default=64, help="of all learners together")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", default="training/digits.csv", help="below DATA_DIR")
    parser.set_defaults(**updraft.params())
    return parser.parse_args()


def load_split(name: str, split: str) -> TensorDataset:
    """Pixels [N, 1, 8, 8] from 0 to 1, and labels [N]."""
    rows = np.loadtxt(updraft.data_dir() / name, delimiter=",", skiprows=1, dtype=str)
    rows = rows[rows[:, 0] == split]
    pixels = torch.from_numpy(rows[:, 2:].astype(np.float32)) / 16
    return TensorDataset(pixels.reshape(-1, 1, 8, 8), torch.from_numpy(rows[:, 1].astype(np.int64)))


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


def parameter_digest(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


@torch.no_grad()
def evaluate(model: nn.Module, data: TensorDataset, device: torch.device) -> dict[str, float]:
    model.eval()
    pixels, labels = (tensor.to(device) for tensor in data.tensors)
    logits: Tensor = model(pixels)
    loss = nn.functional.cross_entropy(logits, labels)
    return {"val_loss": loss.item(), "val_accuracy": (logits.argmax(1) == labels).float().mean().item()}


def main() -> None:
    config = parse_config()
    device = choose_device()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, learners = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {learners} is connected, and trains on {device}")

    # Build. DDP sends rank 0's weights to the others.
    torch.manual_seed(config.seed + rank)
    train, val = load_split(config.data, "train"), load_split(config.data, "val")
    sampler: DistributedSampler[Tensor] = DistributedSampler(train, seed=config.seed)
    loader = DataLoader(train, batch_size=max(1, config.batch_size // learners), sampler=sampler)
    model = build_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)

    # Resume.
    checkpoints = updraft.Checkpointer()
    first_epoch = 1
    restored = checkpoints.restore()
    if restored is not None:
        state, step = restored
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_epoch = state["epoch"] + 1
        print(f"rank {rank} resumed after epoch {state['epoch']}, step {step}")
    replica = DistributedDataParallel(model)

    # Loop.
    steps_per_epoch = math.ceil(len(sampler) / loader.batch_size) if loader.batch_size else 0
    metrics: dict[str, float] = {}
    for epoch in range(first_epoch, config.epochs + 1):
        sampler.set_epoch(epoch)
        replica.train()
        loss_sum = torch.zeros((), device=device)
        for pixels, labels in loader:
            loss = nn.functional.cross_entropy(replica(pixels.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
        dist.all_reduce(loss_sum)

        step = epoch * steps_per_epoch
        last = epoch == config.epochs
        stop = any_rank(updraft.stop_requested(), device) and not last
        if rank == 0:
            metrics = {"loss": loss_sum.item() / (len(loader) * learners), **evaluate(model, val, device)}
            updraft.log_metrics(metrics, step=step)
            updraft.progress(step=step, total=config.epochs * steps_per_epoch, epoch=epoch, epochs=config.epochs)
            print(
                f"epoch {epoch}/{config.epochs}  loss {metrics['loss']:.4f}  val_accuracy {metrics['val_accuracy']:.4f}"
            )
        if stop or last or checkpoints.due():
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            checkpoints.save(state, step, metrics=metrics, block=stop or last)  # only rank 0 saves
        if stop:
            updraft.preempted_exit()

    # Close: one model, really.
    digests = [""] * learners
    dist.all_gather_object(digests, parameter_digest(model))
    print(f"rank {rank}: parameters {digests[rank]}")
    if len(set(digests)) != 1:
        raise SystemExit(f"the learners hold different parameters: {digests}")
    (updraft.result_dir() / "params.sha256").write_text(f"{digests[rank]}\n", encoding="ascii")
    if rank == 0:
        example, _ = val[:8]
        updraft.save_model(model, example, metrics=metrics)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
