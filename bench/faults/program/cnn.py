"""A convolutional network on the digits beside the hash chain of `chain.py`; with several learners by PyTorch's DDP.

State goes through `updraft_learner.Checkpointer`, metrics through `log_metrics`, the model through `save_model`, as in
jobs/digits-cnn and jobs/digits-ddp. The chain is part of the checkpoint's state, so it proves what was restored.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

import chain
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import updraft_learner as updraft

BATCH = 64


def load() -> tuple[Tensor, Tensor]:
    """Return pixels [N, 1, 8, 8] and labels [N]."""
    rows = np.loadtxt(updraft.data_dir() / "training" / "digits.csv", delimiter=",", skiprows=1, dtype=str)
    pixels = torch.from_numpy(rows[:, 2:].astype(np.float32)) / 16
    return pixels.reshape(-1, 1, 8, 8), torch.from_numpy(rows[:, 1].astype(np.int64))


def build() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16 * 4 * 4, 10)),
    )


def together(flag: bool) -> bool:
    """Return True on every learner if `flag` is true on one."""
    if chain.WORLD == 1:
        return flag
    flags = torch.tensor([int(flag)])
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    return bool(flags.item())


def main() -> None:
    params, witness = chain.begin()
    steps, step_seconds = int(params["steps"]), float(params["step_seconds"])
    if chain.WORLD > 1:
        dist.init_process_group("gloo")
    pixels, labels = load()
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpoints = updraft.Checkpointer()
    restored = checkpoints.restore()
    step, digest, lineage = 0, hashlib.sha256(chain.JOB.encode()).hexdigest(), []
    if restored is not None:
        state, step = restored
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        digest, lineage = state["digest"], [list(part) for part in state["lineage"]]
    step, digest, lineage = chain.goes_on(witness, step, digest, lineage, steps)
    replica = DistributedDataParallel(model) if chain.WORLD > 1 else model

    def save(block: bool) -> None:
        state: dict[str, Any] = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "digest": digest,
            "lineage": lineage,
        }
        checkpoints.save(state, step, block=block)
        witness.tell(event="saved", step=step)

    saved_step = step
    while step < steps:
        leave = together(chain.stopped or updraft.stop_requested())
        if step > saved_step and (leave or together(checkpoints.due())):
            save(block=leave)
            saved_step = step
        if leave:
            witness.tell(event="exit", code=chain.PREEMPTED, step=step)
            print(f"asked to stop: leaves after step {step}", flush=True)
            updraft.preempted_exit()
        time.sleep(step_seconds)
        step += 1
        batch = torch.arange(step * BATCH + chain.RANK, (step + 1) * BATCH, chain.WORLD) % len(labels)
        loss = nn.functional.cross_entropy(replica(pixels[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        digest = chain.made_step(step, digest, lineage, witness)
        if chain.RANK == 0:
            updraft.log_metrics({"chain": step, "loss": loss.item()}, step=step)
            updraft.progress(step=step, total=steps)
        chain.fail_on_purpose(step, params, witness)
    save(block=True)
    if chain.RANK == 0:
        model.eval()
        updraft.save_model(model, pixels[:8])
    chain.finish(step, digest, lineage, witness)
    if chain.WORLD > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
