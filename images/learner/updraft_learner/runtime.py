"""Where a program runs: its folders, rank, params, and whether it was asked to stop.

Everything is read from the environment that `contract.learner_environment` describes. Outside the platform the same
calls work: folders lie below `./updraft-out`, params are empty, rank is 0. Importing this module inside a learner's
container starts the daemon thread of `stacks` and changes nothing else in the process; the SIGTERM handler is installed
by the first `stop_requested()`, because only a program that asks will react.
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


def params() -> dict[str, Any]:
    """The manifest's `params`; empty outside the platform."""
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
    """Where the manifest's `data` lies, each source below its `as` name."""
    return _folder("DATA_DIR", "data", create=False)


def result_dir() -> Path:
    """What is written here is kept as the job's results."""
    return _folder("RESULT_DIR", "result", create=True)


def checkpoint_dir() -> Path:
    """Where checkpoints are written, and laid before a resumed program starts."""
    return _folder("CHECKPOINT_DIR", "checkpoints", create=True)


def rank() -> int:
    """This learner's rank among `world_size()`, from 0."""
    return _integer("RANK", 0)


def world_size() -> int:
    """How many learners train together."""
    return _integer("WORLD_SIZE", 1)


def attempt() -> int:
    """Which launch of the job this is, from 1."""
    return _integer("UPDRAFT_ATTEMPT", 1)


def stop_requested() -> bool:
    """True once the program should save a checkpoint and leave through `preempted_exit()`.

    The request is a file written by the platform or SIGTERM. Ask once per step: it costs one `stat`. In a gang each
    learner may see it a step apart; let all ranks agree (an all-reduce of the flag) before leaving a collective.
    """
    install_signal_handler()
    return stop_pending()


def stop_pending() -> bool:
    """Like `stop_requested`, for code that must not install a signal handler on the program's behalf."""
    if _stop_signalled.is_set():
        return True
    stop_file = os.environ.get("UPDRAFT_STOP_FILE")
    return bool(stop_file) and os.path.exists(str(stop_file))


def preempted_exit() -> NoReturn:
    """Leave with the exit code that means: stopped on request, resumable from the last checkpoint."""
    sys.exit(int(ExitCode.PREEMPTED))


def install_signal_handler() -> None:
    """Turn SIGTERM into a stop request; a handler that the program set before is called too.

    Does nothing when called again, or from another thread than the main one (only that may set handlers).
    """
    global _previous_handler, _handler_installed
    if _handler_installed or threading.current_thread() is not threading.main_thread():
        return
    _previous_handler = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, _on_sigterm)
    _handler_installed = True
    # Data-loading workers are forked with our handler but never ask: they must still die of SIGTERM.
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


def _integer(variable: str, default: int) -> int:
    value = os.environ.get(variable, "")
    if not value:
        return default
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"environment variable {variable} is {value!r}; it must be a whole number") from None
