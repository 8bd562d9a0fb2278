"""What a job leaves in the object store, for operators and triggers: markers, checkpoints, logs, the export.

Every object here was written by a learner's sidecar or by the trigger of its gang. Nothing is trusted before its
digest was compared.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from updraft.exceptions import DataError
from updraft.settings import settings
from updraft.storage.errors import platform_errors
from updraft.storage.platform import platform_store
from updraft_learner.contract import CHECKPOINT_MARKER, Keys, LearnerDone
from updraft_learner.store import ObjectStore
from updraft_learner.trees import safe_path

TAIL_LINES = 20
COPY_BYTES = 1024 * 1024


# --- completion markers -------------------------------------------------------------------------------------------


def read_done(tenant: str, job_id: str, role: str, attempt: int, learner: int) -> dict[str, Any] | None:
    """The learner's completion marker; None while its results are not stored completely."""
    with platform_errors():
        text = platform_store().get_bytes(Keys(tenant).done(job_id, role, attempt, learner))
    if text is None:
        return None
    done = LearnerDone.from_json(text)
    return {
        "t": done.t,
        "files": done.files,
        "bytes": done.bytes,
        "metrics_pending": done.metrics_pending,
        "warnings": list(done.warnings),
    }


# --- checkpoints --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckpointInfo:
    """A complete checkpoint, from its marker."""

    name: str
    step: int
    attempt: int
    learner: int
    metrics: Mapping[str, float]
    bytes: int
    created: float  # unix seconds, by the learner's clock
    uri: str


def list_checkpoints(tenant: str, job_id: str, store: ObjectStore | None = None) -> list[CheckpointInfo]:
    """Complete checkpoints, lowest step first. One without a marker does not exist."""
    used, keys = store or platform_store(), Keys(tenant)
    found = []
    with platform_errors():
        for item in used.list(f"{keys.checkpoints(job_id)}/"):
            if item.key.rpartition("/")[2] != CHECKPOINT_MARKER:
                continue
            text = used.get_bytes(item.key)
            if text is None:
                continue  # deleted meanwhile
            raw = json.loads(text)
            found.append(
                CheckpointInfo(
                    name=raw["name"],
                    step=int(raw.get("step") or 0),
                    attempt=int(raw["attempt"]),
                    learner=int(raw["learner"]),
                    metrics={k: float(v) for k, v in (raw.get("metrics") or {}).items() if v is not None},
                    bytes=int(raw["bytes"]),
                    created=float(raw["created"]),
                    uri=f"s3://{settings().bucket}/{keys.checkpoint(job_id, raw['name'])}",
                )
            )
    return sorted(found, key=lambda c: (c.step, c.created, c.name))


def latest_checkpoint(tenant: str, job_id: str) -> str | None:
    """Name of the complete checkpoint with the highest step, the newest among equals."""
    found = list_checkpoints(tenant, job_id)
    return found[-1].name if found else None


def delete_checkpoint(tenant: str, job_id: str, name: str) -> None:
    """The marker goes first: a deletion that is cut short leaves no checkpoint that looks complete."""
    store, keys = platform_store(), Keys(tenant)
    with platform_errors():
        store.delete(keys.checkpoint_marker(job_id, name))
        for item in list(store.list(f"{keys.checkpoint(job_id, name)}/")):
            store.delete(item.key)


# --- logs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LastLine:
    """Where a log's record ends: number and time of its last line, and how many lines share that time."""

    n: int = 0
    t: str = ""
    same: int = 0


@dataclass
class LogBook:
    """The record of one learner's log: numbered chunks of JSON lines, each line once. One writer at a time."""

    store: ObjectStore
    folder: str
    chunks: int = 0
    last: LastLine = field(default_factory=LastLine)
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))

    @classmethod
    def open(cls, tenant: str, job_id: str, role: str, attempt: int, learner: int) -> LogBook:
        """The record as earlier writers left it."""
        return cls.at(platform_store(), Keys(tenant).logs(job_id, role, attempt, learner))

    @classmethod
    def at(cls, store: ObjectStore, folder: str) -> LogBook:
        book = cls(store, folder)
        with platform_errors():
            keys = [item.key for item in store.list(f"{folder}/")]
            for key in keys[-2:]:  # the lines that share the last time may begin in the chunk before
                for raw in (store.get_bytes(key) or b"").splitlines():
                    book._note(json.loads(raw))
        if keys:
            book.chunks = int(keys[-1].rpartition("/")[2].partition(".")[0])
        return book

    def append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Store the lines as one more chunk. A chunk that could not be stored raises, and may be given again."""
        body = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        with platform_errors():
            self.store.put_bytes(f"{self.folder}/{self.chunks + 1:08d}.jsonl", body.encode())
        self.chunks += 1
        for line in lines:
            self._note(line)

    def _note(self, line: Mapping[str, Any]) -> None:
        same = self.last.same + 1 if line["t"] == self.last.t else 1
        self.last = LastLine(int(line["n"]), str(line["t"]), same)
        self.tail.append(str(line["line"]))


# --- the export ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Export:
    """What the export pod made: an MLflow model folder, verified against its report, and what was checked."""

    model_folder: Path
    formats: tuple[str, ...]
    model_class: str
    checks: str


def fetch_export(tenant: str, job_id: str, folder: Path) -> Export | None:
    """Download the exported model; None when the export left no report. Raises DataError for a file that differs."""
    store, keys = platform_store(), Keys(tenant)
    prefix = f"{keys.results(job_id, 'export', 1)}/export"
    with platform_errors():
        text = store.get_bytes(f"{prefix}/export.json")
        if text is None:
            return None
        report = json.loads(text)
        for path, facts in report["files"].items():
            _fetch(store, f"{prefix}/{safe_path(path)}", folder / safe_path(path), facts["sha256"])
    checks = "; ".join(
        f"{name} differs by at most {made['max_abs_difference']:.2g} (allowed {made['tolerance']:g})"
        for name, made in sorted(report["formats"].items())
        if "max_abs_difference" in made
    )
    return Export(folder / "model", tuple(sorted(report["formats"])), str(report.get("model_class", "")), checks)


def _fetch(store: ObjectStore, key: str, target: Path, sha256: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with store.open(key) as source, target.open("wb") as sink:
        while block := source.read(COPY_BYTES):
            digest.update(block)
            sink.write(block)
    if digest.hexdigest() != sha256:
        raise DataError(f"{target.name} of the exported model is not what the export wrote; run the job again")
