"""What the tests of shared-memory training run: `python shared_programs.py NAME JSON`, in the PyTorch environment.

Prints what became of it as one line of JSON. With "kills" in the arguments, a thread sends SIGKILL to random
processes of the training until so many are gone.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import nn

import updraft_learner as updraft
from updraft_learner import shared

ELEMENTS_PER_STEP = 1
STEPS_PER_KILL = 25


class Marks(nn.Module):
    """One weight, or some, for each gradient: a lost or doubled gradient, or chunk of one, shows in its weights."""

    def __init__(self, learners: int, steps: int) -> None:
        super().__init__()
        self.marks = nn.Parameter(torch.zeros(ELEMENTS_PER_STEP, steps, learners))


def mark(learner: shared.SharedLearner) -> None:
    """With kills: do not run ahead of them, however fast the machine is."""
    gate = os.environ.get("UPDRAFT_TEST_GATE")
    pushed = False
    for step in learner.steps():
        while gate and step > STEPS_PER_KILL * (os.stat(gate).st_size + 1):
            time.sleep(0.001)
        learner.model.marks[:, step, learner.number].sum().backward()
        learner.push()
        if gate and not pushed:
            pushed = True
            open(f"{gate}-{os.getpid()}", "w").close()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 5))
        self.tied = nn.Linear(20, 30)
        self.tied.weight = self.layers[0].weight  # one parameter that two modules use

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        return self.layers(samples) + self.tied(samples)[:, :5]


def samples_of(step: int, learner: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step * 1000 + learner)
    samples = torch.randn(8, 20, generator=generator)
    return samples, samples[:, :5].argmax(dim=1)


def learn(learner: shared.SharedLearner) -> None:
    for step in learner.steps():
        samples, labels = samples_of(step, learner.number)
        nn.functional.cross_entropy(learner.model(samples), labels).backward()
        learner.push()


def poison(learner: shared.SharedLearner) -> None:
    for step in learner.steps():
        value = learner.model.marks[:, step, learner.number].sum()
        (value * (float("nan") if step % 3 == 0 and learner.number == 1 else 1.0)).backward()
        learner.push()


def grow(learner: shared.SharedLearner) -> None:
    for step in learner.steps():
        learner.model.marks.sum().backward()
        if step == 2:
            learner.model.marks.data = torch.zeros(7)
        learner.push()


def replace(learner: shared.SharedLearner) -> None:
    for step in learner.steps():
        if step == 2:
            learner.model.marks = nn.Parameter(torch.zeros(7))
        learner.model.marks.sum().backward()
        learner.push()


def hang(learner: shared.SharedLearner) -> None:
    for step in learner.steps():
        if step == 3 and learner.number == 1:
            time.sleep(3600)
        learner.model.marks.sum().backward()
        learner.push()


def leave(learner: shared.SharedLearner) -> None:
    for step in learner.steps():
        if step == 3 and learner.number == 1:
            return
        learner.model.marks.sum().backward()
        learner.push()


def fail(learner: shared.SharedLearner) -> None:
    for step in learner.steps():
        raise RuntimeError(f"no data for step {step}")


def forget(learner: shared.SharedLearner) -> None:
    for _ in learner.steps():
        learner.model.marks.sum().backward()


def die(learner: shared.SharedLearner) -> None:
    for _ in learner.steps():
        os.kill(os.getpid(), signal.SIGKILL)


def clamp(learner: shared.SharedLearner) -> None:
    for _ in learner.steps():
        learner.model.marks.data.clamp_(-1, 1)


PROGRAMS = {each.__name__: each for each in (mark, learn, poison, grow, replace, hang, leave, fail, forget, die, clamp)}


class Killer:
    """Kills processes of the training at random, until it has killed enough."""

    def __init__(self, kills: int, seed: int, pause_seconds: float) -> None:
        self.left, self.killed, self._chance, self._pause = kills, 0, Random(seed), pause_seconds
        self._running: dict[str, int] = {}
        self._dead: set[int] = set()
        self.gate = os.environ.get("UPDRAFT_TEST_GATE", os.devnull)
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._kill, daemon=True)

    def started(self, running: dict[str, int]) -> None:
        self._running = running
        if self._thread.ident is None:
            self._thread.start()

    def _victims(self) -> list[int]:
        """Three times out of four none that has just begun: on a busy machine nobody would ever push."""
        alive = {name: pid for name, pid in sorted(self._running.items()) if pid not in self._dead}
        if self._chance.random() < 0.25 or self.gate == os.devnull:
            return list(alive.values())
        learners = [pid for name, pid in alive.items() if os.path.exists(f"{self.gate}-{pid}")]
        return learners + [pid for name, pid in alive.items() if learners and name.startswith("server")]

    def _kill(self) -> None:
        while self.left and not self.over.wait(self._chance.uniform(0, 2 * self._pause)):
            pids = self._victims()
            if not pids:
                continue
            pid = self._chance.choice(pids)
            self._dead.add(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            self.left -= 1
            self.killed += 1
            with open(self.gate, "ab") as file:
                file.write(b".")
        with open(self.gate, "ab") as file:
            file.write(b"." * 1_000_000)


def main(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    adam = arguments.pop("adam", False)
    optimizer = (
        shared.Adam(lr=0.01)
        if adam
        else shared.SGD(lr=arguments.pop("lr", 1.0), momentum=arguments.pop("momentum", 0.0))
    )
    killer = Killer(arguments.pop("kills", 0), arguments.pop("seed", 0), arguments.pop("pause_seconds", 0.05))
    model = Net() if name == "learn" else Marks(arguments["learners"], arguments["steps"])
    if "folder" in arguments:
        arguments["checkpoints"] = updraft.Checkpointer(every_seconds=0.3, directory=Path(arguments.pop("folder")))
    try:
        trained = shared.train(model, PROGRAMS[name], optimizer=optimizer, started=killer.started, **arguments)
    except shared.SharedTrainingError as exc:
        return {"error": type(exc).__name__, "message": str(exc)}
    finally:
        killer.over.set()
    weights = torch.cat([each.detach().reshape(-1) for each in model.parameters()])
    found = {
        "restarts": trained.restarts,
        "killed": killer.killed,
        "skipped": trained.skipped,
        "stalest": trained.stalest,
        "seconds": trained.seconds,
        "digest": hashlib.sha256(weights.numpy().tobytes()).hexdigest(),
    }
    if isinstance(model, Marks):
        found["values"] = sorted(set(weights.tolist()))
    else:
        found["weights"] = weights.tolist()
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))))
