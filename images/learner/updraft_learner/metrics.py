"""Record metrics and progress from the program: one JSON line per call, appended to the metrics file.

The sidecar reads the file and sends the points to the job's MLflow run. Nothing here waits for a network or a lock. If
the metrics file cannot be written, there is one warning, and training continues. `contract` defines the line format; a
program in another language appends the same lines itself. Outside the platform, the values are printed.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, SupportsFloat

from updraft_learner import stacks

stacks.start()


def log_metrics(metrics: Mapping[str, SupportsFloat], *, step: int) -> None:
    """Record one point per metric at `step`. Outside the platform the values are printed.

    Args:
        metrics: values by name; anything that `float()` takes, as NaN, 0-d tensors and NumPy scalars.
        step: the training step, which is the x-axis of the curves.

    In a gang, log from rank 0 alone: points of every learner land in the same MLflow run. Of several processes in one
    learner only that with LOCAL_RANK 0 is recorded. Returns at once, and never fails because of a full disk or an
    unreachable server.

    Raises:
        TypeError: a value is not a number.

    Example:
        log_metrics({"loss": loss, "val_accuracy": accuracy}, step=step)
    """
    values = {name: _number(name, value) for name, value in metrics.items()}
    if not append({"step": int(step), "metrics": values}):
        print(f"step {step}: " + ", ".join(f"{name} {value:.6g}" for name, value in values.items()), flush=True)


def progress(*, step: int, total: int, epoch: int | None = None, epochs: int | None = None) -> None:
    """Report how far the training is: `step` of `total` steps, and `epoch` of `epochs` if it has epochs.

    The platform computes the time left from this, and its no-progress watch sees that the training advances.
    """
    done: dict[str, int] = {"step": int(step), "total": int(total)}
    if epoch is not None:
        done["epoch"] = int(epoch)
    if epochs is not None:
        done["epochs"] = int(epochs)
    if not append({"progress": done}):
        suffix = "" if epoch is None else f", epoch {epoch}" + ("" if epochs is None else f" of {epochs}")
        print(f"progress: step {step} of {total}{suffix}", flush=True)


def _number(name: str, value: SupportsFloat) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"metric {name!r} is a {type(value).__name__}; it must be a number") from None


def append(record: dict[str, Any]) -> bool:
    """Append one line to the metrics file, in a single write, so that lines of several processes never mix. Return
    False outside the platform. The processes of one learner share the file, so the first alone writes."""
    path = os.environ.get("UPDRAFT_METRICS_FILE")
    if not path:
        return False
    if os.environ.get("LOCAL_RANK", "0") not in ("", "0"):
        return True
    line = (json.dumps({"t": round(time.time(), 6), **record}, separators=(",", ":")) + "\n").encode()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
    except OSError as exc:
        _warn_once(f"updraft: metrics are not recorded: {path}: {exc.strerror}; training goes on")
    return True


@functools.cache
def _warn_once(text: str) -> None:
    """Print a warning, unless this process has printed it before."""
    print(text, file=sys.stderr, flush=True)
