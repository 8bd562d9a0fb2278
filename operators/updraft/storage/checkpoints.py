"""Read the checkpoints in the store: which are complete, which are damaged, which are unfinished.

It reports only what the store shows; its callers know the ledger and decide what to do. `objects` calls it with the
platform's own store.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from updraft.exceptions import DataError
from updraft_learner.checkpoint_names import QUARANTINE_MARKER, is_bookkeeping, is_part, recordable
from updraft_learner.checkpoint_store import PartsDisagree, join_parts
from updraft_learner.contract import (
    CHECKPOINT_MARKER,
    CHECKPOINT_METRICS,
    CHECKPOINT_METRICS_CHARACTERS,
    MARKER_LIMIT_BYTES,
    SIGNAL_LIMIT_BYTES,
    Keys,
)
from updraft_learner.store import ObjectStore, StorageError

log = logging.getLogger(__name__)

HASH_CHUNK_BYTES = 1 << 20
SHOWN_CHARACTERS = 300  # of a path, in a reason
NOT_THERE = "it is not in the store, or was never completed"


@dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint that is complete in the store."""

    name: str
    step: int  # 0 if the program gave none
    attempt: int
    learner: int
    metrics: Mapping[str, float]
    bytes: int
    uri: str
    created_at: datetime


@dataclass(frozen=True)
class Looked:
    """All checkpoints of a job, each in one of these groups."""

    whole: tuple[CheckpointInfo, ...] = ()  # oldest first
    sure: frozenset[str] = frozenset()  # also whole: their size is the one that the caller gave, so they were not read
    damaged: Mapping[str, str] = field(default_factory=dict)  # name and reason
    unfinished: frozenset[str] = frozenset()  # without a marker: still being written, or abandoned
    quarantined: frozenset[str] = frozenset()


def look(
    store: ObjectStore, keys: Keys, job_id: str, *, sure: Mapping[str, int] | None = None, only: str | None = None
) -> Looked:
    """List the job's checkpoints once. Parts that are all there become a checkpoint first.

    Args:
        sure: name -> bytes of checkpoints that were whole before; one of the same length is not read again.
        only: look at this one alone.
    """
    root = f"{keys.checkpoints(job_id)}/"
    files: dict[str, dict[str, int]] = {}
    for item in store.list(f"{root}{only}/" if only else root):
        name, _, path = item.key[len(root) :].partition("/")
        if path:
            files.setdefault(name, {})[path] = item.size
    whole: list[tuple[Any, CheckpointInfo]] = []
    damaged: dict[str, str] = {}
    certain, unfinished, quarantined = set(), set(), set()
    for name, sizes in files.items():
        if QUARANTINE_MARKER in sizes:
            quarantined.add(name)
        elif CHECKPOINT_MARKER not in sizes and not _joined(store, keys, job_id, name, sizes, damaged):
            if name not in damaged:
                unfinished.add(name)
        elif sure and _length(sizes) == sure.get(name):
            certain.add(name)
        else:
            text = _marker(store, keys, job_id, name)
            if text is None:  # it was deleted after it was listed
                continue
            found = _read(keys, job_id, name, text, sizes) if isinstance(text, bytes) else text
            if isinstance(found, str):
                damaged[name] = found
            else:
                whole.append(found)
    ordered = tuple(info for _, info in sorted(whole, key=lambda pair: pair[0]))
    return Looked(ordered, frozenset(certain), damaged, frozenset(unfinished), frozenset(quarantined))


def verify(store: ObjectStore, keys: Keys, job_id: str, name: str, *, digests: bool) -> str | None:
    """Return what is wrong with it; None when nothing is. Raises StorageError when the store cannot be asked."""
    prefix = f"{keys.checkpoint(job_id, name)}/"
    text = _marker(store, keys, job_id, name)
    note = store.get_bytes(f"{prefix}{QUARANTINE_MARKER}", SIGNAL_LIMIT_BYTES)
    if note is not None:
        return f"it was set aside: {(_object(note) or {}).get('reason', 'no reason is given')}"
    if text is None:
        return NOT_THERE
    if isinstance(text, str):
        return text
    found = _read(keys, job_id, name, text, {item.key[len(prefix) :]: item.size for item in store.list(prefix)})
    if isinstance(found, str):
        return found
    if digests:
        for path, facts in (_object(text) or {})["files"].items():
            try:
                digest = _digest(store, f"{prefix}{path}")
            except StorageError as exc:
                if exc.kind != "missing":
                    raise
                return f"file {path} is missing"
            if digest != facts.get("sha256"):
                return f"file {path} does not match its digest"
    return None


def quarantine(store: ObjectStore, keys: Keys, job_id: str, name: str, reason: str) -> None:
    """Set a checkpoint aside. The note is written first: from then on no process makes it whole again."""
    note = json.dumps({"reason": reason, "at": datetime.now(UTC).isoformat()}).encode()
    store.put_bytes(f"{keys.checkpoint(job_id, name)}/{QUARANTINE_MARKER}", note)
    store.delete(keys.checkpoint_marker(job_id, name))


def delete(store: ObjectStore, keys: Keys, job_id: str, name: str) -> None:
    """Delete a checkpoint in an order in which a half-deleted one neither counts nor is made whole again. A second call
    changes nothing."""
    if not name or "/" in name or name in (".", ".."):
        raise DataError(f"checkpoint: {name!r} is no name of a checkpoint")
    prefix = f"{keys.checkpoint(job_id, name)}/"
    paths = [item.key[len(prefix) :] for item in store.list(prefix)]
    for path in sorted(paths, key=lambda path: (not is_part(path), path != CHECKPOINT_MARKER, path)):
        store.delete(f"{prefix}{path}")


def _marker(store: ObjectStore, keys: Keys, job_id: str, name: str) -> bytes | str | None:
    """Return the marker's text, or a message for a marker that no sidecar of the platform writes."""
    try:
        return store.get_bytes(keys.checkpoint_marker(job_id, name), MARKER_LIMIT_BYTES)
    except StorageError as exc:
        if exc.kind != "too large":
            raise
        return f"{CHECKPOINT_MARKER} is larger than {MARKER_LIMIT_BYTES} bytes"


def _joined(
    store: ObjectStore, keys: Keys, job_id: str, name: str, sizes: dict[str, int], damaged: dict[str, str]
) -> bool:
    """Return whether its parts are one checkpoint now."""
    if not any(is_part(path) for path in sizes):
        return False
    try:
        return join_parts(store, keys, job_id, name) == "whole"
    except (PartsDisagree, ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        known = isinstance(exc, PartsDisagree)
        damaged[name] = str(exc)[:SHOWN_CHARACTERS] if known else "a description of its parts cannot be read"
        return False


def _read(
    keys: Keys, job_id: str, name: str, text: bytes, sizes: Mapping[str, int]
) -> tuple[tuple[Any, ...], CheckpointInfo] | str:
    """Return the checkpoint's place among the others and its facts, or what is wrong with it."""
    marker = _object(text)
    try:
        if marker is None:
            raise ValueError("no JSON object")
        files = {str(path): int(facts["size"]) for path, facts in marker["files"].items()}
        metrics = marker.get("metrics") or {}  # None stands for NaN and infinities, which JSON lacks
        info = CheckpointInfo(
            name=name,
            step=int(marker.get("step") or 0),
            attempt=int(marker.get("attempt") or 1),
            learner=int(marker.get("learner") or 1),
            metrics={str(key): float(value) for key, value in metrics.items() if value is not None},
            bytes=sum(files.values()),
            uri=f"{keys.checkpoint(job_id, name)}/",
            created_at=_time(marker.get("created")),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return f"{CHECKPOINT_MARKER} cannot be read"
    if len(info.metrics) > CHECKPOINT_METRICS or sum(map(len, info.metrics)) > CHECKPOINT_METRICS_CHARACTERS:
        return f"it has too many metrics; the limit is {CHECKPOINT_METRICS}"
    if not recordable(name):
        return "its name is too long, or has characters that are not printed"
    for path, size in files.items():
        if path not in sizes:
            return f"file {path[:SHOWN_CHARACTERS]} is missing"
        if sizes[path] != size:
            return f"file {path[:SHOWN_CHARACTERS]} has {sizes[path]} bytes instead of {size}"
    if marker.get("step") is None:  # the same folder is written again and again: the newest is found by time
        return (-1, info.attempt, info.created_at, -info.learner), info
    return (info.step, info.attempt, -info.learner, info.created_at), info


def _length(sizes: Mapping[str, int]) -> int:
    return sum(size for path, size in sizes.items() if not is_bookkeeping(path))


def _digest(store: ObjectStore, key: str) -> str:
    digest = hashlib.sha256()
    with store.open(key) as stream:
        while chunk := stream.read(HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _time(value: Any) -> datetime:
    """Parse seconds or RFC 3339, as the marker has it."""
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC)
    moment = datetime.fromisoformat(str(value))
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
