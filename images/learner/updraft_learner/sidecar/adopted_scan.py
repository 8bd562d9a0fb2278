"""Find what a glob names below a folder of the program's, and tell whether it changes.

The program may plant links and pipes and may rename folders at any moment. So every folder is opened from the pod's
root by descriptors, no link is followed, and only regular files count. Called by `sidecar.adopted`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import signal
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from updraft_learner.below import facts_below, folder_below
from updraft_learner.record.files import HOLLOW_BYTES, HOLLOW_LEAST_BYTES, has_hole, open_below

MOST_FILES = 100_000  # of one match; the manifest of a checkpoint has room for about as many
MOST_MATCHES = 1_000
_LINUX_F_SETSIG = 10
_WILD = re.compile(r"[*?\[]")
# Names that programs give to what they have not finished: `x.tmp`, `tmp-checkpoint-5`, `tmp8k2_x1ab`, `x.partial`.
_UNFINISHED = re.compile(
    r"(^|[._-])tmp([._-]|$)|^tmp[a-z0-9_]{8}$|\.(temp|part|partial|incomplete|writing)$", re.IGNORECASE
)


class NotAdopted(Exception):
    """What matches can never become a checkpoint; the text says why."""


@dataclass(frozen=True)
class Entry:
    """What one path is. Every change of content changes `ctime_ns`, which no program can set."""

    inode: int
    mode: int
    size: int
    blocks: int
    mtime_ns: int
    ctime_ns: int


@dataclass(frozen=True)
class State:
    """A match as it was at one moment. `entries` maps paths to facts; "" is the match itself."""

    entries: dict[str, Entry]

    @property
    def files(self) -> dict[str, Entry]:
        return {path: entry for path, entry in self.entries.items() if stat.S_ISREG(entry.mode)}

    @property
    def size_bytes(self) -> int:
        return sum(entry.size for entry in self.files.values())

    @property
    def changed_ns(self) -> int:
        """Return when the newest of its entries changed, in nanoseconds since 1970."""
        return max(entry.ctime_ns for entry in self.entries.values())

    def digest(self) -> str:
        """Return a text that differs for another state."""
        return hashlib.sha256(repr(sorted(self.entries.items())).encode(errors="surrogatepass")).hexdigest()

    def unfinished(self, name: str) -> str | None:
        """Return the first name that says of itself that it is not finished; `name` is that of the match."""
        names = [part for path in self.entries for part in PurePosixPath(path).parts]
        return next((part for part in (name, *sorted(names)) if _UNFINISHED.search(part)), None)


def matches(root: Path, folder: str, pattern: str) -> list[str]:
    """Return the paths below `folder` that a glob names, at most MOST_MATCHES. Wildcards match no dot at the start."""
    found = [""]
    for part in pattern.split("/"):
        found = [path for base in found for path in _children(root, folder, base, part)][:MOST_MATCHES]
    return [path for path in found if facts_below(root, f"{folder}/{path}") is not None]


def look(root: Path, relative: str) -> State:
    """Return the state of what lies at `relative` below `root`.

    Raises:
        NotAdopted: it is a link or no file, or has such a thing in it, or has too many files.
        OSError: it is gone, or cannot be read.
    """
    with folder_below(root, str(PurePosixPath(relative).parent)) as parent:
        name = PurePosixPath(relative).name
        top = os.stat(name, dir_fd=parent, follow_symlinks=False)
        entries = {"": _entry(top)}
        if stat.S_ISDIR(top.st_mode):
            for path, facts in _walk(name, parent):
                entries[path] = _entry(facts)
                if len(entries) > MOST_FILES:
                    raise NotAdopted(f"it has more than {MOST_FILES} files")
    for path, entry in entries.items():
        if not stat.S_ISREG(entry.mode) and not stat.S_ISDIR(entry.mode):
            raise NotAdopted(f"{path or 'it'} is a link, a pipe or a device; only files and folders are adopted")
    return State(entries)


def is_closed(root: Path, relative: str) -> bool:
    """Return whether no process has the file open for writing, in whatever container; False where the file system or
    the file's owner does not let this process know.

    A lease for reading is granted only then. It is given back at once: a writer that comes meanwhile waits for that.
    """
    try:
        with open_below(root, relative) as file:
            # If a writer comes meanwhile, the kernel signals the lease's holder; SIGIO would end this process.
            fcntl.fcntl(file, _LINUX_F_SETSIG, signal.SIGURG)
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except (OSError, AttributeError):
        return False
    return True


def require_solid(root: Path, relative: str, state: State) -> None:
    """Raise NotAdopted for sparse files that a copy would blow up."""
    hollow = {
        path: entry.size
        for path, entry in state.files.items()
        if entry.size > HOLLOW_LEAST_BYTES and entry.blocks * 512 < entry.size / 2
    }
    if sum(hollow.values()) > HOLLOW_BYTES:
        for path in hollow:
            if has_hole(root, f"{relative}/{path}" if path else relative):
                raise NotAdopted(f"{path or 'it'} is mostly a hole (a sparse file)")


def _children(root: Path, folder: str, base: str, part: str) -> list[str]:
    prefix = f"{base}/" if base else ""
    if not _WILD.search(part):
        return [prefix + part]
    with suppress(OSError), folder_below(root, f"{folder}/{base}") as opened:
        names = sorted(name for name in os.listdir(opened) if name.isprintable() and fnmatchcase(name, part))
        return [prefix + name for name in names if part.startswith(".") or not name.startswith(".")]
    return []


def _walk(name: str, parent: int) -> Iterator[tuple[str, os.stat_result]]:
    for top, folders, files, descriptor in os.fwalk(name, dir_fd=parent, follow_symlinks=False, onerror=_fail):
        below = PurePosixPath(top).relative_to(name).as_posix()
        prefix = "" if below == "." else f"{below}/"
        for each in (*folders, *files):
            yield prefix + each, os.stat(each, dir_fd=descriptor, follow_symlinks=False)


def _fail(exc: OSError) -> None:
    raise exc


def _entry(facts: os.stat_result) -> Entry:
    return Entry(facts.st_ino, facts.st_mode, facts.st_size, facts.st_blocks, facts.st_mtime_ns, facts.st_ctime_ns)
