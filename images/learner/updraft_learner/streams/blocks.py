"""Keep blocks of objects as files. A block ends with the CRC-32 of its content, because a node that crashes may leave a
file whose content never reached the disk."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO

from updraft_learner.below import make_folder
from updraft_learner.streams.room import BLOCKS, PART_PREFIX, TOUCH_SECONDS, CacheFolder

BLOCK_BYTES = 4 << 20
CHECK_BYTES = 4
CHUNK_BYTES = 1 << 20
FULL = (errno.ENOSPC, errno.EDQUOT)

Fill = Callable[[Callable[[bytes], object]], None]


class NoRoom(Exception):
    """The disk or the cache has no room for a block."""


class BlockCache:
    """The blocks below a cache folder, which other sidecars may use at the same time."""

    def __init__(self, cache: CacheFolder) -> None:
        self._cache = cache

    def open(self, name: str, size: int) -> BinaryIO | None:
        """Open a block, at its beginning; None if it is not there. A damaged one is removed."""
        path = self._cache.block_path(name)
        try:
            file = path.open("rb", buffering=0)
        except OSError:
            return None
        if self._cache.has_used(name) or _is_whole(file, size):
            self._cache.use(name)
            _touch(file)
            file.seek(0)
            return file
        file.close()
        with suppress(OSError):
            path.unlink()
        return None

    def add(self, name: str, size: int, fill: Fill) -> None:
        """Write a block. `fill` passes its content to the function that it gets.

        Raises NoRoom if it cannot be kept; what `fill` raises.
        """
        if not self._cache.make_room(size + CHECK_BYTES):
            raise NoRoom
        path = self._cache.block_path(name)
        try:
            make_folder(self._cache.folder, f"{BLOCKS}/{name[:2]}")
            descriptor, part = tempfile.mkstemp(prefix=PART_PREFIX, dir=path.parent)
        except OSError as exc:
            raise self._no_room(exc, size) from exc
        digest = 0
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:

                def write(data: bytes) -> None:
                    nonlocal digest
                    digest = zlib.crc32(data, digest)
                    try:
                        file.write(data)
                    except OSError as exc:
                        raise self._no_room(exc, size) from exc

                fill(write)
                file.write(digest.to_bytes(CHECK_BYTES, "big"))
            os.replace(part, path)
        except OSError as exc:
            _remove(part)
            raise self._no_room(exc, size) from exc
        except BaseException:
            _remove(part)
            raise
        self._cache.use(name)

    def read_to_end(self, name: str) -> None:
        """Note that the program has read a block to its end; it may be the next one to go."""
        self._cache.read_to_end(name)

    def _no_room(self, error: OSError, size: int) -> Exception:
        """Return what to raise for an error of the disk, after removing some blocks if it is full."""
        if error.errno in FULL:
            self._cache.give_up(8 * size)
        return NoRoom()


def block_name(endpoint: str, bucket: str, key: str, version: str, number: int, block_bytes: int) -> str:
    """Return the name of a block: the same content of the same object has the same name in all jobs."""
    words = "\0".join((endpoint, bucket, key, version, str(number), str(block_bytes)))
    return hashlib.sha256(words.encode("utf-8", "surrogateescape")).hexdigest()


def _is_whole(file: BinaryIO, size: int) -> bool:
    try:
        if os.fstat(file.fileno()).st_size != size + CHECK_BYTES:
            return False
        digest, left = 0, size
        while left:
            data = file.read(min(CHUNK_BYTES, left))
            if not data:
                return False
            digest, left = zlib.crc32(data, digest), left - len(data)
        return file.read(CHECK_BYTES) == digest.to_bytes(CHECK_BYTES, "big")
    except OSError:
        return False


def _touch(file: BinaryIO) -> None:
    with suppress(OSError):
        if time.time() - os.fstat(file.fileno()).st_mtime > TOUCH_SECONDS:
            os.utime(file.fileno())


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
