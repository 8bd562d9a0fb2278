"""Save checkpoints from the program in the background, and verify them before use.

`save` costs the training thread one copy of the state. A background thread serialises, hashes, flushes and publishes
it; the interpreter waits for this thread at exit. `checkpoint_format` defines the folder format, and the sidecar
uploads checkpoints. `updraft_learner.torch` handles tensors; it is imported only when a state is saved or restored.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, SupportsFloat, cast

from updraft_learner import checkpoint_format as fmt
from updraft_learner import runtime
from updraft_learner.checkpoint_format import (
    Checkpoint,
    CheckpointError,
    CorruptCheckpoint,
    FileFacts,
    PartialCheckpoint,
)

if TYPE_CHECKING:
    from updraft_learner.torch import StateBuffers

__all__ = ["Checkpoint", "CheckpointError", "Checkpointer", "CorruptCheckpoint"]

DEFAULT_EVERY_SECONDS = 60.0
KEEP_ON_DISK = 3  # newest checkpoints of this process; in the store, the manifest decides
STATE_FILE = "state.pt"
SHARDED_FILE = ".metadata"  # the file by which PyTorch finds the shards of a state
# New buffers above this size are first prepared in the background: writing to fresh memory takes longer than the copy.
PREPARE_ABOVE_BYTES = 16 << 20

Writer = Callable[[Path], object]


def interval(every_seconds: float | None) -> float:
    """Return the seconds between saves: `every_seconds`, or what the manifest says. Raises ValueError."""
    if every_seconds is None:
        every_seconds = float(os.environ.get("UPDRAFT_CHECKPOINT_SECONDS") or DEFAULT_EVERY_SECONDS)
    if every_seconds < 0:
        raise ValueError(f"every_seconds is {every_seconds:g}; it must be 0 or more")
    return every_seconds


class Background:
    """A thread for one save at a time. An error in it is printed, and raised by the next `wait`."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: CheckpointError | None = None
        self.program_ends = False  # then no new thread can be started

    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], None]) -> None:
        if self.program_ends:
            work()
            return
        # Not a daemon thread: the interpreter joins it at exit, so the last save is always completed.
        self._thread = threading.Thread(target=work, name="updraft-checkpoint")
        self._thread.start()

    def failed(self, step: int, exc: Exception) -> None:
        reason = (exc.strerror if isinstance(exc, OSError) else None) or str(exc)
        self._error = CheckpointError(f"checkpoint of step {step} was not written: {reason}")
        self._error.__cause__ = exc
        warn(f"{self._error}; training goes on")

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error


class OnDisk:
    """The newest checkpoints of this process in a directory; older ones are removed from it."""

    def __init__(self, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"keep_on_disk is {keep}; it must be 1 or more")
        self._keep = keep
        self._paths: list[Path] = []

    def add(self, newest: Path) -> None:
        self._paths = [path for path in self._paths if path != newest] + [newest]
        while len(self._paths) > self._keep:
            fmt.remove(self._paths.pop(0))

    @property
    def newest(self) -> Path | None:
        return self._paths[-1] if self._paths else None


class LastSave:
    """The last save that the program offered; it is made when the program ends without an exception or a signal."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._save: Callable[[], object] | None = None

    def offer(self, save: Callable[[], object]) -> None:
        if self._save is None:
            atexit.register(self._at_end)
        self._save = save

    def _at_end(self) -> None:
        if self._save is None or hasattr(sys, "last_value"):  # set by an uncaught exception
            return
        self._background.program_ends = True
        with suppress(CheckpointError):  # the error was printed; the last save may succeed all the same
            self._background.wait()
        try:
            self._save()
        except Exception as exc:  # noqa: BLE001 - the program's work is done, so only report the error
            warn(f"the last checkpoint was not written: {exc}")


class Checkpointer:
    """Save and restore the state of one training. Make one per process and directory: it removes unfinished saves of
    earlier processes.

    Args:
        every_seconds: How often `due()` returns True; by default the manifest's `checkpoints.every`, else 60.
        directory: By default CHECKPOINT_DIR.
        keep_on_disk: How many of its own newest checkpoints stay in the directory; older folders are removed from it.
            On the platform, the sidecar also removes uploaded ones, except the newest two.
        all_ranks: Save on every rank; by default only rank 0 saves, and `save` on other ranks does nothing.
        clock: Returns monotonic seconds.
        background: Runs the saves; by default one of its own.

    Attributes:
        saves: Whether this process saves.

    Raises:
        ValueError: `every_seconds` is negative or `keep_on_disk` is below 1.

    Example:
        checkpoints = Checkpointer()
        restored = checkpoints.restore()
        first = 0
        if restored is not None:
            state, first = restored
            model.load_state_dict(state["model"])
        for step in range(first + 1, steps + 1):
            train(step)
            checkpoints.save_when_due(lambda: {"model": model.state_dict()}, step)
    """

    def __init__(
        self,
        every_seconds: float | None = None,
        *,
        directory: Path | None = None,
        keep_on_disk: int = KEEP_ON_DISK,
        all_ranks: bool = False,
        clock: Callable[[], float] = time.monotonic,
        background: Background | None = None,
    ) -> None:
        self.every_seconds = interval(every_seconds)
        self._on_disk = OnDisk(keep_on_disk)
        self.directory = directory if directory is not None else runtime.checkpoint_dir()
        self._rank = runtime.rank()
        self.saves = all_ranks or self._rank == 0
        self._clock = clock
        self._last_seconds = clock()
        self._was_due = False
        self._background = background or Background()
        self._known_steps: set[int] = set()
        self._buffers: StateBuffers | None = None
        self._last = LastSave(self._background)
        if self.saves:
            clean_up(self.directory, self._rank)

    def due(self) -> bool:
        """Return whether it is time for the next save on this rank and no save is running."""
        self._was_due = not self._background.running() and self._clock() - self._last_seconds >= self.every_seconds
        return self._was_due and self.saves

    def save(
        self,
        state: Mapping[str, Any] | Writer | None = None,
        step: int | None = None,
        metrics: Mapping[str, SupportsFloat] | None = None,
        block: bool = False,
        *,
        writer: Writer | None = None,
    ) -> bool:
        """Begin a checkpoint of `state` at `step`; returns whether that step is, or will be, saved.

        Args:
            state: tensors, numbers and text in dicts, lists and tuples (`state_dict()`s); or a writer.
            step: what the training resumes from. A step is saved once.
            metrics: kept beside the checkpoint, so that the best ones can be told.
            block: wait until the checkpoint is complete, and raise if it fails. Use it for the last one.
            writer: called with an empty folder instead of a state, in this thread, for programs without PyTorch.

        While another save runs, nothing is begun unless `block` is set. The first save of a large state that `due()`
        asked for prepares its buffers in the background and is put off by a step or two.

        Raises:
            TypeError: the state holds something that could not be restored.
            CheckpointError: with `block`, the checkpoint could not be written.
        """
        if callable(state):
            state, writer = None, state
        if step is None or (state is None) == (writer is None):
            raise TypeError("save() takes a step and either a state or a writer")
        if not self.saves:
            return False
        if block:
            self.wait()
        elif self._background.running():
            return False
        if step in self._known_steps:
            return True
        checkpoint = Checkpoint(
            path=self.directory / fmt.step_name(step),
            step=int(step),
            metrics={name: float(value) for name, value in (metrics or {}).items()},
            attempt=runtime.attempt(),
            rank=self._rank,
            created=fmt.now(),
        )
        temporary = self.directory / f"{fmt.TEMPORARY_PREFIX}r{self._rank}-{fmt.step_name(step)}-{os.getpid()}"
        if writer is not None:
            temporary.mkdir(parents=True)
            try:
                writer(temporary)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            self._begin(lambda: fmt.hash_folder(temporary, flush=True), temporary, checkpoint)
        else:
            if self._prepares(state, block):
                return False
            copied = self._state_buffers().copy(state)
            self._begin(lambda: _write_state(copied, temporary), temporary, checkpoint)
        if block:
            self.wait()
        return True

    def save_when_due(
        self,
        state: Callable[[], Mapping[str, Any]] | Mapping[str, Any] | None = None,
        step: int | None = None,
        metrics: Mapping[str, SupportsFloat] | None = None,
        *,
        writer: Writer | None = None,
    ) -> bool:
        """Call this at each step or epoch: saves if it is time, and the last one when the program ends.

        The program's end counts unless an exception or a signal ended it. Returns whether a save was begun.

        Args:
            state: what `save` takes, or better a function that returns it: the function is called only when a
                checkpoint is written, so at the end too.
            step, metrics, writer: as for `save`.

        Raises:
            TypeError: as `save`.

        Example:
            for step in range(first, last):
                train(step)
                checkpoints.save_when_due(lambda: {"model": model.state_dict()}, step)
        """
        if step is None or (state is None) == (writer is None):
            raise TypeError("save_when_due() takes a step and either a state, or a writer")

        def save(block: bool = False) -> bool:
            given = state() if callable(state) else state
            return self.save(given, step, metrics, block, writer=writer)

        if self.saves:
            self._last.offer(lambda: save(block=True))
        return self.due() and save()

    def wait(self) -> None:
        """Wait for a running save.

        Raises:
            CheckpointError: the last save failed and this was not raised before.
        """
        self._background.wait()

    def latest(self) -> Checkpoint | None:
        """Return the newest complete checkpoint whose files are intact, or None if there is none.

        A corrupt checkpoint is renamed to `.bad-...`, and the one before it is tried. Use this for checkpoints of a
        writer: their files lie in `latest().path`.
        """
        for path in fmt.complete_checkpoints(self.directory):
            try:
                return fmt.read(path)
            except CorruptCheckpoint as exc:
                warn(f"{exc}; it is set aside as {fmt.quarantine(path).name} and the one before is used")
            except PartialCheckpoint:
                continue
        return None

    def restore(self, map_location: Any = "cpu") -> tuple[dict[str, Any], int] | None:
        """Return the state and step of the newest intact checkpoint, or None when the training starts from nothing.

        `map_location` says where tensors are loaded to, as in `torch.load`; the state is as it was given to `save`.
        Corrupt checkpoints are treated as by `latest`.

        Raises:
            CheckpointError: the checkpoint is intact but holds no state of `save(state, ...)`, or does not load.
        """
        checkpoint = self.latest()
        if checkpoint is None:
            return None
        path = checkpoint.path / STATE_FILE
        if checkpoint.parts > 1 or (checkpoint.path / SHARDED_FILE).is_file():
            raise CheckpointError(
                f"checkpoint {checkpoint.path.name} holds a sharded state: use ShardedCheckpointer().restore(into=...)"
            )
        if not path.is_file():
            raise CheckpointError(
                f"checkpoint {checkpoint.path.name} has no {STATE_FILE}: it was made by a writer; use latest().path"
            )
        try:
            state = torch_part().read_state(path, map_location)
        except Exception as exc:
            raise CheckpointError(f"checkpoint {checkpoint.path.name} does not load: {exc}") from exc
        self._known_steps.add(checkpoint.step)
        return cast("dict[str, Any]", state), checkpoint.step

    def _prepares(self, state: Any, block: bool) -> bool:
        """Start allocating missing buffers in the background if that is worth it; True when it was started."""
        buffers = self._state_buffers()
        missing = buffers.missing(state)
        small = torch_part().size_bytes(missing) <= PREPARE_ABOVE_BYTES
        if small or block or not self._was_due or runtime.stop_pending():
            return False
        self._background.start(lambda: buffers.reserve(missing))
        return True

    def _begin(self, fill: Callable[[], Mapping[str, FileFacts]], temporary: Path, checkpoint: Checkpoint) -> None:
        self._last_seconds = self._clock()
        self._background.start(lambda: self._finish(fill, temporary, checkpoint))

    def _finish(self, fill: Callable[[], Mapping[str, FileFacts]], temporary: Path, checkpoint: Checkpoint) -> None:
        try:
            files = fill()
            fmt.publish(temporary, replace(checkpoint, files=files))
            self._known_steps.add(checkpoint.step)
            self._on_disk.add(checkpoint.path)
        except Exception as exc:  # noqa: BLE001 - outermost line of the thread: a failed save must not end the training
            shutil.rmtree(temporary, ignore_errors=True)
            self._background.failed(checkpoint.step, exc)

    def _state_buffers(self) -> StateBuffers:
        if self._buffers is None:
            self._buffers = torch_part().StateBuffers()
        return self._buffers


def clean_up(directory: Path, rank: int) -> None:
    """Remove what an earlier process of this rank left half-written."""
    for path in directory.glob(f"{fmt.TEMPORARY_PREFIX}r{rank}-*"):
        shutil.rmtree(path, ignore_errors=True)


def _write_state(state: Any, temporary: Path) -> dict[str, FileFacts]:
    temporary.mkdir(parents=True)
    write = torch_part().write_state
    return {STATE_FILE: fmt.write_file(temporary / STATE_FILE, lambda file: write(state, cast(BinaryIO, file)))}


def torch_part() -> Any:
    try:
        from updraft_learner import torch
    except ModuleNotFoundError as exc:
        raise CheckpointError(
            f"saving and restoring a state needs PyTorch ({exc}); use Checkpointer().save(writer=...)"
        ) from exc
    return torch


def warn(text: str) -> None:
    print(f"updraft: {text}", file=sys.stderr, flush=True)
