"""`train`: start the learners and the servers, start a killed one again, notice who is stuck, return the weights."""

from __future__ import annotations

import os
import pickle
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING

from updraft_learner.contract import SHARED_LEARNERS_ENV
from updraft_learner.shared.checkpointing import CheckpointManager
from updraft_learner.shared.errors import (
    InvalidSetting,
    InvalidSharedModel,
    ProgramFailed,
    TooManyKills,
    TrainingStalled,
)
from updraft_learner.shared.learner import NonFinite, SharedLearner, trainable
from updraft_learner.shared.memory import (
    CHUNK,
    MOST_LEARNERS,
    Segment,
    SharedLayout,
    attach,
    create,
    require_ordered_stores,
)
from updraft_learner.shared.optimizers import SGD, Adam
from updraft_learner.shared.processes import ChildProcess, TrainingPlan, name_of
from updraft_learner.shared.publisher import Publisher

if TYPE_CHECKING:
    import torch

    from updraft_learner.checkpoint import Checkpointer

LOOK_SECONDS = 0.1
LEAST_RANGE = 131072  # elements of a server's part, half a megabyte
MOST_SERVERS = 64
MOST_KILLS = 10  # of one process, without a gradient of its own in between


@dataclass(frozen=True)
class Trained:
    """What became of a training.

    Attributes:
        steps: How many gradients each learner pushed, each of which was applied once or skipped.
        skipped: How many of them were not finite and so skipped, by learner.
        restarts: How often a killed process was started again, by name: "learner 0", "server 0".
        stalest: The most updates that a gradient had missed when it was applied; 0 in synchronous training.
        seconds: From the start of the first process to the last gradient.
    """

    steps: int
    skipped: tuple[int, ...]
    restarts: dict[str, int]
    stalest: int
    seconds: float


def train(
    model: torch.nn.Module,
    program: Callable[[SharedLearner], None],
    *,
    steps: int,
    optimizer: SGD | Adam,
    learners: int | None = None,
    staleness: int | None = None,
    servers: int | None = None,
    nonfinite: NonFinite = "skip",
    patience_seconds: float = 300.0,
    started: Callable[[dict[str, int]], None] | None = None,
    checkpoints: Checkpointer | None = None,
    chunk: int = CHUNK,
) -> Trained:
    """Train `model` with several processes, and return when all steps are done. The model then has the new weights.

    Args:
        model: Its parameters that require a gradient are trained: float32, on the CPU. It is pickled for the learners.
        program: What each learner runs: a loop over `learner.steps()` with `learner.push()` in it. A function of a
            module, since other processes import it; call `train` below `if __name__ == "__main__":`.
        steps: Gradients of each learner, at least 1.
        optimizer: `SGD` or `Adam` of this package.
        learners: Processes that compute gradients, 1 to 256; by default `learners_asked()`. More than there are cores
            is allowed, and warned of.
        staleness: None: synchronous, each update is the average of one gradient of each learner. A number from 0: each
            gradient is an update of its own, and no learner starts a step while another one is more than this many
            steps behind.
        servers: Processes that apply gradients, each to its part of the weights, 1 to 64. By default one for each core,
            and fewer for a model of less than half a megabyte for each.
        nonfinite: What becomes of a gradient with NaN or infinity: "skip" it and count it, or "refuse" it, which ends
            the training.
        patience_seconds: How long a learner may compute, and a server apply, before it counts as stuck.
        started: Called with the process IDs by name each time that a process starts.
        checkpoints: Saves the training when it is due, and goes on from its newest one, also with other learners. A
            stop that the platform asks for is obeyed: the process saves and exits. Without it, nothing is saved.
        chunk: Elements that are applied at once, and of which an undo copy is kept.

    Raises:
        InvalidSetting: an argument is out of its range, the machine is not Linux on x86_64, or Numba is missing.
        InvalidSharedModel: the model cannot be trained so, now or from some step on.
        NotEnoughSharedMemory: said before anything is started, with the size that is needed.
        ProgramFailed: the program of a learner raised an exception, or returned before its last step.
        TrainingStalled: a learner pushed nothing, or a server applied nothing, for `patience_seconds`.
        TooManyKills: a process was killed eleven times without a step in between.
        SystemExit: a stop was asked for, and the checkpoint is complete.

    Example:
        model = Net()
        sgd = shared.SGD(lr=0.01, momentum=0.9)
        trained = shared.train(model, learn, steps=1000, optimizer=sgd, checkpoints=updraft.Checkpointer())
    """
    learners = learners_asked() if learners is None else learners
    _check(steps, learners, optimizer, staleness, servers, nonfinite, patience_seconds, chunk)
    parameters = list(trainable(model).values())
    elements, cores = sum(each.numel() for each in parameters), usable_cores()
    if servers is None:
        servers = max(1, min(cores, elements // LEAST_RANGE, MOST_SERVERS))
    layout = SharedLayout(elements, optimizer.moments, learners, servers, chunk)
    try:
        pickled = pickle.dumps(model)
        pickle.dumps(program)
    except Exception as exc:
        raise InvalidSharedModel(
            f"the model or the program cannot be pickled for the learners: {exc}; define both at the top of a module"
        ) from exc
    if learners > cores:
        warnings.warn(f"learners is {learners}, more than the {cores} cores that this process may use", stacklevel=2)
    descriptor = create(layout)
    try:
        memory = attach(descriptor, layout)
        manager = CheckpointManager(memory, steps, model, parameters, checkpoints)
        manager.restore()
        manager.write()
        threads = max(1, cores // learners)
        plan = TrainingPlan(layout, optimizer, steps, staleness, nonfinite, threads, pickled, program)
        team = _Team(plan, descriptor, memory, manager, patience_seconds, started)
        began = time.monotonic()
        manager.begin()
        try:
            team.run()
        finally:
            team.close()
        seconds = time.monotonic() - began
        manager.read()
        manager.finish()
        return Trained(
            steps=steps,
            skipped=tuple(memory.skipped(each) for each in range(learners)),
            restarts=team.restarts,
            stalest=max(memory.load(layout.stalest(each)) for each in range(servers)),
            seconds=seconds,
        )
    finally:
        os.close(descriptor)


class _Team:
    """The processes of one training, and what is known of each."""

    def __init__(
        self,
        plan: TrainingPlan,
        descriptor: int,
        memory: Segment,
        manager: CheckpointManager,
        patience_seconds: float,
        started: Callable[[dict[str, int]], None] | None,
    ) -> None:
        self._plan, self._descriptor, self._memory, self._manager = plan, descriptor, memory, manager
        self._patience = patience_seconds
        self._started = started
        self._parts: dict[tuple[bool, int], ChildProcess] = {}
        self._kills: dict[tuple[bool, int], int] = {}
        self._done: dict[tuple[bool, int], int] = {}
        self._moved: dict[tuple[bool, int], float] = {}
        self.restarts: dict[str, int] = {}

    def run(self) -> None:
        layout = self._plan.layout
        for server, count in ((True, layout.ranges), (False, layout.learners)):
            for number in range(count):
                self._start((server, number))
        while self._parts:
            wait([part.process.sentinel for part in self._parts.values()], timeout=LOOK_SECONDS)
            self._manager.look()
            for who, part in list(self._parts.items()):
                self._look(who)
                if part.process.exitcode is not None:
                    self._ended(who, part)

    def close(self) -> None:
        for part in self._parts.values():
            part.close()

    def _start(self, who: tuple[bool, int]) -> None:
        self._parts[who] = ChildProcess(self._plan, self._descriptor, server=who[0], number=who[1])
        self._moved[who] = time.monotonic()
        if self._started is not None:
            self._started({name_of(*who): part.process.pid or 0 for who, part in self._parts.items()})

    def _look(self, who: tuple[bool, int]) -> None:
        """Note what it has done, and raise TrainingStalled if it could go on and has not for too long."""
        server, number = who
        memory, layout = self._memory, self._plan.layout
        pushed = [memory.load(layout.pushed(each)) for each in range(layout.learners)]
        if server:
            done = memory.version(number)
            least = min(pushed) * layout.learners if self._plan.staleness is None else sum(pushed)
            may_go_on = done < least
        else:
            done = pushed[number]
            publisher = Publisher(memory, number, self._plan.staleness)
            may_go_on = publisher.may_start() and publisher.may_publish()
        now = time.monotonic()
        if done > self._done.get(who, 0):
            self._done[who] = done
            self._kills[who] = 0
            self._moved[who] = now
        elif not may_go_on:
            self._moved[who] = now
        elif now - self._moved[who] > self._patience:
            what = "applied no gradient" if server else "pushed no gradient"
            raise TrainingStalled(
                f"{name_of(*who)} has {what} for {self._patience:g} s, though nothing kept it from that. It has done "
                f"{done}{'' if server else f' of {self._plan.steps}'}; raise patience_seconds if a step takes that long"
            )

    def _ended(self, who: tuple[bool, int], part: ChildProcess) -> None:
        server, number = who
        problem, code = part.problem(), part.process.exitcode
        del self._parts[who]
        part.close()
        if problem is not None:
            raise problem
        memory, layout = self._memory, self._plan.layout
        whole = self._plan.steps * (layout.learners if server else 1)
        done = memory.version(number) if server else memory.load(layout.pushed(number))
        if code == 0:
            if done < whole:
                raise ProgramFailed(f"the program of {name_of(*who)} returned after {done} of its {whole} steps")
            return
        self._kills[who] = self._kills.get(who, 0) + 1
        if self._kills[who] > MOST_KILLS:
            how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            raise TooManyKills(
                f"{name_of(*who)} ended {self._kills[who]} times without a step in between, the last time by {how}; "
                "if that is 9, the pod may have too little memory; if it is signal 11, the program may have changed "
                "weights in place, which only the optimizer may"
            )
        self.restarts[name_of(*who)] = self.restarts.get(name_of(*who), 0) + 1
        self._start(who)


def learners_asked() -> int:
    """Return how many learners the manifest asks for with `strategy: shared_memory`; without one, as in a program that
    is run by hand, as many as there are cores.

    Raises:
        InvalidSetting: UPDRAFT_SHARED_LEARNERS is no whole number of at least 1.

    Example:
        steps = epochs * len(samples) // (BATCH * shared.learners_asked())
    """
    named = os.environ.get(SHARED_LEARNERS_ENV, "")
    if not named:
        return usable_cores()
    if not named.isascii() or not named.isdigit() or int(named) < 1:
        raise InvalidSetting(f"{SHARED_LEARNERS_ENV} is {named!r}; the platform sets it, so do not set it in env")
    return int(named)


def usable_cores() -> int:
    """Return how many cores this process may use: its affinity, and the CPU limit of the pod, rounded up."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, -(-int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or "max"
        pass
    return cores


def _check(
    steps: int,
    learners: int,
    optimizer: SGD | Adam,
    staleness: int | None,
    servers: int | None,
    nonfinite: str,
    patience_seconds: float,
    chunk: int,
) -> None:
    require_ordered_stores()
    if find_spec("numba") is None:
        raise InvalidSetting("Numba is not installed; PyTorch's image has it, others need numba>=0.68")
    for name, value, least, most in (
        ("steps", steps, 1, 1 << 40),
        ("learners", learners, 1, MOST_LEARNERS),
        *((("servers", servers, 1, MOST_SERVERS),) if servers is not None else ()),
        ("chunk", chunk, 1, 1 << 30),
        *((("staleness", staleness, 0, 1 << 40),) if staleness is not None else ()),
    ):
        if not isinstance(value, int) or not least <= value <= most:
            raise InvalidSetting(f"{name} is {value!r}; give a whole number from {least} to {most}")
    if not isinstance(optimizer, SGD | Adam):
        raise InvalidSetting(f"optimizer is {optimizer!r}; give updraft_learner.shared.SGD or Adam")
    if nonfinite not in ("skip", "refuse"):
        raise InvalidSetting(f"nonfinite is {nonfinite!r}; give 'skip' or 'refuse'")
    if not patience_seconds > 0:
        raise InvalidSetting(f"patience_seconds is {patience_seconds!r}; give a number above 0")
