"""Give pods disks of a fixed size: a tmpfs below a pod's volumes, so that it can really be full. Needs root on Linux.

A full disk refuses writes with ENOSPC, as a node's disk does; deleting files makes room, and `statvfs` shows the true
values. Pods get such a disk while the fault lab's `small_disks` is on; all others share the disk of the state folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path

_MS_NOSUID, _MS_NODEV, _MS_REMOUNT = 2, 4, 32
_MNT_DETACH = 2
_FILL_ROUNDS = 20
_SIZE, _FULL = "disk", "full"  # files beside the volumes: the given size, and a mark
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def why_not() -> str | None:
    """Return why this process cannot give pods disks of their own; None if it can."""
    if sys.platform != "linux":
        return f"pods' disks of a fixed size are tmpfs mounts, which {sys.platform} does not have; use Linux"
    if os.geteuid() != 0:
        return "pods' disks of a fixed size are mounts, and the local node does not run as root; start it as root"
    return None


def _mount(folder: Path, flags: int, options: str) -> None:
    """Mount a disk. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    target = os.fsencode(folder)
    if libc.mount(b"tmpfs", target, b"tmpfs", ctypes.c_ulong(flags | _MS_NOSUID | _MS_NODEV), options.encode()) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))


def prepare(pod_folder: Path, size_bytes: int | None) -> None:
    """Give a pod without volumes yet a disk of its own. May be repeated. Raises OSError."""
    volumes = pod_folder / "v"
    if size_bytes is None or volumes.exists():
        return
    volumes.mkdir(parents=True, mode=0o700)
    (pod_folder / _SIZE).write_text(str(size_bytes))
    _mount(volumes, 0, f"size={size_bytes},mode=700")


def has_own(pod_folder: Path) -> bool:
    return (pod_folder / _SIZE).exists() and os.path.ismount(pod_folder / "v")


def is_full(pod_folder: Path) -> bool:
    return (pod_folder / _FULL).exists() and has_own(pod_folder)


def fill(pod_folder: Path, left_bytes: int) -> None:
    """Shrink the disk to what is used now and `left_bytes` more. Raises OSError."""
    volumes = pod_folder / "v"
    (pod_folder / _FULL).touch()
    for last in range(_FILL_ROUNDS, 0, -1):
        found = os.statvfs(volumes)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        try:
            _mount(volumes, _MS_REMOUNT, f"size={max(used + left_bytes, PAGE_BYTES)}")
        except OSError:  # the pod has just written more: try again with the new usage
            if last == 1:
                raise
        else:
            return


def free(pod_folder: Path) -> None:
    """Give back what `fill` took. Raises OSError."""
    (pod_folder / _FULL).unlink(missing_ok=True)
    _mount(pod_folder / "v", _MS_REMOUNT, f"size={int((pod_folder / _SIZE).read_text())}")


def release(pod_folder: Path) -> None:
    """Remove the pod's disk with all that is on it."""
    if (pod_folder / _SIZE).exists():
        _unmount(pod_folder / "v")
        for mark in (_SIZE, _FULL):
            (pod_folder / mark).unlink(missing_ok=True)


def _unmount(folder: Path) -> None:
    """Unmount at once: a process that has a file of it open may keep the file."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).umount2(os.fsencode(folder), _MNT_DETACH)


def release_all(below: Path) -> None:
    """Remove every disk below a folder, for `updraft down` when the local node is dead."""
    mounts: list[str] = []
    with contextlib.suppress(OSError):
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for text in mounts:
        path = Path(text.encode().decode("unicode_escape"))  # spaces are written as \040
        if path.is_relative_to(below.resolve()):
            _unmount(path)
