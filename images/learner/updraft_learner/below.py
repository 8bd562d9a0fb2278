"""Write below a folder that another program may write to, without ever leaving it.

The program of a pod, or its image, may have put a symbolic link anywhere below the volumes that it shares with the
sidecar. So each function starts at an `anchor`, the path of a trusted folder, and walks down by directory descriptors.
A link on the way is never followed: it is replaced if folders are to be made, and an error otherwise. Called by
`trees`, `stage`, `record` and the sidecar. Standard library only.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO

FOLDER_MODE = 0o2775  # the group may write, and new files keep the group
PART_PREFIX = ".updraft-part-"
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def folder_below(anchor: Path, relative: str, *, make: bool = False) -> Iterator[int]:
    """Open the folder `relative` below `anchor` (itself if it is "" or "."); give its descriptor.

    Args:
        make: Create each folder on the way that is missing, replace one that is a link, and let the group write to it.

    Raises:
        OSError: a folder is missing; or it is a link or a file (NotADirectoryError).
    """
    descriptor = os.open(anchor, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in PurePosixPath(relative).parts:
            if make:
                _make(name, descriptor)
            inner = os.open(name, _FOLDER_FLAGS, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
            if make:
                _share(descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def make_folder(anchor: Path, relative: str = "") -> Path:
    """Create `anchor`, and `relative` below it, as folders that their group may write to; return the latter's path."""
    anchor.mkdir(parents=True, exist_ok=True)
    with folder_below(anchor, relative, make=True) as descriptor:
        if not PurePosixPath(relative).parts:
            _share(descriptor)
    return anchor / relative


@contextmanager
def replacing(anchor: Path, relative: str, mode: int = 0o664) -> Iterator[BinaryIO]:
    """Open a new file that takes the place of `relative`, or of a link there, when the block ends without an error.

    Raises:
        OSError: a folder of the path is missing or a link; or `relative` is a folder (IsADirectoryError).
    """
    path = PurePosixPath(relative)
    part = f"{PART_PREFIX}{secrets.token_hex(8)}"
    with folder_below(anchor, str(path.parent)) as folder:
        try:
            with os.fdopen(os.open(part, _NEW_FLAGS, 0o600, dir_fd=folder), "wb") as file:
                yield file
                file.flush()
                os.fchmod(file.fileno(), mode)
            os.replace(part, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(part, dir_fd=folder)


def write_text_below(anchor: Path, relative: str, text: str) -> None:
    """Replace a text file at once; raises OSError as `replacing` does."""
    with replacing(anchor, relative) as file:
        file.write(text.encode())


def link_below(anchor: Path, relative: str, target: str) -> None:
    """Make `relative` a link to `target`, in place of a file or link there; raises OSError as `replacing` does."""
    path = PurePosixPath(relative)
    part = f"{PART_PREFIX}{secrets.token_hex(8)}"
    with folder_below(anchor, str(path.parent)) as folder:
        os.symlink(target, part, dir_fd=folder)
        try:
            os.replace(part, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(part, dir_fd=folder)


def facts_below(anchor: Path, relative: str) -> os.stat_result | None:
    """Return what `relative` is, a link included; None if it is missing. Raises OSError for a link on the way."""
    path = PurePosixPath(relative)
    try:
        with folder_below(anchor, str(path.parent)) as folder:
            return os.stat(path.name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _make(name: str, folder: int) -> None:
    """Create a folder unless there is one; a link of this name is replaced by it."""
    for _ in range(2):
        try:
            os.mkdir(name, dir_fd=folder)
        except FileExistsError:
            if not stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                return
            os.unlink(name, dir_fd=folder)
        else:
            return


def _share(folder: int) -> None:
    with suppress(PermissionError):  # another user's folder keeps its mode
        os.fchmod(folder, FOLDER_MODE)
