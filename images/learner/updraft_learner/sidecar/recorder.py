"""Convert what the program reports to journal entries, and remember what the status and `runs/get` show.

Only this module handles names, NaN and reserved tags. The endpoint, the tail and the sampler call it.
"""

from __future__ import annotations

import json
import math
import posixpath
import re
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from updraft_learner.contract import NAN_TAG, STATUS_METRICS_BYTES
from updraft_learner.record.journal import Entry, Journal
from updraft_learner.record.report import Warnings

NAMES_PER_ENTRY = 500  # a batch to MLflow has room for 1,000
KNOWN_NAMES = 2000  # how many names are remembered for the status and for local answers
NAMES_ALLOWED = "names hold letters, digits, '_', '-', '.', ' ', ':' and '/', and no empty, '.' or '..' part"
_NAME = re.compile(r"[/\w.\- :]+")
_IGNORED_TAGS = ("mlflow.user", "mlflow.runName", "mlflow.parentRunId", "mlflow.rootRunId")


def is_name(name: str) -> bool:
    """Return whether MLflow accepts the name of a metric, param or tag.

    Names are checked at once, because one bad name in a batch makes the server refuse the whole batch.
    """
    plain = posixpath.normpath(name) == name and name != "." and not name.startswith(("/", ".."))
    return plain and _NAME.fullmatch(name) is not None


def is_platform_tag(name: str) -> bool:
    """Return whether only the platform sets this tag."""
    return name.startswith("updraft.")


def is_client_tag(name: str) -> bool:
    """Return whether MLflow's clients set this tag on their own, with facts of the pod; such tags would replace the
    platform's."""
    return name in _IGNORED_TAGS or name.startswith("mlflow.source")


def as_text(value: float) -> float | str:
    """Return non-finite numbers as text: JSON has no NaN."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


class Recorder:
    """Makes entries with the `*_entries` methods, and appends them with `record`."""

    def __init__(self, journal: Journal, warnings: Warnings, *, learner: int = 1, prefixed: bool = True) -> None:
        self._journal, self._warnings = journal, warnings
        self._prefix = f"learner_{learner}/" if prefixed and learner != 1 else ""
        self._lock = threading.Lock()
        self.nan = 0
        self.bad_lines = 0
        self._nan_tagged = False
        self._latest: dict[str, tuple[float | str, int, float]] = {}  # value, step, time
        self._params: dict[str, str] = {}
        self._tags: dict[str, str] = {}
        self._progress: dict[str, int] = {}
        self._steps: dict[str, dict[str, int]] = {}  # of "progress" and "metrics": first and last step
        self._scaling: dict[str, Any] = {}
        self._training: dict[str, float] = {}

    def record(self, entries: Sequence[Entry]) -> None:
        """Append to the journal; raises OSError when the disk is full."""
        if not entries:
            return
        self._journal.append(entries)
        with self._lock:
            for entry in entries:
                self._learn(entry)

    def metrics_entries(
        self,
        t: float,
        step: int,
        values: Mapping[str, float],
        source: str,
        *,
        model: Mapping[str, str] | None = None,
        prefix: bool = True,
    ) -> list[Entry]:
        """Return entries for points at one step, and the warning tag when one is the first that is not finite."""
        named = {self._name(name) if prefix else name: as_text(float(value)) for name, value in values.items()}
        names = list(named)
        entries: list[Entry] = []
        for at in range(0, len(names), NAMES_PER_ENTRY):
            part = {name: named[name] for name in names[at : at + NAMES_PER_ENTRY]}
            entry: Entry = {"t": t, "source": source, "step": step, "metrics": part}
            if model:
                entry["model"] = dict(model)
            entries.append(entry)
        bad = [name for name in names if isinstance(named[name], str)]
        if bad:
            with self._lock:
                self.nan += len(bad)
                first, self._nan_tagged = not self._nan_tagged, True
            text = f"metric {bad[0]} at step {step} is {named[bad[0]]}"
            self._warnings.add("nan", text)
            if first:
                entries.append({"t": t, "source": "sidecar", "tags": {NAN_TAG: text}})
        return entries

    def params_entries(self, t: float, values: Mapping[str, str], source: str) -> list[Entry]:
        named = {self._name(name): value for name, value in values.items()}
        return self._text_entries(t, "params", named, source)

    def tags_entries(self, t: float, values: Mapping[str, str], source: str) -> list[Entry]:
        """Return entries for the tags that a program may set; the others are left out."""
        kept: dict[str, str] = {}
        for name, value in values.items():
            if is_platform_tag(name):
                self._warnings.add(f"tag {name}", f"tag {name} was not set: 'updraft.' is reserved")
            elif not is_client_tag(name):
                kept[name if name.startswith("mlflow.") else self._name(name)] = value
        return self._text_entries(t, "tags", kept, source)

    def call_entry(self, path: str, body: Mapping[str, Any]) -> Entry:
        """Return an entry for a request to MLflow that is made in its turn."""
        return {"t": time.time(), "source": "mlflow", "call": {"path": path, "body": dict(body)}}

    def set_progress(self, progress: Mapping[str, int]) -> None:
        with self._lock:
            self._progress = dict(progress)
            if "step" in progress:
                known = self._steps.setdefault("progress", {"first": progress["step"]})
                known["last"] = progress["step"]

    def set_scaling(self, found: Mapping[str, Any]) -> None:
        """Remember what the program has measured of its own scaling; a newer value replaces an older one."""
        with self._lock:
            self._scaling |= found

    def set_training(self, found: Mapping[str, float]) -> None:
        """Remember how far an elastic training is, and the first step that it has reported."""
        with self._lock:
            self._training = {"first": self._training.get("first", found["step"]), **found}

    def training(self) -> dict[str, float]:
        with self._lock:
            return dict(self._training)

    def scaling(self) -> dict[str, Any]:
        with self._lock:
            return dict(self._scaling)

    def count_bad_line(self, reason: str) -> None:
        with self._lock:
            self.bad_lines += 1
        self._warnings.add("bad line", f"metrics file: {reason}")

    def restore_counts(self, counts: Mapping[str, Any]) -> None:
        """Continue with the counts of the previous process."""
        with self._lock:
            self._steps = {source: dict(steps) for source, steps in counts.get("steps", {}).items()}
            self._scaling = dict(counts.get("scaling", {}))
            self._training = dict(counts.get("training", {}))
            self.nan, self.bad_lines = int(counts.get("nan", 0)), int(counts.get("bad_lines", 0))
            self._nan_tagged = self.nan > 0

    def counts(self) -> dict[str, Any]:
        with self._lock:
            steps = {source: dict(steps) for source, steps in self._steps.items()}
            return {
                "nan": self.nan,
                "bad_lines": self.bad_lines,
                "steps": steps,
                "scaling": dict(self._scaling),
                "training": dict(self._training),
            }

    def steps(self) -> dict[str, int]:
        """Return the first and last step of this attempt: as its progress reports them, else as its metrics do."""
        with self._lock:
            return dict(self._steps.get("progress") or self._steps.get("metrics") or {})

    def progress(self) -> dict[str, int]:
        with self._lock:
            return dict(self._progress)

    def last_metrics(self) -> dict[str, float | str]:
        """Return the value of each of the program's metrics at its highest step, as many as a status has room for."""
        with self._lock:
            found = {name: value for name, (value, _, _) in self._latest.items() if not name.startswith("system/")}
        left_bytes = STATUS_METRICS_BYTES
        for count, (name, value) in enumerate(found.items()):
            left_bytes -= len(json.dumps({name: value}))
            if left_bytes < 0:
                return dict(islice(found.items(), count))
        return found

    def run_data(self) -> dict[str, Any]:
        """Return what this process knows of the run, as MLflow's API writes it."""
        with self._lock:
            return {
                "metrics": [
                    {"key": name, "value": value, "step": step, "timestamp": round(t * 1000)}
                    for name, (value, step, t) in self._latest.items()
                ],
                "params": [{"key": name, "value": value} for name, value in self._params.items()],
                "tags": [{"key": name, "value": value} for name, value in self._tags.items()],
            }

    def _name(self, name: str) -> str:
        return self._prefix + name

    def _text_entries(self, t: float, kind: str, values: Mapping[str, str], source: str) -> list[Entry]:
        names = list(values)
        parts = [names[at : at + 100] for at in range(0, len(names), 100)]
        return [{"t": t, "source": source, kind: {name: values[name] for name in part}} for part in parts]

    def _learn(self, entry: Entry) -> None:
        # MLflow's clients send 0 if the program named no step.
        told = entry["source"] in ("file", "collected") or (entry["source"] == "mlflow" and entry.get("step") != 0)
        if told and "metrics" in entry and "model" not in entry:
            steps = self._steps.setdefault("metrics", {"first": entry["step"], "last": entry["step"]})
            steps["last"] = max(steps["last"], entry["step"])
        for name, value in entry.get("metrics", {}).items():
            latest = self._latest.get(name)
            if latest is None and len(self._latest) >= KNOWN_NAMES:
                continue
            if latest is None or (entry["step"], entry["t"]) >= latest[1:]:  # MLflow's order
                self._latest[name] = (value, entry["step"], entry["t"])
        for kind, known in (("params", self._params), ("tags", self._tags)):
            for name, value in entry.get(kind, {}).items():
                if name in known or len(known) < KNOWN_NAMES:
                    known[name] = value
