"""Store a learner's log: JSON lines `{"n", "t", "line"}` in chunks, each named by the number of its first line.

Writing the same lines twice is harmless: a chunk with the same first line is replaced, and readers drop lines that they
have. Small chunks are merged now and then, so that a long quiet job does not leave one object per second.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from updraft.storage.errors import platform_errors
from updraft_learner.contract import Keys
from updraft_learner.store import ObjectStore

MERGE_CHUNKS = 32
SMALL_BYTES = 64 * 1024  # larger chunks are not merged, so that a writer holds little in memory
PAGE_CHARACTERS = 4 << 20  # a page ends with the chunk that exceeds this, even below the limit of lines
TAIL_LINES = 50
CHUNK_LIMIT_BYTES = 16 << 20  # kubernetes.logs writes chunks of 1 Mi characters, of which JSON may need 12 bytes each


@dataclass(frozen=True)
class LogPosition:
    """The last recorded line: its number and time, and how many recorded lines share that time."""

    n: int = 0
    t: str = ""
    same: int = 0


@dataclass
class LogBook:
    """The writer of a learner's log. Use one writer at a time; a second writer only repeats the same lines."""

    store: ObjectStore
    prefix: str
    last: LogPosition = LogPosition()
    tail: tuple[str, ...] = ()
    _small: dict[str, bytes] = field(default_factory=dict)  # chunks that this writer wrote and has not merged

    @classmethod
    def open(cls, tenant: str, job_id: str, role: str, attempt: int, learner: int, *, store: ObjectStore) -> LogBook:
        """Return where an earlier writer stopped."""
        prefix = Keys(tenant).logs(job_id, role, attempt, learner)
        lines: list[dict[str, Any]] = []
        with platform_errors():
            for key in reversed([item.key for item in store.list(f"{prefix}/")]):
                lines = _in_order([*_parse(store.get_bytes(key, CHUNK_LIMIT_BYTES))[0], *lines])
                if len(lines) >= TAIL_LINES and lines[0]["t"] != lines[-1]["t"]:
                    break
        if not lines:
            return cls(store, prefix)
        end = lines[-1]
        same = sum(1 for line in lines if line["t"] == end["t"])
        return cls(
            store, prefix, LogPosition(end["n"], end["t"], same), tuple(line["line"] for line in lines[-TAIL_LINES:])
        )

    def append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Store lines that follow each other. Raises UnavailableError; the same call again is harmless."""
        if not lines:
            return
        key = f"{self.prefix}/{int(lines[0]['n']):012d}.jsonl"
        data = b"".join(json.dumps(dict(line), ensure_ascii=True).encode() + b"\n" for line in lines)
        with platform_errors():
            self.store.put_bytes(key, data)
        self._small.pop(key, None)
        if len(data) <= SMALL_BYTES:
            self._small[key] = data
        else:
            self._merge()  # a merged chunk must end before this one begins
        new = [line for line in lines if line["n"] > self.last.n]
        for line in new:
            same = self.last.same + 1 if line["t"] == self.last.t else 1
            self.last = LogPosition(int(line["n"]), str(line["t"]), same)
        self.tail = (*self.tail, *(str(line["line"]) for line in new))[-TAIL_LINES:]
        if len(self._small) >= MERGE_CHUNKS:
            self._merge()

    def _merge(self) -> None:
        keys = sorted(self._small)
        if len(keys) < 2:
            self._small.clear()
            return
        with platform_errors():
            self.store.put_bytes(keys[0], b"".join(self._small[key] for key in keys))
            for key in keys[1:]:
                self.store.delete(key)
        self._small.clear()


def read_log(
    tenant: str,
    job_id: str,
    role: str,
    attempt: int,
    learner: int,
    *,
    after: int = 0,
    limit: int = 1000,
    store: ObjectStore,
) -> list[dict[str, Any]]:
    """Return at most `limit` lines with numbers above `after`, in order. Chunks that end before are not fetched."""
    prefix = Keys(tenant).logs(job_id, role, attempt, learner)
    found: list[dict[str, Any]] = []
    with platform_errors():
        chunks = [(_first_line(item.key), item.key) for item in store.list(f"{prefix}/")]
        begins = max((first for first, _ in chunks if first <= after + 1), default=0)
        for first, key in chunks:
            if first < begins:
                continue
            lines, whole = _parse(store.get_bytes(key, CHUNK_LIMIT_BYTES))
            found = _in_order([*found, *(line for line in lines if line["n"] > after)])
            size = sum(len(line["line"]) for line in found)
            if len(found) >= limit or size >= PAGE_CHARACTERS or not whole:
                break
    return found[:limit]


def read_log_end(
    tenant: str, job_id: str, role: str, attempt: int, learner: int, *, limit: int, store: ObjectStore
) -> list[dict[str, Any]]:
    """Return the last `limit` lines. Only the chunks that hold them are fetched."""
    prefix = Keys(tenant).logs(job_id, role, attempt, learner)
    lines: list[dict[str, Any]] = []
    with platform_errors():
        for key in reversed([item.key for item in store.list(f"{prefix}/")]):
            lines = _in_order([*_parse(store.get_bytes(key, CHUNK_LIMIT_BYTES))[0], *lines])
            if len(lines) >= limit:
                break
    return lines[-limit:]


def _first_line(key: str) -> int:
    name = key.rpartition("/")[2].partition(".")[0]
    return int(name) if name.isdigit() else 0


def _parse(data: bytes | None) -> tuple[list[dict[str, Any]], bool]:
    """Return the lines of a chunk, and whether these are all: it may be being written at this moment."""
    lines: list[dict[str, Any]] = []
    for text in (data or b"").splitlines():
        try:
            line = json.loads(text)
            lines.append({"n": int(line["n"]), "t": str(line["t"]), "line": str(line["line"])})
        except (ValueError, KeyError, TypeError):
            return lines, False
    return lines, bool(data)


def _in_order(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each numbered line once. Chunks that two writers made, or that were just merged, overlap with equal
    content."""
    by_number = {line["n"]: line for line in lines}
    return [by_number[number] for number in sorted(by_number)]
