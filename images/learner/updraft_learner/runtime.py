"""Tell a program where it runs: its folders, rank, params, and whether it was asked to stop.

Everything is read from the environment that `contract.learner_environment` describes. Outside the platform the same
calls work: folders are below `./updraft-out`, params are empty, rank is 0. Importing this module inside a learner's
container starts the daemon thread of `stacks` and changes nothing else in the process. The first `stop_requested()`
installs the SIGTERM handler, because only a program that calls it will react.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from updraft_learner import stacks
from updraft_learner.contract import ExitCode

LOCAL_ROOT = "updraft-out"  # below the working directory, outside the platform

_stop_signalled = threading.Event()
_previous_handler: Callable[[int, FrameType | None], Any] | int | None = None
_handler_installed = False

stacks.start()

# Of a process that mpirun started: Open MPI, MPICH, Intel MPI.
MPI_RANKS = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def params() -> dict[str, Any]:
    """Return the manifest's `params`; an empty dict outside the platform.

    Example:
        config = {"epochs": 10, "lr": 1e-3} | params()
    """
    path = os.environ.get("UPDRAFT_PARAMS_FILE")
    if not path:
        return {}
    try:
        loaded = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    if not isinstance(loaded, dict):
        raise ValueError(f"{path} holds a {type(loaded).__name__}; params are a JSON object")
    return loaded


def data_dir() -> Path:
    """Return the folder with the manifest's `data`, each source below its `as` name. DATA_DIR on the platform.

    Example:
        rows = (data_dir() / "training" / "digits.csv").open()
    """
    return _folder("DATA_DIR", "data", create=False)


def result_dir() -> Path:
    """Return the folder for results: the platform keeps what is written there. RESULT_DIR; made if missing."""
    return _folder("RESULT_DIR", "result", create=True)


def init_dir() -> Path | None:
    """Return the folder with the checkpoint of another job that the manifest's `init_from` names; None if there is
    none, as for the first job of a series with `init_from: champion`, and outside the platform.

    A program that is resumed finds its own last checkpoint with `Checkpointer.latest`, and prefers that.

    Example:
        if checkpoints.latest() is None and (earlier := init_dir()) is not None:
            model.load_state_dict(torch.load(earlier / "model.pt"))
    """
    path = os.environ.get("UPDRAFT_INIT_FROM")
    return Path(path) if path and Path(path).is_dir() else None


def checkpoint_dir() -> Path:
    """Return the folder for checkpoints, CHECKPOINT_DIR; made if missing. A resumed program finds its last checkpoint
    there.
    """
    return _folder("CHECKPOINT_DIR", "checkpoints", create=True)


def rank() -> int:
    """Return this learner's rank, from 0 to `world_size() - 1`. Raises ValueError if RANK is not a whole number."""
    return _integer("RANK", 0, *MPI_RANKS)


def world_size() -> int:
    """Return how many learners train together. Raises ValueError if WORLD_SIZE is not a whole number."""
    return _integer("WORLD_SIZE", 1, *MPI_SIZES)


def attempt() -> int:
    """Return which launch of the job this is, from 1. An attempt above 1 resumes after a loss or a halt."""
    return _integer("UPDRAFT_ATTEMPT", 1)


def stop_requested() -> bool:
    """Return True once the program should save a checkpoint and leave through `preempted_exit()`.

    The request is SIGTERM or a file that the platform writes. Ask once per step: it costs one `stat`. In a gang,
    learners may see it one step apart: let all ranks agree (an all-reduce of the flag) before one leaves a collective.

        if stop_requested():
            checkpoints.save(state, step, block=True)
            preempted_exit()
    """
    install_signal_handler()
    return stop_pending()


def stop_pending() -> bool:
    """Return what `stop_requested` returns, for code that must not install a signal handler on the program's behalf."""
    return _stop_signalled.is_set() or stop_asked_of_all()


def stop_asked_of_all() -> bool:
    """Return whether the platform has asked the whole job to stop, not only this process by SIGTERM."""
    stop_file = os.environ.get("UPDRAFT_STOP_FILE")
    return bool(stop_file) and os.path.exists(str(stop_file))


def preempted_exit() -> NoReturn:
    """End the program with the exit code for: stopped on request, can be resumed from the last checkpoint (75)."""
    sys.exit(int(ExitCode.PREEMPTED))


def install_signal_handler() -> None:
    """Make SIGTERM a stop request instead of the end of the process; a handler that the program set before is still
    called.

    `stop_requested` calls this. It does nothing when it is called again, or from a thread other than the main thread,
    which alone may set handlers.
    """
    global _previous_handler, _handler_installed
    if _handler_installed or threading.current_thread() is not threading.main_thread():
        return
    _previous_handler = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, _on_sigterm)
    _handler_installed = True
    # Data-loading workers are forked with this handler but never call `stop_requested`: SIGTERM must still end them.
    os.register_at_fork(after_in_child=_restore_previous_handler)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    _stop_signalled.set()
    if callable(_previous_handler):
        _previous_handler(number, frame)


def _restore_previous_handler() -> None:
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, _previous_handler if _previous_handler is not None else signal.SIG_DFL)


def _folder(variable: str, local_name: str, *, create: bool) -> Path:
    value = os.environ.get(variable)
    folder = Path(value) if value else Path.cwd() / LOCAL_ROOT / local_name
    if create:
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _integer(variable: str, default: int, *others: str) -> int:
    """Return the number in the first of these variables that is set."""
    for name in (variable, *others):
        value = os.environ.get(name, "")
        if not value:
            continue
        try:
            return int(value)
        except ValueError:
            raise ValueError(f"environment variable {name} is {value!r}; it must be a whole number") from None
    return default
