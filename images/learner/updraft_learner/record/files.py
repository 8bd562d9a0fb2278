"""Read the program's files safely, and the sidecar's own small state files.

The program owns its folders and may put a link or a pipe anywhere in them, while the sidecar can read the credentials.
So every folder between the pod's root and a file is opened without following links, and only regular files are read.
"""

from __future__ import annotations

import errno
import json
import os
import posixpath
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from updraft_learner.below import folder_below, write_text_below
from updraft_learner.uploads import read_whole

# Non-blocking, because opening a pipe would wait for its writer.
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

# A hole takes no room on the pod's limited disk, but its full size in the object store, which all share. Sparse files
# of this total size are stored below a folder, because small databases have holes.
HOLLOW_BYTES = 1 << 30
HOLLOW_LEAST_BYTES = 64 << 10  # file systems may store small files without blocks of their own
HOLLOW = "is mostly a hole (a sparse file): it takes up more room where it is stored than where it lies"
# Likewise for further names of a file. All of them together may at most double the size of the files that they name.
REPEATED = "is a link, and all links here take up more than twice the room of what they name where they are stored"
NOT_UTF8 = "has a name that is not UTF-8, which the object store cannot have"


@dataclass(frozen=True)
class FoundFile:
    """A regular file below a folder. `source` differs from its path if a link inside the folder names it, or if its
    name is not UTF-8."""

    source: str
    size: int
    mtime_ns: int
    refused: str = field(default="", compare=False)  # the reason why it is not stored

    def same_content(self, other: FoundFile | None) -> bool:
        return other is not None and (self.size, self.mtime_ns) == (other.size, other.mtime_ns)


def open_below(root: Path, relative: str) -> BinaryIO:
    """Open a regular file; raises OSError when a part of its path below `root` is a link, or it is no file."""
    path = PurePosixPath(relative)
    with folder_below(root, str(path.parent)) as folder:
        file = os.open(path.name, _FILE_FLAGS, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "not a regular file", relative)
    return os.fdopen(file, "rb", buffering=0)


def find_below(root: Path, folder: str, hollow_bytes: int = HOLLOW_BYTES) -> tuple[dict[str, FoundFile], list[str]]:
    """Return the regular files below `root/folder`, by path relative to it, and the names of what is neither file nor
    folder, or cannot be read.

    A path that is not UTF-8 has its other bytes written as `\\xe9`, and its file is refused (NOT_UTF8). A link to a
    file inside the folder counts as that file. Empty when the folder is missing or a link. Files with holes are refused
    beyond `hollow_bytes` together.
    """
    found: dict[str, FoundFile] = {}
    refused: list[str] = []
    hollow: dict[str, int] = {}
    links: list[tuple[str, str]] = []
    names: dict[tuple[int, int], list[str]] = {}  # of files with several names, anywhere on the disk
    path_below = PurePosixPath(folder)

    def unreadable(exc: OSError) -> None:
        if isinstance(exc, PermissionError):
            refused.append(printable(str(exc.filename)))

    with suppress(FileNotFoundError, NotADirectoryError), folder_below(root, str(path_below.parent)) as anchor:
        for top, folders, files, descriptor in os.fwalk(
            path_below.name, dir_fd=anchor, follow_symlinks=False, onerror=unreadable
        ):
            prefix = PurePosixPath(top).relative_to(path_below.name).as_posix()
            prefix = "" if prefix == "." else f"{prefix}/"
            for name in [*files, *folders]:
                path = printable(prefix + name)
                why = "" if path == prefix + name else NOT_UTF8
                try:
                    facts = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                    if stat.S_ISREG(facts.st_mode):
                        found[path] = FoundFile(prefix + name, facts.st_size, facts.st_mtime_ns, why)
                        if facts.st_size > HOLLOW_LEAST_BYTES and facts.st_blocks * 512 < facts.st_size / 2:
                            hollow[path] = facts.st_size
                        if facts.st_nlink > 1:
                            names.setdefault((facts.st_dev, facts.st_ino), []).append(path)
                    elif stat.S_ISLNK(facts.st_mode):
                        target = posixpath.normpath(posixpath.join(prefix, os.readlink(name, dir_fd=descriptor)))
                        links.append((path, target))
                    elif not stat.S_ISDIR(facts.st_mode):
                        refused.append(path)
                except FileNotFoundError:  # deleted after it was listed
                    continue
    for path in _too_hollow(root, folder, hollow, hollow_bytes):
        found[path] = replace(found[path], refused=HOLLOW)
    regular = dict(found)
    further = [path for paths in names.values() for path in sorted(paths)[1:]]
    room_bytes = hollow_bytes + sum(regular[path].size for path in {*regular} - {*further} if not regular[path].refused)
    for path, target in links:
        if target in regular:
            found[path] = regular[target]
            further.append(path)
        else:
            refused.append(path)
    sizes = {path: found[path].size for path in further if not found[path].refused}
    for path in _beyond(sizes, room_bytes):
        found[path] = replace(found[path], refused=REPEATED)
    return found, refused


def printable(path: str) -> str:
    """Return a path as text that can be stored: bytes that are not UTF-8 are written as `\\xe9`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _too_hollow(root: Path, folder: str, sizes: Mapping[str, int], hollow_bytes: int) -> list[str]:
    """Return the largest of these files that have holes, beyond the size that is stored.

    A file system may report a file's blocks late, so a hole has to be found in the file.
    """
    if sum(sizes.values()) <= hollow_bytes:
        return []
    return _beyond({path: size for path, size in sizes.items() if has_hole(root, f"{folder}/{path}")}, hollow_bytes)


def _beyond(sizes: Mapping[str, int], left_bytes: int) -> list[str]:
    """Return the largest, for which no room is left by the others."""
    ordered = sorted(sizes, key=lambda path: (sizes[path], path))
    for count, path in enumerate(ordered):
        left_bytes -= sizes[path]
        if left_bytes < 0:
            return ordered[count:]
    return []


def has_hole(root: Path, relative: str) -> bool:
    """Return whether a file below `root` has a hole; false if it cannot be read."""
    try:
        with open_below(root, relative) as file:
            return os.lseek(file.fileno(), 0, os.SEEK_HOLE) < os.fstat(file.fileno()).st_size
    except OSError:  # deleted, unreadable, or on a file system without holes
        return False


class Within:
    """A file, up to the size that it had when it was found: the program may extend it while it is being sent."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        data = read_whole(self._file, wanted)
        self._left -= len(data)
        return data

    def __enter__(self) -> BinaryIO:
        return cast(BinaryIO, self)

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()


def write_below(root: Path, relative: str, value: Any) -> None:
    """Replace a JSON file in a folder of the program's at once; raises OSError when a folder of its path is a link."""
    write_text_below(root, relative, json.dumps(value, sort_keys=True))


def read_json(path: Path, default: Any) -> Any:
    """Return a state file's content; the default when there is none yet."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return default
