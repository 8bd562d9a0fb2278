"""Read what learners and their sidecars stored: status, completion marker, checkpoints, exported model.

Reads are by tenant and job; callers check that the tenant owns the job. Called by operators, triggers and the API.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from updraft.exceptions import DataError, LimitError
from updraft.lifecycle.workflow import EXPORT_ROLE
from updraft.storage import checkpoints, models
from updraft.storage.checkpoints import CheckpointInfo, Looked
from updraft.storage.errors import platform_errors
from updraft.storage.logbook import LogBook, read_log, read_log_end
from updraft_learner.contract import STATUS_LIMIT_BYTES, Keys, LearnerStatus
from updraft_learner.store import ObjectStore, StorageError
from updraft_learner.trees import DigestMismatch, Tree, TreeError, TreeFile, materialise, megabytes

log = logging.getLogger(__name__)

EXPORT_FOLDER = "export"  # below the RESULT_DIR of the exporting pod
EXPORT_REPORT = "export.json"
REPORT_LIMIT_BYTES = 16 * 1024 * 1024
DISK_RESERVE_BYTES = 512 * 1024 * 1024

__all__ = [
    "CheckpointInfo",
    "Exported",
    "LogBook",
    "Looked",
    "delete_checkpoint",
    "fetch_export",
    "latest_checkpoint",
    "list_checkpoints",
    "look_at_checkpoints",
    "new_checkpoints",
    "quarantine_checkpoint",
    "read_done",
    "read_log",
    "read_log_end",
    "read_status",
    "verify_checkpoint",
]


@dataclass(frozen=True)
class Exported:
    """The exported model, downloaded and verified."""

    model_folder: Path  # an MLflow model folder
    formats: tuple[str, ...]
    model_class: str
    checks: str  # one line: how far each format differs from the program's own output
    report: Mapping[str, Any]


def read_status(
    tenant: str, job_id: str, role: str, attempt: int, learner: int, *, store: ObjectStore
) -> LearnerStatus | None:
    """Return the learner's newest status; None if there is none yet, if it is unreadable now, or if it is too large."""
    text = _word(store, Keys(tenant).status(job_id, role, attempt, learner))
    try:
        return None if text is None else LearnerStatus.from_json(text)
    except (ValueError, TypeError, AttributeError):  # it is overwritten every few seconds: a read may see half
        return None


def read_done(
    tenant: str, job_id: str, role: str, attempt: int, learner: int, *, store: ObjectStore
) -> dict[str, Any] | None:
    """Return the completion marker, or None; only if it exists, everything of this learner is stored."""
    text = _word(store, Keys(tenant).done(job_id, role, attempt, learner))
    return None if text is None else _object(text)


def _word(store: ObjectStore, key: str) -> bytes | None:
    """Return a sidecar's document; None if it is larger than a sidecar ever writes.

    One process reads these documents for all learners, so their size is limited.
    """
    try:
        with platform_errors():
            return store.get_bytes(key, STATUS_LIMIT_BYTES)
    except LimitError as exc:
        log.warning("A learner's word is not known: %s", exc)
        return None


def look_at_checkpoints(
    tenant: str,
    job_id: str,
    *,
    sure: Mapping[str, int] | None = None,
    only: str | None = None,
    store: ObjectStore,
) -> Looked:
    """Return which are whole, damaged, unfinished and set aside; parts that are all there become a checkpoint first."""
    with platform_errors():
        return checkpoints.look(store, Keys(tenant), job_id, sure=sure, only=only)


def list_checkpoints(tenant: str, job_id: str, *, store: ObjectStore) -> list[CheckpointInfo]:
    """Return the checkpoints with a marker whose files are all there in their full size, oldest first."""
    looked = look_at_checkpoints(tenant, job_id, store=store)
    for name, reason in looked.damaged.items():
        log.warning("Checkpoint %s of %s is damaged in the store and passed over: %s", name, job_id, reason)
    return list(looked.whole)


def latest_checkpoint(tenant: str, job_id: str, *, store: ObjectStore) -> str | None:
    """Return the newest: the highest step; the lowest learner's where several learners have one at that step."""
    found = list_checkpoints(tenant, job_id, store=store)
    return found[-1].name if found else None


def new_checkpoints(tenant: str, job_id: str, attempt: int, *, store: ObjectStore) -> list[dict[str, Any]]:
    """Return the complete checkpoints that this attempt stored, as the ledger records them.

    It is called at the moment in which the attempt is closed: what is complete after it is refused. Raises
    UnavailableError when the store does not answer; an attempt that is closed without an answer loses what it stored
    last.
    """
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


def verify_checkpoint(tenant: str, job_id: str, name: str, *, digests: bool = False, store: ObjectStore) -> str | None:
    """Return None when every file is there in its full size, else what is wrong; with `digests` each is read and
    hashed.

    Raises UnavailableError when the store does not answer: that says nothing about the checkpoint.
    """
    with platform_errors():
        return checkpoints.verify(store, Keys(tenant), job_id, name, digests=digests)


def quarantine_checkpoint(tenant: str, job_id: str, name: str, reason: str, *, store: ObjectStore) -> None:
    """Set a checkpoint aside: it no longer counts, and its files stay, so that the cause can be found. A second call
    changes nothing."""
    with platform_errors():
        checkpoints.quarantine(store, Keys(tenant), job_id, name, reason)


def delete_checkpoint(tenant: str, job_id: str, name: str, *, store: ObjectStore) -> None:
    """Delete all files of a checkpoint; half-deleted it does not count. A second call changes nothing."""
    with platform_errors():
        checkpoints.delete(store, Keys(tenant), job_id, name)


def fetch_export(
    tenant: str,
    job_id: str,
    attempt: int,
    folder: Path,
    *,
    trust_code: bool,
    limit_bytes: int,
    store: ObjectStore,
) -> Exported | None:
    """Return what this attempt of the export left, laid out below `folder`; None when there is no report.

    It lies where only sidecars of the role `export` write, of which the newest attempt's alone is not fenced; the pod
    runs the platform's program. `trust_code` lets the job's own MLflow folder pass.

    Raises:
        DataError: it is damaged, another attempt's, not completed, or would run code of the job when it is loaded.
        LimitError: it is larger than the limit, or than the worker's disk; nothing was fetched.
    """
    prefix = f"{Keys(tenant).results(job_id, EXPORT_ROLE, 1)}/{EXPORT_FOLDER}/"
    with platform_errors():
        sizes = {item.key: item.size for item in store.list(f"{prefix}{EXPORT_REPORT}")}
        size_bytes = sizes.get(f"{prefix}{EXPORT_REPORT}", 0)
        if size_bytes > REPORT_LIMIT_BYTES:
            raise DataError(
                f"export: {EXPORT_REPORT} is larger than {megabytes(REPORT_LIMIT_BYTES)}; the export writes it"
            )
        text = store.get_bytes(f"{prefix}{EXPORT_REPORT}", REPORT_LIMIT_BYTES)
        if text is None:
            return None
        if read_done(tenant, job_id, EXPORT_ROLE, attempt, 1, store=store) is None:
            raise DataError(f"export: attempt {attempt} has no completion marker; run the export again")
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
            written_by = int(report["attempt"])
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise DataError(f"export: {EXPORT_REPORT} is not of the known form ({type(exc).__name__})") from exc
        if written_by != attempt:
            raise DataError(
                f"export: {EXPORT_REPORT} is of attempt {written_by}, the newest is {attempt}; run the export again"
            )
        trusted = trust_code and set(formats) == {models.TRUSTED_FORMAT}
        if models.TRUSTED_FORMAT in formats and not trusted:
            raise DataError(
                f"export: {EXPORT_REPORT} says that the job's own MLflow folder was taken unchecked, and the manifest "
                "does not say trust_code; nothing was registered. Run the export again"
            )
        if not trusted:
            models.require_names(file.path for file in tree.files)
        if tree.size_bytes > limit_bytes:
            raise LimitError(
                f"export: the model has {megabytes(tree.size_bytes)}; the limit (UPDRAFT_EXPORT_LIMIT_BYTES) is "
                f"{megabytes(limit_bytes)}: export fewer formats, or a smaller model"
            )
        _require_disk(folder, tree.size_bytes)
        try:
            materialise(tree, folder, lambda file: store.open(f"{prefix}{file.path}"))
        except StorageError as exc:
            if exc.kind != "missing":
                raise
            raise DataError("export: a file of the exported model is not in the store; run the export again") from exc
        except (DigestMismatch, TreeError) as exc:
            raise DataError(f"export: {exc}; run the export again") from exc
    if not (folder / "model").is_dir():
        raise DataError("export: there is no folder `model` in what was exported; run the export again")
    if not trusted:
        models.require_data_only(folder / "model")
    checks = ", ".join(_check(name, entry) for name, entry in formats.items())
    return Exported(folder / "model", tuple(formats), model_class, checks, report)


def _require_disk(folder: Path, needed_bytes: int) -> None:
    """Raise an error if the worker's disk, which all jobs share, has too little room. The sizes are those of the
    report; no file is written beyond its own."""
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


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
