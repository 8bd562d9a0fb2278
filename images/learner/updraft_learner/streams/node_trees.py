"""Keep trees on the node, where the learners of all jobs read them (`data.mode: mount`).

The first sidecar that needs a tree copies it; others on the node wait for it. A lock that is shared by all sidecars
that use a tree keeps it from being removed. The kernel drops a lock when its process ends, in whatever way.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from updraft_learner.below import make_folder
from updraft_learner.streams.room import TREES, CacheFolder
from updraft_learner.trees import Tree, megabytes

WAIT_SECONDS = 1.0
SAY_EVERY = 10  # waits
FILE_MODE = 0o444

_held: dict[Path, int] = {}  # descriptors that are open until the process ends, by the file that they lock
_lock = threading.Lock()


class TooLargeForNode(Exception):
    """The tree does not fit into the node's cache."""


def lay_on_node(
    cache: CacheFolder,
    digest: str,
    tree: Tree,
    copy: Callable[[Path], None],
    say: Callable[[str], None],
    *,
    pause: Callable[[float], object] = time.sleep,
) -> Path:
    """Return the folder with the tree's files, complete, and hold it until this process ends.

    Args:
        copy: Lays the tree out in a folder, which may have some of its files already.
        say: Gets lines for people.
        pause: Waits some seconds while another sidecar copies the tree.

    Raises:
        TooLargeForNode, OSError; what `copy` raises.
    """
    lock = cache.folder / TREES / f"{digest}.lock"
    folder, done = cache.tree_path(digest), cache.record_path(digest)
    with _lock:
        if lock in _held:
            return folder
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
    try:
        waits = 0
        while True:
            if done.exists():
                if _locks(descriptor, fcntl.LOCK_SH) and done.exists():
                    os.utime(done)
                    break
            elif _locks(descriptor, fcntl.LOCK_EX):
                if not done.exists():
                    _copy(cache, digest, tree, copy)
                continue
            elif waits % SAY_EVERY == 0:
                say("another job of this node copies the same data; waiting for it")
            waits += 1
            pause(WAIT_SECONDS)
    except BaseException:
        os.close(descriptor)
        raise
    with _lock:
        _held[lock] = descriptor
    return folder


def _locks(descriptor: int, how: int) -> bool:
    """Return whether the lock was taken, or changed, at once."""
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _copy(cache: CacheFolder, digest: str, tree: Tree, copy: Callable[[Path], None]) -> None:
    partial, folder = cache.record_path(digest, complete=False), cache.tree_path(digest)
    if not partial.exists():  # else a copy that broke off is counted already
        _make_room(cache, tree)
        partial.write_text(json.dumps({"bytes": tree.size_bytes}), encoding="utf-8")
    make_folder(cache.folder, f"{TREES}/{digest}")
    copy(folder)
    for parent, _, names in os.walk(folder):
        for name in names:  # the node's owner is the program's user, too, where nothing mounts the folder read-only
            path = os.path.join(parent, name)
            os.chmod(path, FILE_MODE | (os.stat(path).st_mode & 0o111))
    os.replace(partial, cache.record_path(digest))


def _make_room(cache: CacheFolder, tree: Tree) -> None:
    """Raise TooLargeForNode if the cache, or its disk, has no room for the tree."""
    needs = f"{megabytes(tree.size_bytes)} do not fit into the node's cache"
    if not cache.make_room(tree.size_bytes):
        limit = megabytes(cache.limit_bytes)
        raise TooLargeForNode(f"{needs}, which may have {limit}; write mode: copy or stream, or ask for a larger cache")
    if shutil.disk_usage(cache.folder).free < tree.size_bytes:
        cache.give_up(tree.size_bytes)
    free_bytes = shutil.disk_usage(cache.folder).free
    if free_bytes < tree.size_bytes:
        raise TooLargeForNode(f"{needs}, whose disk has {megabytes(free_bytes)} free; write mode: stream")


def release_all() -> None:
    """Release what this process holds; for tests, which run several sidecars in one process."""
    with _lock:
        for descriptor in _held.values():
            with suppress(OSError):
                os.close(descriptor)
        _held.clear()
