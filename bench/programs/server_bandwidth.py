"""The program of the server's bandwidth in the figure `shared_memory`: `python server_bandwidth.py JSON`, in the
PyTorch learner's environment; needs a C compiler (`cc`).

One server of shared-memory training applies recorded gradients of two learners, without learners. In turn with it, a
loop in C does the same arithmetic without any of the protocol. Prints pairs of GB/s by size: of the server, of the
loop.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from updraft_learner.shared.memory import SLOTS, Segment, SharedLayout, attach, create
from updraft_learner.shared.optimizers import SGD
from updraft_learner.shared.server import RangeServer

LEARNERS = 2
ARRAYS = 6  # read: weights, momentum and two gradients; written: weights and momentum
BYTES = 400_000_000  # that one measurement moves, at least


def built(folder: Path) -> ctypes.CDLL:
    source, library = Path(__file__).with_name("stream.c"), folder / "stream.so"
    command = ["cc", "-O3", "-march=native", "-ffast-math", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


def recorded(elements: int) -> Segment:
    """Return shared memory in which both slots of two learners hold gradients."""
    layout = SharedLayout(elements, 1, LEARNERS)
    memory = attach(create(layout), layout)
    chance = np.random.default_rng(0)
    for slots in memory.slots:
        for slot in slots:
            slot[:] = chance.standard_normal(elements, np.float32) * 1e-3
    return memory


def of_server(memory: Segment, updates: int) -> float:
    """Return the seconds in which the server applies so many averages of two gradients."""
    server = RangeServer(memory, 0, SGD(lr=0.001, momentum=0.9), synchronous=True)
    layout = memory.layout
    began = time.perf_counter()
    for _ in range(updates):
        for learner in range(LEARNERS):
            memory.store(layout.pushed(learner), memory.load(layout.pushed(learner)) + 1)
        if not server.turn():
            raise RuntimeError("the server had nothing to apply")
    return time.perf_counter() - began


def of_loop(loop: ctypes.CDLL, memory: Segment, updates: int) -> float:
    """Return the seconds in which the loop does the same with the same arrays."""
    size = memory.layout.elements
    began = time.perf_counter()
    for update in range(updates):
        gradients = [slots[update % SLOTS] for slots in memory.slots]
        arrays = (memory.weights, memory.moments[0], *gradients)
        loop.mix(*(ctypes.c_void_p(each.ctypes.data) for each in arrays), ctypes.c_size_t(size))
    return time.perf_counter() - began


def main(megabytes: list[int], rounds: int) -> dict[str, list[tuple[float, float]]]:
    torch.set_num_threads(1)
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="updraft-bench-") as folder:
        loop = built(Path(folder))
        for size in megabytes:
            elements = size * 250_000
            memory = recorded(elements)
            updates = max(3, BYTES // (4 * ARRAYS * elements))
            moved = 4 * ARRAYS * elements * updates / 1e9
            of_server(memory, 2)
            of_loop(loop, memory, 2)
            pairs = [(of_server(memory, updates), of_loop(loop, memory, updates)) for _ in range(rounds)]
            found[str(size)] = [(moved / mine, moved / theirs) for mine, theirs in pairs]
    return found


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(main(asked["megabytes"], asked["rounds"])))
