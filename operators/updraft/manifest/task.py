"""Expand `task` into an ordinary job whose program the learner's image has: a manifest of two lines, data and task.

data: reviews.csv
task: text-classification
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from updraft.manifest.errors import FieldError, show
from updraft.manifest.values import slug

TEXT_CLASSIFICATION = "text-classification"
COMMAND = "python -m updraft_learner.tasks.text_classification"
COLUMNS = ("text", "label")  # the params that the program has
UNUSABLE = 65  # its exit code for data that it cannot use
WHY = "The data cannot be used for this task; the last line of the log says why, and what to change."
_OWN = ("code", "image", "evaluate", "environment", "elastic", "metrics")


def expanded(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the raw manifest with all that its task brings; what it says itself is kept. An expanded manifest, or one
    without a task, is returned as it is."""
    given = dict(raw)
    if not isinstance(given.get("task"), str):  # a misspelt one is expanded too, so that it is the only error
        return given
    if given.get("data") is None:
        given.pop("data", None)
    elif isinstance(given["data"], str):
        given["data"] = [{"source": given["data"]}]
    name = given.setdefault("name", _name(given.get("data")))
    brought: dict[str, Any] = {
        "framework": {"name": "pytorch"},
        "command": COMMAND,
        "strategy": "shared_memory",
        "resources": {"cpus": 1.5, "memory": "2GiB", "processes_per_learner": 2},
        "checkpoints": {"every": "30s", "keep": {"latest": 2}},
        "failures": [{"exit_code": UNUSABLE, "cause": "data", "action": "stop", "text": WHY}],
        "export": {"formats": ["onnx"], "register_as": name, "promote_if": {"val_accuracy": ">= champion"}},
    }
    return {**brought, **{key: value for key, value in given.items() if value is not None or key not in brought}}


def task_errors(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield the fields of the raw manifest that do not go with its task."""
    if raw.get("task") != TEXT_CLASSIFICATION:
        return
    why = f"with task: {TEXT_CLASSIFICATION}"
    if not raw.get("data"):
        problem = f"is missing; {why} it is all that the job needs"
        yield FieldError("data", None, problem, "the file with the texts and labels", "reviews.csv")
    if raw.get("command") not in (None, COMMAND):
        problem = f"is given, but {why} the platform brings the program"
        yield FieldError("command", None, problem, "no command, or no task")
    for field in _OWN:
        if raw.get(field):
            problem = f"is given, but {why} the platform brings the program"
            yield FieldError(field, None, problem, f"no {field}, or no task")
    params = raw.get("params")
    for name, value in params.items() if isinstance(params, Mapping) else ():
        if name not in COLUMNS:
            problem = f"is no parameter of the task, whose hyper-parameters are fixed: {show(value)}"
            yield FieldError(f"params.{name}", None, problem, "text and label, the names of the columns")


def _name(data: object) -> str:
    """Return a name made of that of the data: `reviews` of `s3://team/2024/reviews.csv`."""
    first = data[0] if isinstance(data, list | tuple) and data else None
    source = first.get("source") if isinstance(first, Mapping) else None
    stem = PurePosixPath(source.rstrip("/")).stem if isinstance(source, str) else ""
    return slug(stem) or TEXT_CLASSIFICATION
