"""Keep a cache folder below its limit. The folder may belong to one learner, or to all learners of a node.

    blocks/AA/NAME       a block of an object; see `blocks`
    trees/DIGEST/        the files of a tree; see `node_trees`
    trees/DIGEST.json    its size; touched when it is used; DIGEST.partial.json until the tree is complete
    trees/DIGEST.lock    locked by each sidecar that uses the tree, or writes it

Blocks go first: those of other jobs that were not used for an hour, and then mostly the block that the program has just
read to its end. Training reads all of its data once per epoch, so that this is the block that is needed last. If the
least recently used went first, a cache that is smaller than the data would never have what is needed next. Trees that
no sidecar uses go after the blocks, the least recently used first. A lock lets one sidecar at a time do this.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from updraft_learner.below import make_folder

BLOCKS, TREES = "blocks", "trees"
PARTIAL = ".partial"
PART_PREFIX = ".part-"  # of a block that is being written
STALE_SECONDS = 3600.0  # after that, nobody writes it any more
IDLE_SECONDS = 3600.0
TOUCH_SECONDS = 300.0
READ = 64  # blocks that are remembered as read to their end
OTHERS = 16  # one of so many removed blocks is chosen at random
SHARE = 32  # a look at the folder for each 1/32 of the limit that is written


@dataclass(frozen=True)
class Block:
    path: Path
    size: int
    used_at: float  # a Unix time, within TOUCH_SECONDS


class CacheFolder:
    """A cache folder with a limit.

    Args:
        folder: Made if it is missing.
        limit_bytes: Most bytes of blocks and trees. Each sidecar may pass it by 1/32, and by the blocks that it is
            fetching.
    """

    def __init__(self, folder: Path, limit_bytes: int, *, chooser: random.Random | None = None) -> None:
        self.folder, self.limit_bytes = folder, limit_bytes
        self._chooser = chooser or random.Random()
        self._written: int | None = None  # since the last look; None: never looked
        self._own: set[str] = set()  # blocks that this process has used
        self._read: deque[str] = deque(maxlen=READ)  # of these, the last ones that the program has read to their end
        self._lock = threading.Lock()
        for name in (BLOCKS, TREES):
            make_folder(folder, name)

    def block_path(self, name: str) -> Path:
        return self.folder / BLOCKS / name[:2] / name

    def tree_path(self, digest: str) -> Path:
        return self.folder / TREES / digest

    def record_path(self, digest: str, *, complete: bool = True) -> Path:
        """Return the file that holds the tree's size."""
        return self.folder / TREES / f"{digest}{'' if complete else PARTIAL}.json"

    def use(self, name: str) -> None:
        """Note that this process has written a block, or has read and checked it."""
        with self._lock:
            self._own.add(name)

    def has_used(self, name: str) -> bool:
        with self._lock:
            return name in self._own

    def read_to_end(self, name: str) -> None:
        """Note that the program has read a block to its end."""
        with self._lock:
            self._read.append(name)

    def make_room(self, size_bytes: int) -> bool:
        """Remove what has to go so that `size_bytes` may be written; return whether there is room now."""
        if size_bytes > self.limit_bytes:
            return False
        with self._lock:
            if self._written is None or self._written + size_bytes > self.limit_bytes // SHARE:
                used = self._shrink(self.limit_bytes - size_bytes)
                self._written = 0
                if used + size_bytes > self.limit_bytes:
                    return False
            self._written += size_bytes
            return True

    def give_up(self, size_bytes: int) -> None:
        """Remove about this many bytes because the disk is full."""
        with self._lock:
            self._shrink(max(0, self._used() - size_bytes))
            self._written = 0

    def _used(self) -> int:
        return sum(block.size for block in self._blocks()) + sum(size for _, _, size in self._trees())

    def _shrink(self, target_bytes: int) -> int:
        """Remove blocks and unused trees until the folder has at most `target_bytes`, and some less, so that it is not
        looked at for each block; return its size."""
        with self._locked(self.folder / "room.lock"):
            blocks, trees = {block.path.name: block for block in self._blocks()}, list(self._trees())
            used = sum(block.size for block in blocks.values()) + sum(size for _, _, size in trees)
            if used <= target_bytes:
                return used
            goal = max(0, target_bytes - self.limit_bytes // SHARE)
            for block in self._victims(blocks):
                if used <= goal:
                    break
                with suppress(OSError):
                    block.path.unlink()
                used -= block.size
            for _, digest, size in sorted(trees):
                if used <= goal:
                    break
                if self._remove_tree(digest):
                    used -= size
            return used

    def _victims(self, blocks: dict[str, Block]) -> Iterator[Block]:
        """Yield all blocks, in the order in which they go."""
        now = time.time()
        others = [
            name for name, block in blocks.items() if now - block.used_at > IDLE_SECONDS and name not in self._own
        ]
        for name in others:
            yield blocks.pop(name)
        names = list(blocks)
        self._chooser.shuffle(names)
        while names:
            # Sometimes another one, so that a cache which is full of one job's blocks opens to the next job's.
            name = self._read.pop() if self._read and self._chooser.randrange(OTHERS) else names.pop()
            if name in blocks:
                yield blocks.pop(name)

    def _remove_tree(self, digest: str) -> bool:
        """Remove a tree unless a sidecar uses it."""
        try:
            descriptor = os.open(self.folder / TREES / f"{digest}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        else:
            for complete in (True, False):
                self.record_path(digest, complete=complete).unlink(missing_ok=True)
            shutil.rmtree(self.tree_path(digest), ignore_errors=True)
            return True
        finally:
            os.close(descriptor)

    def _blocks(self) -> Iterator[Block]:
        for folder in _entries(self.folder / BLOCKS):
            for entry in _entries(Path(folder.path)):
                with suppress(OSError):
                    facts = entry.stat()
                    if not entry.name.startswith(PART_PREFIX) or time.time() - facts.st_mtime > STALE_SECONDS:
                        yield Block(Path(entry.path), facts.st_size, facts.st_mtime)

    def _trees(self) -> Iterator[tuple[float, str, int]]:
        """Yield when each tree was last used, its digest, and its size in bytes when it is complete."""
        for entry in _entries(self.folder / TREES):
            if entry.name.endswith(".json"):
                with suppress(OSError, ValueError, KeyError, TypeError):
                    size = int(json.loads(Path(entry.path).read_text())["bytes"])
                    yield entry.stat().st_mtime, entry.name.removesuffix(".json").removesuffix(PARTIAL), size

    @contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except OSError:
        return []
