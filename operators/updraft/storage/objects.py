"""What learners and their sidecars left in the store: status, completion marker, checkpoints, exported model.

Reads by tenant and job; ownership is checked by the caller. Called by operators, triggers and the API.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from updraft.exceptions import DataError, LimitError
from updraft.storage.errors import platform_errors
from updraft.storage.logbook import LogBook, read_log, read_log_end
from updraft.storage.platform import platform_store
from updraft_learner.contract import CHECKPOINT_MARKER, Keys, LearnerStatus
from updraft_learner.store import ObjectStore, StorageError
from updraft_learner.trees import DigestMismatch, Tree, TreeError, TreeFile, materialise, megabytes

log = logging.getLogger(__name__)

QUARANTINE_NOTE = "QUARANTINED.json"
EXPORT_FOLDER = "export"  # below the RESULT_DIR of the exporting pod
EXPORT_REPORT = "export.json"
REPORT_LIMIT_BYTES = 16 * 1024 * 1024
DISK_RESERVE_BYTES = 512 * 1024 * 1024

__all__ = [
    "CheckpointInfo",
    "Exported",
    "LogBook",
    "delete_checkpoint",
    "fetch_export",
    "latest_checkpoint",
    "list_checkpoints",
    "new_checkpoints",
    "quarantine_checkpoint",
    "read_done",
    "read_log",
    "read_log_end",
    "read_status",
]


@dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint that is complete in the store."""

    name: str
    step: int  # 0 where the program gave none
    attempt: int
    learner: int
    metrics: Mapping[str, float]
    bytes: int
    uri: str
    created_at: datetime


@dataclass(frozen=True)
class Exported:
    """The exported model, fetched and verified."""

    model_folder: Path  # an MLflow model folder
    formats: tuple[str, ...]
    model_class: str
    checks: str  # one line: how far each format differs from the program's own output
    report: Mapping[str, Any]


def read_status(
    tenant: str, job_id: str, role: str, attempt: int, learner: int, *, store: ObjectStore | None = None
) -> LearnerStatus | None:
    """The learner's latest word; None before the first one, or when it cannot be read just now."""
    with platform_errors():
        text = (store or platform_store()).get_bytes(Keys(tenant).status(job_id, role, attempt, learner))
    try:
        return None if text is None else LearnerStatus.from_json(text)
    except (ValueError, TypeError, AttributeError):  # overwritten every few seconds: half a file may be read
        return None


def read_done(
    tenant: str, job_id: str, role: str, attempt: int, learner: int, *, store: ObjectStore | None = None
) -> dict[str, Any] | None:
    """The completion marker: only then is everything of this learner stored."""
    with platform_errors():
        text = (store or platform_store()).get_bytes(Keys(tenant).done(job_id, role, attempt, learner))
    return None if text is None else _object(text)


def list_checkpoints(tenant: str, job_id: str, *, store: ObjectStore | None = None) -> list[CheckpointInfo]:
    """Those with a marker whose files are all there in their full size; oldest first."""
    used, keys = store or platform_store(), Keys(tenant)
    root = f"{keys.checkpoints(job_id)}/"
    with platform_errors():
        sizes = {item.key[len(root) :]: item.size for item in used.list(root)}
        found = []
        for path in sizes:
            name, _, file = path.partition("/")
            if file != CHECKPOINT_MARKER:
                continue
            marker = _object(used.get_bytes(f"{root}{path}") or b"")
            info = None if marker is None else _checkpoint(keys, job_id, name, marker, sizes)
            if info is None:
                log.warning("Checkpoint %s of %s is damaged in the store; it is passed over", name, job_id)
            else:
                found.append((_age(info, marker or {}), info))
    return [info for _, info in sorted(found, key=lambda pair: pair[0])]


def latest_checkpoint(tenant: str, job_id: str, *, store: ObjectStore | None = None) -> str | None:
    """Name of the checkpoint to go on from: the highest step; learner 1's where several learners have one."""
    found = list_checkpoints(tenant, job_id, store=store)
    return found[-1].name if found else None


def new_checkpoints(
    tenant: str, job_id: str, attempt: int, *, store: ObjectStore | None = None
) -> list[dict[str, Any]]:
    """Complete checkpoints that this attempt stored, as the ledger records them."""
    return [
        {
            "name": info.name,
            "step": info.step,
            "attempt": info.attempt,
            "metrics": dict(info.metrics),
            "bytes": info.bytes,
            "uri": info.uri,
            "created_at": info.created_at,
        }
        for info in list_checkpoints(tenant, job_id, store=store)
        if info.attempt == attempt
    ]


def quarantine_checkpoint(
    tenant: str, job_id: str, name: str, reason: str, *, store: ObjectStore | None = None
) -> None:
    """The checkpoint does not count any more; its files stay for whoever wants to know why."""
    used, keys = store or platform_store(), Keys(tenant)
    note = json.dumps({"reason": reason, "at": datetime.now(UTC).isoformat()}).encode()
    with platform_errors():
        used.put_bytes(f"{keys.checkpoint(job_id, name)}/{QUARANTINE_NOTE}", note)
        used.delete(keys.checkpoint_marker(job_id, name))


def delete_checkpoint(tenant: str, job_id: str, name: str, *, store: ObjectStore | None = None) -> None:
    """The marker goes first, so that a half-deleted checkpoint does not count. Twice is harmless."""
    if not name or "/" in name or name in (".", ".."):
        raise DataError(f"checkpoint: {name!r} is no name of a checkpoint")
    used, keys = store or platform_store(), Keys(tenant)
    with platform_errors():
        used.delete(keys.checkpoint_marker(job_id, name))
        for item in list(used.list(f"{keys.checkpoint(job_id, name)}/")):
            used.delete(item.key)


def fetch_export(tenant: str, job_id: str, folder: Path, *, store: ObjectStore | None = None) -> Exported | None:
    """What the export pod left, laid out below `folder`; None when there is no report. Raises DataError if damaged."""
    used = store or platform_store()
    prefix = f"{Keys(tenant).results(job_id, 'export', 1)}/{EXPORT_FOLDER}/"
    with platform_errors():
        sizes = {item.key: item.size for item in used.list(f"{prefix}{EXPORT_REPORT}")}
        size_bytes = sizes.get(f"{prefix}{EXPORT_REPORT}", 0)
        if size_bytes > REPORT_LIMIT_BYTES:
            raise DataError(
                f"export: {EXPORT_REPORT} is larger than {megabytes(REPORT_LIMIT_BYTES)}; the export writes it"
            )
        text = used.get_bytes(f"{prefix}{EXPORT_REPORT}")
        if text is None:
            return None
        report = _object(text)
        if report is None:
            raise DataError(f"export: {EXPORT_REPORT} cannot be read; run the export again")
        try:
            facts = report["files"]
            tree = Tree(tuple(TreeFile(path, str(f["sha256"]), int(f["size"])) for path, f in facts.items()))
            if any(file.size < 0 for file in tree.files):
                raise ValueError("a size is negative")
            formats = {str(name): dict(entry) for name, entry in report["formats"].items()}
            model_class = str(report.get("model_class", ""))
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise DataError(f"export: {EXPORT_REPORT} is not of the known form ({type(exc).__name__})") from exc
        _require_disk(folder, tree.size_bytes)
        try:
            materialise(tree, folder, lambda file: used.open(f"{prefix}{file.path}"))
        except StorageError as exc:
            if exc.kind != "missing":
                raise
            raise DataError("export: a file of the exported model is not in the store; run the export again") from exc
        except (DigestMismatch, TreeError) as exc:
            raise DataError(f"export: {exc}; run the export again") from exc
    if not (folder / "model").is_dir():
        raise DataError("export: there is no folder `model` in what was exported; run the export again")
    checks = ", ".join(_check(name, entry) for name, entry in formats.items())
    return Exported(folder / "model", tuple(formats), model_class, checks, report)


def _require_disk(folder: Path, needed_bytes: int) -> None:
    """A worker's disk is shared by all jobs. The sizes are what the report says; no file is written beyond its own."""
    folder.mkdir(parents=True, exist_ok=True)
    free_bytes = shutil.disk_usage(folder).free - DISK_RESERVE_BYTES
    if needed_bytes > free_bytes:
        raise LimitError(
            f"export: the model has {megabytes(needed_bytes)}, and the worker has {megabytes(max(0, free_bytes))} to "
            "spare; export less, or give the worker a larger disk"
        )


def _check(name: str, entry: Mapping[str, Any]) -> str:
    difference = entry.get("max_abs_difference")
    return f"{name} differs by at most {difference:.1e}" if isinstance(difference, float) else name


def _checkpoint(
    keys: Keys, job_id: str, name: str, marker: Mapping[str, Any], sizes: Mapping[str, int]
) -> CheckpointInfo | None:
    try:
        files = {path: int(facts["size"]) for path, facts in marker["files"].items()}
        if any(sizes.get(f"{name}/{path}") != size for path, size in files.items()):
            return None
        return CheckpointInfo(
            name=name,
            step=int(marker.get("step") or 0),
            attempt=int(marker.get("attempt") or 1),
            learner=int(marker.get("learner") or 1),
            metrics={str(key): float(value) for key, value in (marker.get("metrics") or {}).items()},
            bytes=sum(files.values()),
            uri=f"{keys.checkpoint(job_id, name)}/",
            created_at=_time(marker.get("created")),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def _age(info: CheckpointInfo, marker: Mapping[str, Any]) -> tuple[int, int, datetime, int]:
    """Sorts older before newer. Without a step, the attempt and the time decide."""
    step = marker.get("step")
    return (-1 if step is None else info.step, info.attempt, info.created_at, -info.learner)


def _time(value: Any) -> datetime:
    """Seconds or RFC 3339, as the marker has it."""
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC)
    moment = datetime.fromisoformat(str(value))
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
