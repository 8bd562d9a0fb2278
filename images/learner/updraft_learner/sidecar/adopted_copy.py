"""Copy a match of `checkpoints.from` into a complete checkpoint in CHECKPOINT_DIR, or leave nothing.

The copy is described by its digests, and counts only if the program's files were the same before and after it was
made. `sidecar.checkpoints` then verifies and stores it like each other checkpoint. Called by `sidecar.adopted`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import shutil
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from updraft_learner import contract
from updraft_learner.adopted import ADOPTED_FILE, CONTENT, to_json
from updraft_learner.below import folder_below, make_folder, replacing
from updraft_learner.checkpoint_format import TEMPORARY_PREFIX, step_name
from updraft_learner.record.files import open_below
from updraft_learner.sidecar.adopted_scan import State, look
from updraft_learner.sidecar.checkpoints import FOLDER

PREFIX = f"{TEMPORARY_PREFIX}adopted-"
CHUNK_BYTES = 4 << 20


class Disturbed(Exception):
    """The program changed the files while they were copied; nothing was published."""


def clean_up(root: Path) -> None:
    """Remove what a sidecar that was killed has left of its copies."""
    with suppress(FileNotFoundError, NotADirectoryError), folder_below(root, FOLDER) as folder:
        for name in os.listdir(folder):
            if name.startswith(PREFIX):
                shutil.rmtree(name, dir_fd=folder, ignore_errors=True)


@dataclass(frozen=True)
class Copy:
    """A copy of a match that is not a checkpoint yet, in the hidden folder `name` of CHECKPOINT_DIR. `files`: digest
    and size of each file by path."""

    name: str
    state: State
    files: dict[str, dict[str, object]]


def make_copy(root: Path, working: str, path: str, state: State) -> Copy:
    """Copy `path` below the folder `working`, which has to be in `state`.

    Raises:
        Disturbed: it is no longer in that state.
        OSError: it cannot be read, or the copy cannot be written.
    """
    name = f"{PREFIX}{secrets.token_hex(8)}"
    try:
        make_folder(root, f"{FOLDER}/{name}")
        files = _copy_all(root, working, path, state, name)
        if look(root, f"{working}/{path}") != state:
            raise Disturbed(path)
        files[ADOPTED_FILE] = _write(root, f"{FOLDER}/{name}/{ADOPTED_FILE}", io.BytesIO(to_json(path)))
    except BaseException:
        discard(root, name)
        raise
    return Copy(name, state, files)


def publish(root: Path, copy: Copy, step: int, attempt: int) -> None:
    """Make a copy the complete checkpoint of `step`. Raises OSError, with the copy removed, if it cannot be written."""
    try:
        _describe(root, copy.name, copy.files, copy.state, step, attempt)
        _put_in_place(root, copy.name, step_name(step))
    finally:
        discard(root, copy.name)


def discard(root: Path, name: str) -> None:
    """Remove a copy, if it is there."""
    with suppress(OSError), folder_below(root, FOLDER) as folder:
        shutil.rmtree(name, dir_fd=folder, ignore_errors=True)


def _copy_all(root: Path, working: str, path: str, state: State, temporary: str) -> dict[str, dict[str, object]]:
    copied: dict[str, dict[str, object]] = {}
    content = f"{CONTENT}/{PurePosixPath(path).name}"
    for name, entry in sorted(state.files.items()):
        below = f"/{name}" if name else ""
        target = f"{FOLDER}/{temporary}/{content}{below}"
        make_folder(root, str(PurePosixPath(target).parent))
        with open_below(root, f"{working}/{path}{below}") as source:
            copied[content + below] = _write(root, target, source, entry.size)
    return copied


def _write(root: Path, relative: str, source: BinaryIO, size: int | None = None) -> dict[str, object]:
    """Copy a file and return its digest and size. Raises Disturbed if it has more than `size` bytes."""
    digest, written = hashlib.sha256(), 0
    with replacing(root, relative) as out:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            written += len(chunk)
            if size is not None and written > size:
                raise Disturbed(relative)
            out.write(chunk)
    return {"sha256": digest.hexdigest(), "size": written}


def _describe(
    root: Path, temporary: str, files: dict[str, dict[str, object]], state: State, step: int, attempt: int
) -> None:
    """Write the manifest, then the marker; its time is when the program last changed the files."""
    created = datetime.fromtimestamp(state.changed_ns / 1e9, UTC).isoformat(timespec="milliseconds")
    document = {
        "step": step, "metrics": {}, "files": files, "attempt": attempt, "rank": 0, "created": created
    }  # fmt: skip
    text = io.BytesIO(json.dumps(document, indent=1, sort_keys=True).encode())
    _write(root, f"{FOLDER}/{temporary}/{contract.CHECKPOINT_LOCAL_MANIFEST}", text)
    _write(root, f"{FOLDER}/{temporary}/{contract.CHECKPOINT_LOCAL_MARKER}", io.BytesIO())
    with folder_below(root, f"{FOLDER}/{temporary}") as folder:
        times = (state.changed_ns, state.changed_ns)
        os.utime(contract.CHECKPOINT_LOCAL_MARKER, ns=times, dir_fd=folder, follow_symlinks=False)


def _put_in_place(root: Path, temporary: str, name: str) -> None:
    """Rename the copy to `name`; what had that name before is removed."""
    aside = f"{PREFIX}{secrets.token_hex(8)}"
    with folder_below(root, FOLDER) as folder:
        with suppress(FileNotFoundError):
            os.rename(name, aside, src_dir_fd=folder, dst_dir_fd=folder)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        with suppress(FileNotFoundError):
            shutil.rmtree(aside, dir_fd=folder)
