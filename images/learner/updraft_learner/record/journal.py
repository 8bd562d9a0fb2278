"""Record every metric, param and tag of this learner in one order, on disk before it is acknowledged.

The journal consists of numbered segments of JSON lines, which are also the chunks uploaded to `Keys.metrics`. The
endpoint, the tail of the metrics file and the sampler append to it, and the forwarder reads it. A segment is deleted
when it is uploaded and forwarded. A restarted sidecar continues from what is on disk. While the disk is full, new
entries wait in memory, up to a limit: a program must not end because its metrics have no room.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from updraft_learner.record.disk import POD_DISK, PodDisk
from updraft_learner.record.files import read_json
from updraft_learner.store import ObjectStore

ROLL_BYTES = 256 * 1024
ROLL_SECONDS = 5.0
READ_BYTES = 256 * 1024
HELD_BYTES = 8 << 20  # of entries in memory, while the disk is full
Entry = dict[str, Any]


@dataclass(frozen=True, order=True)
class JournalPosition:
    """A position between two lines."""

    segment: int = 1
    offset: int = 0


def points(entry: Entry) -> int:
    """Return how many things of this entry are to reach MLflow."""
    if "call" in entry:
        return 1
    return sum(len(entry[kind]) for kind in ("metrics", "params", "tags") if kind in entry)


class Journal:
    """The journal of one learner; thread-safe. `read_at` says how far each file of the program is recorded: an entry
    has the new position of the file that it was read from, {key: numbers that only grow}.

    Args:
        held_limit_bytes: The limit for entries in memory while the disk is full.
    """

    def __init__(
        self,
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
        *,
        disk: PodDisk = POD_DISK,
        held_limit_bytes: int = HELD_BYTES,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._clock, self._disk = folder, clock, disk
        self._held_limit_bytes = held_limit_bytes
        self._state_file = folder / "state.json"
        self._changed = threading.Condition()
        state = read_json(self._state_file, {"next_n": 1, "uploaded": 0, "segment": 1, "read_at": {}})
        self._uploaded = int(state["uploaded"])
        self._pruned_at: int | None = None  # segment being forwarded when nothing was left to delete
        self._next_n = int(state["next_n"])
        self.read_at: dict[str, list[int]] = dict(state["read_at"])
        self.appended_points = 0
        segments = self._segments()
        self._segment = max([self._uploaded + 1, int(state["segment"]), *segments])
        for segment in segments:
            self._recover(segment)
        self._size = self._size_of(self._segment)
        self._opened = clock()
        self._descriptor = self._open(self._segment)  # None: the disk is full
        self._held = bytearray()
        self.held_entries = 0

    def append(self, entries: Sequence[Entry]) -> None:
        """Add entries; they survive this process when this returns, unless the disk is full (`held_entries`).

        Raises OSError, adding none, when the disk and the memory for such times are both full.
        """
        with self._changed:
            lines = bytearray()
            for number, entry in enumerate(entries, self._next_n):
                lines += json.dumps({"n": number, **entry}, separators=(",", ":"), allow_nan=False).encode() + b"\n"
            try:
                self._write_held()
                self._write(lines)
            except OSError:
                if len(self._held) + len(lines) > self._held_limit_bytes:
                    raise
                self._held += lines
                self.held_entries += len(entries)
            self._next_n += len(entries)
            for entry in entries:
                self._remember(entry)

    def write_held(self) -> None:
        """Write what waits in memory, if the disk has room again."""
        with self._changed, suppress(OSError):
            self._write_held()

    def end(self) -> JournalPosition:
        with self._changed:
            return JournalPosition(self._segment, self._size)

    def wait(self, position: JournalPosition, timeout_seconds: float, stop: threading.Event) -> None:
        """Wait until there is something after `position`, or `wake` is called after `stop` was set."""
        with self._changed:
            self._changed.wait_for(
                lambda: stop.is_set() or JournalPosition(self._segment, self._size) > position, timeout_seconds
            )

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def read(self, position: JournalPosition, limit_bytes: int = READ_BYTES) -> list[tuple[Entry, JournalPosition]]:
        """Return the entries after `position`, each with the position behind it; empty at the end."""
        while True:
            with self._changed:
                segment, size = self._segment, self._size
            if position >= JournalPosition(segment, size):
                return []
            limit = size if position.segment == segment else self._size_of(position.segment)
            if position.offset < limit:
                return self._read_segment(position, min(limit, position.offset + limit_bytes), limit)
            position = JournalPosition(position.segment + 1, 0)

    def settle(self, position: JournalPosition) -> JournalPosition:
        """Return the same position; the end of a closed segment becomes the beginning of the next one."""
        with self._changed:
            while position.segment < self._segment and position.offset >= self._size_of(position.segment):
                position = JournalPosition(position.segment + 1, 0)
        return position

    def roll(self, *, force: bool = False) -> None:
        """Close the open segment when it is large or old enough to be uploaded."""
        with self._changed:
            old = self._clock() - self._opened >= ROLL_SECONDS
            if self._size == 0 or not (force or old or self._size >= ROLL_BYTES):
                return
            # The file shows that the segment exists: without it, a restarted process would continue with a closed
            # segment.
            descriptor = self._open(self._segment + 1)
            if descriptor is None:
                return
            self.close()
            self._segment, self._size, self._descriptor = self._segment + 1, 0, descriptor

    def upload(self, store: ObjectStore, prefix: str) -> None:
        """Store all closed segments; raises StorageError."""
        with self._changed:
            closed = range(self._uploaded + 1, self._segment)
        for segment in closed:
            path = self._path(segment)
            if path.exists():
                store.put_bytes(f"{prefix}/{path.name}", path.read_bytes())
            self._uploaded = segment
            self._pruned_at = None

    def upload_rest(self, store: ObjectStore, prefix: str) -> None:
        """Store the open segment and what found no room on the disk, as the last thing; raises StorageError."""
        with self._changed:
            path, held = self._path(self._segment), bytes(self._held)
            data = path.read_bytes()[: self._size] + held if self._size else held
        if data:
            store.put_bytes(f"{prefix}/{path.name}", data)

    def prune(self, forwarded: JournalPosition) -> None:
        """Delete what is both uploaded and forwarded."""
        if self._pruned_at == forwarded.segment or self._held:  # the state would count lines that are in memory only
            return
        self._pruned_at = forwarded.segment
        gone = [number for number in self._segments() if number <= self._uploaded and number < forwarded.segment]
        if not gone:
            return
        with self._changed:
            state = {
                "next_n": self._next_n,
                "uploaded": self._uploaded,
                "segment": self._segment,
                "read_at": dict(self.read_at),
            }
        if not self._disk.save_json(self._state_file, state):
            self._pruned_at = None
            return
        for segment in gone:
            self._path(segment).unlink(missing_ok=True)

    def close(self) -> None:
        with self._changed:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _write_held(self) -> None:
        if self._held:
            self._write(self._held)
            self._held.clear()
            self.held_entries = 0

    def _write(self, lines: bytearray) -> None:
        """Append lines to the open segment, all or none."""
        if not lines:
            return
        if self._descriptor is None:
            self._descriptor = self._disk.open_to_append(self._path(self._segment))
        try:
            view = memoryview(lines)
            while view:
                view = view[self._disk.write(self._descriptor, view) :]
        except OSError:
            os.ftruncate(self._descriptor, self._size)
            raise
        finally:
            view.release()
        if self._size == 0:
            self._opened = self._clock()
        self._size += len(lines)
        self._changed.notify_all()

    def _remember(self, entry: Entry) -> None:
        self.appended_points += points(entry)
        self._remember_position(entry)

    def _remember_position(self, entry: Entry) -> None:
        for key, position in entry.get("read_at", {}).items():
            self.read_at[key] = max(self.read_at.get(key, []), position)

    def _recover(self, segment: int) -> None:
        path = self._path(segment)
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):  # killed in the middle of a line, which was not acknowledged
            os.truncate(path, whole)
        for line in data[:whole].splitlines():
            entry = json.loads(line)
            self._next_n = max(self._next_n, entry["n"] + 1)
            self._remember_position(entry)

    def _read_segment(self, position: JournalPosition, end: int, limit: int) -> list[tuple[Entry, JournalPosition]]:
        with self._path(position.segment).open("rb") as file:
            file.seek(position.offset)
            data = file.read(end - position.offset)
            if not data.endswith(b"\n"):
                data += file.readline()
        entries, offset = [], position.offset
        for line in data.splitlines(keepends=True):
            offset += len(line)
            entries.append((json.loads(line), JournalPosition(position.segment, min(offset, limit))))
        return entries

    def _segments(self) -> list[int]:
        return sorted(int(path.stem) for path in self._folder.glob("*.jsonl"))

    def _path(self, segment: int) -> Path:
        return self._folder / f"{segment:08d}.jsonl"

    def _size_of(self, segment: int) -> int:
        try:
            return self._path(segment).stat().st_size
        except FileNotFoundError:
            return 0

    def _open(self, segment: int) -> int | None:
        try:
            return self._disk.open_to_append(self._path(segment))
        except OSError:
            return None
