"""What the adapters share: versions of libraries, checkpoints that are folders, metrics, and a stop.

A checkpoint of an adapter holds what the library itself writes, and `adapter.json`, which says who wrote it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn, SupportsFloat

from updraft_learner import metrics as platform_metrics
from updraft_learner import runtime
from updraft_learner.checkpoint import Checkpointer, CheckpointError

ABOUT_FILE = "adapter.json"


class AdapterError(ImportError):
    """The library is missing, or its version is not one that the adapter was made for."""


def need(library: str, oldest: str, below: str) -> None:
    """Check the installed version of a library. Raises AdapterError, which names the versions that are supported."""
    supported = f"updraft_learner.adapters supports {library} >={oldest},<{below}"
    try:
        found = version(library)
    except PackageNotFoundError:
        raise AdapterError(f"{library} is not installed; {supported}") from None
    if not _numbers(oldest) <= _numbers(found) < _numbers(below):
        raise AdapterError(f"{library} {found} is installed; {supported}")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text.partition("+")[0])[:3])


@dataclass(frozen=True)
class Saved:
    """A checkpoint of an adapter.

    Attributes:
        path: Folder with the library's files.
        step: Step at which it was saved.
        facts: What the adapter wrote beside the files.
    """

    path: Path
    step: int
    facts: Mapping[str, Any]


class FolderCheckpoints:
    """Checkpoints of one library, each a folder that the library fills.

    Args:
        library: Name of the library, kept in the checkpoint.
        every_seconds: How often `due` returns True; by default the manifest's `checkpoints.every`, else 60.
    """

    def __init__(self, library: str, every_seconds: float | None = None) -> None:
        self.library = library
        self._checkpointer = Checkpointer(every_seconds)
        self._continued_from: int | None = None

    @property
    def directory(self) -> Path:
        return self._checkpointer.directory

    def due(self) -> bool:
        """Return whether it is time for the next save, on this rank."""
        return self._checkpointer.due()

    def save(
        self,
        write: Callable[[Path], object],
        step: int,
        *,
        facts: Mapping[str, Any] | None = None,
        metrics: Mapping[str, SupportsFloat] | None = None,
        block: bool = False,
    ) -> bool:
        """Save a checkpoint whose files `write` puts into the empty folder that it is given.

        Returns whether this step is, or will be, saved: not while another save runs, and not on ranks above 0. Raises
        CheckpointError with `block`, if it could not be written.
        """
        if step == self._continued_from:
            return True
        about = {"library": self.library, **(facts or {})}

        def write_all(folder: Path) -> None:
            write(folder)
            (folder / ABOUT_FILE).write_text(json.dumps(about))

        return self._checkpointer.save(writer=write_all, step=step, metrics=numbers(metrics or {}), block=block)

    def latest(self) -> Saved | None:
        """Return the newest checkpoint that is intact, or None when the training starts from nothing.

        Raises CheckpointError if another library, or a `Checkpointer`, wrote it.
        """
        found = self._checkpointer.latest()
        if found is None:
            return None
        try:
            facts = json.loads((found.path / ABOUT_FILE).read_text())
            writer = str(facts["library"])
        except (OSError, ValueError, KeyError, TypeError):
            facts, writer = {}, "another program"
        if writer != self.library:
            raise CheckpointError(
                f"checkpoint {found.path.name} was written by {writer}, and {self.library} cannot continue from it; "
                "start a new job, or use the same library"
            )
        self._continued_from = found.step
        return Saved(found.path, found.step, facts)

    def wait(self) -> None:
        """Wait for a running save. Raises CheckpointError if it failed."""
        self._checkpointer.wait()


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are numbers; libraries mix in texts and tables."""
    found = {}
    for name, value in values.items():
        try:
            found[str(name)] = float(value)
        except (TypeError, ValueError):
            continue
    return found


def log(values: Mapping[str, Any], step: int) -> None:
    """Record the numbers among `values`; only rank 0 does so."""
    found = numbers(values)
    if found and runtime.rank() == 0:
        platform_metrics.log_metrics(found, step=step)


def progress(step: int, total: int, **epochs: int) -> None:
    """Report the progress on rank 0, if the library knows how far it has to go."""
    if total > 0 and runtime.rank() == 0:
        platform_metrics.progress(step=step, total=total, **epochs)


def stop_requested() -> bool:
    """Return whether the platform asks the program to save and to leave."""
    return runtime.stop_requested()


def leave(step: int) -> NoReturn:
    """End the program with exit code 75, after its last checkpoint."""
    print(f"updraft: stopped on request after step {step}; its checkpoint is saved", flush=True)
    runtime.preempted_exit()


class Agreement:
    """Let all processes of a training save and stop at the same step, though each sees the request at its own time.

    The processes ask each other about once a second, not at every step: an answer costs one small all-reduce, for which
    a GPU's queue of work has to be empty. Without `torch.distributed`, the process decides alone, at each step.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_step: int | None = None
        self._last: tuple[int, float] | None = None

    def ask(self, step: int, *, due: bool, stop: bool) -> tuple[bool, bool]:
        """Return whether all processes save, and whether all stop, at this step.

        Every process must call this at the same steps, in ascending order. What one process wants, all do.
        """
        distributed = _distributed()
        if distributed is None:
            return due or stop, stop
        if self._next_step is not None and step < self._next_step:
            return False, False
        now = self._clock()
        seconds_per_step = 1.0 if self._last is None else (now - self._last[1]) / max(step - self._last[0], 1)
        self._last = (step, now)
        due, stop, seconds_per_step = _largest(distributed, (due, stop, seconds_per_step))
        self._next_step = step + max(1, int(1.0 / max(seconds_per_step, 1e-3)))
        return bool(due or stop), bool(stop)


def _distributed() -> Any:
    """Return torch.distributed if this program has a process group with several processes."""
    import sys

    if "torch" not in sys.modules:
        return None
    import torch.distributed as dist

    return dist if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1 else None


def _largest(dist: Any, values: Iterable[float]) -> list[Any]:
    import torch

    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
    tensor = torch.tensor([float(value) for value in values], dtype=torch.float64, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    found: list[Any] = tensor.tolist()
    return found


def barrier() -> None:
    """Wait until every process of the training is here."""
    if (dist := _distributed()) is not None:
        dist.barrier()
