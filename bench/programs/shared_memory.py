"""The program of the figure `shared_memory`: `python shared_memory.py JSON`, in the PyTorch learner's environment.

Runs each case in turn with shared memory, with PyTorch's gloo and with a parameter server on TCP: the same learners and
model, SGD with momentum, each update the average of all. Prints the seconds of a step of learner 0, by case and way.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from updraft_learner import shared
from updraft_learner.shared.kernels import descend_with_momentum

LR, MOMENTUM = 0.001, 0.9
WARM = 5  # steps before the clock runs
WAY_SECONDS = 300


class Flat(nn.Module):
    """So many megabytes of weights, and no computation: the gradient is there already."""

    def __init__(self, megabytes: float) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(int(megabytes * 250_000)))


class Net(nn.Module):
    """A classifier of 2.7 MB."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        return self.layers(samples)


def made(case: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    return Flat(case["megabytes"]) if "megabytes" in case else Net()


def stepper(case: dict[str, Any], model: nn.Module, called: nn.Module | None = None) -> Callable[[], None]:
    """Return what computes the gradients of one step."""
    if isinstance(model, Flat):
        gradient = torch.full_like(model.weights, 1e-3)

        def given() -> None:
            model.weights.grad = gradient

        return given
    samples, labels = torch.randn(case["batch"], 784), torch.randint(0, 10, (case["batch"],))

    def computed() -> None:
        nn.functional.cross_entropy((called or model)(samples), labels).backward()

    return computed


class Clock:
    """Writes the mean seconds of a step after the first few."""

    def __init__(self, steps: int, out: Path) -> None:
        self._left, self._steps, self._out, self._began = steps + WARM, steps, out, 0.0

    def tick(self) -> None:
        """Count one finished step."""
        self._left -= 1
        if self._left == self._steps:
            self._began = time.perf_counter()
        elif self._left == 0:
            self._out.write_text(str((time.perf_counter() - self._began) / self._steps))


def by_shared(case: dict[str, Any], out: Path, staleness: int | None = None) -> None:
    program = partial(_learn_shared, case=case, out=out)
    steps = case["steps"] + WARM + 1  # the last update is not waited for
    optimizer = shared.SGD(lr=LR, momentum=MOMENTUM)
    shared.train(made(case), program, steps=steps, learners=case["learners"], optimizer=optimizer, staleness=staleness)


def _learn_shared(learner: shared.SharedLearner, case: dict[str, Any], out: Path) -> None:
    act, clock, begun = stepper(case, learner.model), Clock(case["steps"], out), False
    for _ in learner.steps():
        if begun and learner.number == 0:
            clock.tick()  # now the weights of the step before are here
        begun = True
        act()
        learner.push()


def by_gloo(case: dict[str, Any], out: Path) -> None:
    _spawn(_learn_gloo, case, out, _free_port())


def _learn_gloo(rank: int, case: dict[str, Any], out: Path, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=case["learners"])
    model = made(case)
    flat = isinstance(model, Flat)
    replica = None if flat else DistributedDataParallel(model)
    act, clock = stepper(case, model, replica), Clock(case["steps"], out)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    for _ in range(case["steps"] + WARM):
        optimizer.zero_grad()
        act()
        if flat:
            dist.all_reduce(model.weights.grad)
            model.weights.grad /= case["learners"]
        optimizer.step()
        if rank == 0:
            clock.tick()
    dist.barrier()
    os._exit(0)  # the end of a gloo group aborts the process now and then (torch 2.15)


def by_tcp(case: dict[str, Any], out: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = multiprocessing.get_context("fork").Process(target=_serve_tcp, args=(listening, case))
        server.start()
        try:
            _spawn(_learn_tcp, case, out, listening.getsockname()[1])
            server.join(timeout=10)
        finally:
            server.kill()


def _serve_tcp(listening: socket.socket, case: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    peers = [listening.accept()[0] for _ in range(case["learners"])]
    for peer in peers:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    elements = sum(each.numel() for each in made(case).parameters())
    weights, velocity = np.zeros(elements, np.float32), np.zeros(elements, np.float32)
    total, given = np.zeros(elements, np.float32), np.empty(elements, np.float32)
    optimizer = shared.SGD(lr=LR, momentum=MOMENTUM)
    for step in range(case["steps"] + WARM):
        total[:] = 0
        for peer in peers:
            _receive(peer, given)
            total += given
        total /= len(peers)
        descend_with_momentum(weights, velocity, total, total, optimizer.numbers(step + 1, 2))
        for peer in peers:
            peer.sendall(weights.data)


def _learn_tcp(rank: int, case: dict[str, Any], out: Path, port: int) -> None:
    torch.set_num_threads(1)
    model = made(case)
    parameters = list(model.parameters())
    act, clock = stepper(case, model), Clock(case["steps"], out)
    elements = sum(each.numel() for each in parameters)
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        weights = np.empty(elements, np.float32)
        for _ in range(case["steps"] + WARM):
            for each in parameters:
                each.grad = None
            act()
            flat = torch.cat([each.grad.reshape(-1) for each in parameters])
            peer.sendall(flat.numpy().data)
            _receive(peer, weights)
            with torch.no_grad():
                torch.nn.utils.vector_to_parameters(torch.from_numpy(weights), parameters)
            if rank == 0:
                clock.tick()


def _receive(peer: socket.socket, into: np.ndarray[Any, np.dtype[np.float32]]) -> None:
    view = memoryview(into).cast("B")
    while view:
        got = peer.recv_into(view)
        if not got:
            raise ConnectionError("the other side has gone")
        view = view[got:]


def _spawn(target: Callable[..., None], case: dict[str, Any], out: Path, port: int) -> None:
    context = multiprocessing.get_context("spawn")
    running = [context.Process(target=target, args=(rank, case, out, port)) for rank in range(case["learners"])]
    for each in running:
        each.start()
    try:
        for each in running:
            each.join(timeout=WAY_SECONDS)
            if each.exitcode != 0:
                raise RuntimeError(f"{target.__name__} ended with {each.exitcode}")
    finally:
        for each in running:
            each.kill()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


WAYS: dict[str, Callable[..., None]] = {
    "shared": by_shared,
    "gloo": by_gloo,
    "tcp": by_tcp,
    "shared, staleness 8": partial(by_shared, staleness=8),
}


def main(cases: list[dict[str, Any]], rounds: int) -> list[dict[str, list[float]]]:
    found: list[dict[str, list[float]]] = []
    with tempfile.TemporaryDirectory(prefix="updraft-bench-") as folder:
        out = Path(folder) / "seconds"
        for case in cases:
            seconds: dict[str, list[float]] = {}
            for _ in range(rounds):
                for name in case["ways"]:
                    WAYS[name](case, out)
                    seconds.setdefault(name, []).append(float(out.read_text()))
                    out.unlink()
            found.append(seconds)
    return found


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(main(asked["cases"], asked["rounds"])))
