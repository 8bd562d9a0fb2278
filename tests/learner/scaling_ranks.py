"""The ranks of the scaling tests: `python scaling_ranks.py ROOT RANKS`, run in the PyTorch environment.

Linear regression, whose gradient noise scale is known: with data `y = w x + e` and the model at zero, the gradient of a
sample is `-2 y x`. Each rank writes its metrics file to ROOT/rank-N.jsonl.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from updraft_learner import scaling

BATCH, STEPS, DIMENSIONS = 16, 600, 10


def main(root: Path, rank: int, ranks: int) -> None:
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "UPDRAFT_METRICS_FILE": str(root / f"rank-{rank}.jsonl"),
        "UPDRAFT_ATTEMPT": "1",
    }
    scaling.REPORT_SECONDS = 0.0
    scaling.PAIR_EVERY = 2
    torch.set_num_threads(1)
    torch.manual_seed(100 + rank)
    if ranks > 1:
        dist.init_process_group("gloo", init_method=f"file://{root}/rendezvous", rank=rank, world_size=ranks)
    model = torch.nn.Linear(DIMENSIONS, 1, bias=False)
    torch.nn.init.zeros_(model.weight)

    def backward(network: torch.nn.Module, samples: int) -> None:
        x = torch.randn(samples, DIMENSIONS)
        y = x.sum(1, keepdim=True) + torch.randn(samples, 1)
        ((network(x) - y) ** 2).mean().backward()

    scaling.analyze(model, lambda samples: backward(model, samples), (4, 64))
    assert model.weight.grad is None
    noise = scaling.GradientNoise(BATCH)
    noise.average = scaling.NoiseAverage(0.995)
    network: torch.nn.Module = model
    if ranks > 1:
        network = DistributedDataParallel(model)
        noise.watch(network)
    for step in range(STEPS * (1 if ranks > 1 else 2)):  # the model stays as it is: so does its noise scale
        model.zero_grad()
        backward(network, BATCH)
        noise.update(model, step=step)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    root, ranks = Path(sys.argv[1]), int(sys.argv[2])
    for rank in range(1, ranks):
        if os.fork() == 0:
            main(root, rank, ranks)
            os._exit(0)
    main(root, 0, ranks)
    for _ in range(1, ranks):
        assert os.wait()[1] == 0
