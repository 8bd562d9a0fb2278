"""Read and write the checkpoint format: a folder that is either complete and verifiable, or ignored.

    CHECKPOINT_DIR/
      step-0000000120/      written as `.tmp-...`, flushed, then renamed
        state.pt            any files of the program
        checkpoint.json     step, metrics, and each file's SHA-256 and size
        COMPLETE            created last; without it the folder is ignored
      latest -> step-0000000120

A program without Python may write a folder `step-<number>` of its own, without a checkpoint.json, and `touch COMPLETE`.

A state that is spread over learners is one checkpoint in several such folders, one on each learner's disk. Each
contains a *part*: files whose names differ from those of the other parts, and `checkpoint-0001-of-0002.json` instead of
checkpoint.json, with `part`, `parts` and `save`, a word that all parts of one save share. It can be read where all
parts are in one folder, as the platform lays it out for a resume.

Standard library only. `checkpoint.Checkpointer` and `sharded.ShardedCheckpointer` call this, and decide when and what
to save.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

from updraft_learner.contract import CHECKPOINT_LATEST, CHECKPOINT_LOCAL_MANIFEST, CHECKPOINT_LOCAL_MARKER

TEMPORARY_PREFIX = ".tmp-"
BAD_PREFIX = ".bad-"
HASH_CHUNK_BYTES = 4 << 20  # large, because each chunk returns the GIL to the training once

_STEP = re.compile(r"^step-(\d+)$")
_PART_MANIFEST = re.compile(r"^checkpoint-(\d{4})-of-(\d{4})\.json$")
MOST_PARTS = 9999


class CheckpointError(Exception):
    """A checkpoint could not be written or read."""


class CorruptCheckpoint(CheckpointError):
    """A checkpoint's files do not match its manifest."""


class PartialCheckpoint(CheckpointError):
    """Some parts of the checkpoint are here and the others with other learners, which is no error."""


@dataclass(frozen=True)
class FileFacts:
    sha256: str
    size: int


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint in a folder on disk, as `Checkpointer.latest` returns it.

    `path` is the folder, `step` the step from which training resumes, `metrics` what `save` was given. `files` maps
    paths relative to the folder to size and SHA-256; it is empty if the program wrote no manifest. `attempt` and `rank`
    say who saved it, and `created` when (RFC 3339). If the state is spread over `parts` learners, this is part number
    `part`.
    """

    path: Path
    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    files: Mapping[str, FileFacts] = field(default_factory=dict)
    attempt: int = 1
    rank: int = 0
    created: str = ""  # RFC 3339
    parts: int = 1  # more than 1: the state is spread over this many learners
    part: int = 1  # the part that was saved here
    save: str = ""  # the same in all parts of one save


class HashingFile(FileIO):
    """A file for writing that computes the digest of everything written to it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "xb")
        self._hash = hashlib.sha256()
        self._size_bytes = 0

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        self._hash.update(view)
        written = 0
        while written < len(view):
            written += super().write(view[written:]) or 0
        self._size_bytes += written
        return written

    def facts(self) -> FileFacts:
        return FileFacts(self._hash.hexdigest(), self._size_bytes)


def step_name(step: int) -> str:
    return f"step-{step:010d}"


def manifest_name(part: int = 1, parts: int = 1) -> str:
    return CHECKPOINT_LOCAL_MANIFEST if parts == 1 else f"checkpoint-{part:04d}-of-{parts:04d}.json"


def part_of(manifest: str) -> tuple[int, int] | None:
    """Return the part and the number of parts in the name of a part's manifest; None for any other file name."""
    match = _PART_MANIFEST.match(manifest)
    if match is None:
        return None
    part, parts = int(match.group(1)), int(match.group(2))
    return (part, parts) if 1 <= part <= parts and parts > 1 else None


def write_file(path: Path, fill: Callable[[HashingFile], None]) -> FileFacts:
    """Write `path` through `fill`, flushed to the disk; returns what was written."""
    with HashingFile(path) as file:
        fill(file)
        os.fsync(file.fileno())
        return file.facts()


def hash_folder(folder: Path, *, flush: bool = False) -> dict[str, FileFacts]:
    """Return the digest and size of every file below `folder` but manifests and marker; with `flush`, write each to the
    disk first."""
    facts: dict[str, FileFacts] = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder).as_posix()
        if path.is_dir() or relative in (CHECKPOINT_LOCAL_MANIFEST, CHECKPOINT_LOCAL_MARKER) or part_of(relative):
            continue
        facts[relative] = _file_facts(path)
        if flush:
            _fsync(path)
    return facts


def publish(temporary: Path, checkpoint: Checkpoint) -> None:
    """Make the files in `temporary` the complete checkpoint at `checkpoint.path`, and the latest one."""
    settle(temporary, checkpoint)
    complete(checkpoint.path)


def settle(temporary: Path, checkpoint: Checkpoint) -> None:
    """Do the first half of `publish`: all files are in place and described, and do not count yet."""
    target = checkpoint.path
    document = {key: value for key, value in asdict(checkpoint).items() if key != "path"}
    if checkpoint.parts == 1:
        document = {key: value for key, value in document.items() if key not in ("part", "parts", "save")}
    text = json.dumps(document, indent=1, sort_keys=True).encode()
    name = manifest_name(checkpoint.part, checkpoint.parts)
    write_file(temporary / name, lambda file: _write_all(file, text))
    _fsync(temporary)
    if target.exists():  # left in this folder by an earlier run
        remove(target)
    temporary.rename(target)


def complete(target: Path) -> None:
    """Do the second half of `publish`: from now on the checkpoint counts."""
    (target / CHECKPOINT_LOCAL_MARKER).touch()
    _fsync(target)
    _point_latest_at(target)
    _fsync(target.parent)


def complete_checkpoints(root: Path) -> list[Path]:
    """Return the folders `step-<number>` with a completion marker, highest step first."""
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if _STEP.match(path.name) and (path / CHECKPOINT_LOCAL_MARKER).exists()]
    return sorted(found, key=step_of, reverse=True)


def read(path: Path) -> Checkpoint:
    """Read and verify one complete checkpoint; one in several parts becomes one.

    Raises:
        CorruptCheckpoint: a manifest is unreadable, or a file is missing, has another size or another digest.
        PartialCheckpoint: parts of it are not in this folder.
    """
    described = [_read_manifest(path, name) for name in _manifests(path)]
    if not described:
        return Checkpoint(path=path, step=step_of(path))
    checkpoint = described[0]
    if checkpoint.parts > 1:
        if len(described) < checkpoint.parts:
            raise PartialCheckpoint(
                f"checkpoint {path.name}: {len(described)} of its {checkpoint.parts} parts lie here; other "
                "learners have the rest, and the platform brings them together when it resumes from it"
            )
        if len({(one.step, one.save, one.parts) for one in described}) > 1:
            raise CorruptCheckpoint(f"checkpoint {path.name}: its parts are of different saves")
        files = {name: facts for one in described for name, facts in one.files.items()}
        checkpoint = replace(checkpoint, files=files)
    for name, expected in checkpoint.files.items():
        file = path / name
        if not file.is_file():
            raise CorruptCheckpoint(f"checkpoint {path.name}: file {name} is missing")
        size_bytes = file.stat().st_size
        if size_bytes != expected.size:
            raise CorruptCheckpoint(
                f"checkpoint {path.name}: file {name} has {size_bytes} bytes instead of {expected.size}"
            )
        if _file_facts(file) != expected:
            raise CorruptCheckpoint(f"checkpoint {path.name}: file {name} does not match its digest")
    return checkpoint


def is_whole(path: Path) -> bool:
    """Return whether all parts of the checkpoint are in this folder; their content is not checked."""
    names = _manifests(path)
    parts = part_of(names[0]) if names else None
    return parts is None or len(names) >= parts[1]


def quarantine(path: Path) -> Path:
    """Rename a bad checkpoint; it stays on disk, so that the cause can be found."""
    target = path.with_name(f"{BAD_PREFIX}{path.name}")
    number = 1
    while target.exists():
        number += 1
        target = path.with_name(f"{BAD_PREFIX}{path.name}-{number}")
    return path.rename(target)


def remove(path: Path) -> None:
    """Remove a checkpoint, never leaving a part of it under its name. A missing checkpoint is no error."""
    aside = path.with_name(f"{TEMPORARY_PREFIX}old-{path.name}-{os.getpid()}")
    try:
        path.rename(aside)
    except FileNotFoundError:
        return
    shutil.rmtree(aside, ignore_errors=True)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def step_of(path: Path) -> int:
    match = _STEP.match(path.name)
    if match is None:
        raise CheckpointError(f"{path.name} is no checkpoint folder; those are named step-<number>")
    return int(match.group(1))


def _manifests(path: Path) -> list[str]:
    """Return the names of the manifests in a checkpoint's folder: one for all of it, or one for each part that is
    there."""
    if (path / CHECKPOINT_LOCAL_MANIFEST).exists():
        return [CHECKPOINT_LOCAL_MANIFEST]
    return sorted(entry.name for entry in path.iterdir() if part_of(entry.name))


def _read_manifest(path: Path, name: str) -> Checkpoint:
    try:
        raw = json.loads((path / name).read_text(encoding="utf-8"))
        files = {file: FileFacts(**facts) for file, facts in raw.pop("files").items()}
        return Checkpoint(path=path, files=files, **raw)
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise CorruptCheckpoint(f"checkpoint {path.name}: {name} is unreadable ({exc})") from exc


def _file_facts(path: Path) -> FileFacts:
    digest, size_bytes = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(HASH_CHUNK_BYTES):
            digest.update(chunk)
            size_bytes += len(chunk)
    return FileFacts(digest.hexdigest(), size_bytes)


def _write_all(file: HashingFile, data: bytes) -> None:
    file.write(data)


def _point_latest_at(target: Path) -> None:
    link = target.parent / f"{TEMPORARY_PREFIX}{CHECKPOINT_LATEST}-{threading.get_native_id()}"
    link.unlink(missing_ok=True)
    link.symlink_to(target.name)
    os.replace(link, target.parent / CHECKPOINT_LATEST)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
