"""The main functions of the learners and of the servers, and how they are started.

A process holds a lock of the kernel on the part that it plays, one byte of the shared memory, until it is dead. So no
learner or server ever has a double, even where the one who starts them is wrong about a death.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import pickle
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from typing import Any

from updraft_learner.shared.errors import ProgramFailed, SharedTrainingError
from updraft_learner.shared.learner import NonFinite, SharedLearner
from updraft_learner.shared.memory import Segment, SharedLayout, attach, readable_weights
from updraft_learner.shared.optimizers import SGD, Adam
from updraft_learner.shared.server import RangeServer
from updraft_learner.shared.waiting import wait_until

KERNELS = "updraft_learner.shared.kernels"  # compiled once, before servers are forked
MOST_TEXT = 16_000  # characters of a traceback: what a pipe holds, since nobody reads it before the end
Program = Callable[[SharedLearner], None]


@dataclass(frozen=True)
class TrainingPlan:
    """What each process must know; `model` is pickled."""

    layout: SharedLayout
    optimizer: SGD | Adam
    steps: int
    staleness: int | None
    nonfinite: NonFinite
    threads: int
    model: bytes
    program: Program


class ChildProcess:
    """A process that plays a part, and the text of the exception that ended it.

    Args:
        plan: What the process must know.
        descriptor: Of the shared memory.
        server: Whether it is a server; otherwise a learner.
        number: Which one, from 0.
    """

    def __init__(self, plan: TrainingPlan, descriptor: int, *, server: bool, number: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", __name__, KERNELS])
        self.problems, theirs = context.Pipe(duplex=False)
        self.process: BaseProcess = context.Process(
            target=_main, args=(_Passed(descriptor), theirs, plan, server, number), name=name_of(server, number)
        )
        self.process.start()
        theirs.close()

    def problem(self) -> SharedTrainingError | None:
        """Return the exception that ended it, if one did."""
        try:
            found = self.problems.recv() if self.problems.poll() else None
        except (EOFError, OSError):
            return None
        return found if isinstance(found, SharedTrainingError) else None

    def close(self) -> None:
        """End the process if it still runs."""
        self.process.kill()
        self.process.join()
        self.problems.close()


def name_of(server: bool, number: int) -> str:
    return f"{'server' if server else 'learner'} {number}"


class _Passed:
    """A descriptor on its way into a new process."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (DupFd(self.descriptor),)


def _received(passed: Any) -> int:
    return int(passed.detach())


def _main(descriptor: int, problems: Connection, plan: TrainingPlan, server: bool, number: int) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, number + (plan.layout.learners if server else 0))
    memory = attach(descriptor, plan.layout)
    try:
        if server:
            serve(memory, plan, number)
        else:
            _learn(descriptor, memory, plan, number)
    except SharedTrainingError as exc:
        problems.send(type(exc)(*exc.args))
        os._exit(1)
    except (Exception, SystemExit):  # noqa: BLE001 - outermost line of a process: `train` raises it
        text = traceback.format_exc()[-MOST_TEXT:]
        problems.send(ProgramFailed(f"{name_of(server, number)} failed:\n{text}"))
        os._exit(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def serve(memory: Segment, plan: TrainingPlan, number: int) -> None:
    """Apply what learners push until all gradients of all learners are applied."""
    import torch

    torch.set_num_threads(1)
    server = RangeServer(memory, number, plan.optimizer, synchronous=plan.staleness is None)
    server.recover()
    layout = plan.layout

    def over() -> bool:
        return all(memory.load(layout.applied(number, each)) >= plan.steps for each in range(layout.learners))

    while not over():
        wait_until(server.turn, memory.bells[layout.learners + number])


def _learn(descriptor: int, memory: Segment, plan: TrainingPlan, number: int) -> None:
    import torch

    torch.set_num_threads(plan.threads)
    model = pickle.loads(plan.model)
    weights = readable_weights(descriptor, plan.layout) if plan.staleness is None else None
    plan.program(SharedLearner(model, memory, number, plan.steps, plan.staleness, plan.nonfinite, weights))
