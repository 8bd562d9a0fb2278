"""Write the sidecar's own files on the pod's disk: the journal's lines and small state files.

The program shares the disk and may fill it, so each call may fail. Called by the sidecar and by `record`.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


class PodDisk:
    """The disk for the sidecar's files. A method raises OSError if the disk is full, unless its docstring says
    otherwise."""

    def open_to_append(self, path: Path) -> int:
        """Return a descriptor of a file, which is created when it is missing."""
        return os.open(path, _APPEND, 0o600)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write as much of `data` as there is room for; return how many bytes were written."""
        return os.write(descriptor, data)

    def write_json(self, path: Path, value: Any) -> None:
        """Replace a state file at once, or leave the old one."""
        part = path.with_name(f"{path.name}.part")
        try:
            part.write_text(json.dumps(value, sort_keys=True), encoding="utf-8")
            os.replace(part, path)
        except OSError:
            with suppress(OSError):
                part.unlink()
            raise

    def save_json(self, path: Path, value: Any) -> bool:
        """Write state that only spares the next process work; return False when it could not be written."""
        try:
            self.write_json(path, value)
        except OSError:
            return False
        return True

    def free_bytes(self, folder: Path) -> int | None:
        """Return the free bytes of the disk that holds a folder, or None if it cannot be asked."""
        try:
            return shutil.disk_usage(folder).free
        except OSError:
            return None


POD_DISK = PodDisk()
