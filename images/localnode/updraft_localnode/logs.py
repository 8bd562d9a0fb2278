"""Read container logs as the API serves them. The shim writes them (`<time> <stream> F|P <text>`)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

FOLLOW_SECONDS = 0.2
_CHUNK_BYTES = 65536


@dataclass(frozen=True)
class LogOptions:
    """The requested part and form of a log."""

    follow: bool = False
    timestamps: bool = False
    since: str | None = None  # in the log's own format, see `log_time`
    tail_lines: int | None = None
    limit_bytes: int | None = None


def log_time(moment: datetime) -> str:
    """Return a time as the log writes it, so that texts compare like times."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"


def seconds_ago(seconds: int) -> str:
    return log_time(datetime.now(UTC) - timedelta(seconds=seconds))


def parse_time(text: str) -> str:
    """Parse RFC 3339, also with nanoseconds. Raises ValueError."""
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    fraction = text.partition(".")[2].rstrip("Z").partition("+")[0].partition("-")[0]
    whole = log_time(moment.replace(microsecond=0))[:20]
    return f"{whole}{fraction[:9]:<09}Z" if fraction else f"{whole}000000000Z"


def entries(lines: list[bytes], options: LogOptions) -> Iterator[bytes]:
    """Yield the output for complete lines of the file. Parts (P) are joined with what follows them."""
    continued = False
    for line in lines:
        fields = line.split(b" ", 3)
        if len(fields) < 4:
            continue  # cut off by a full disk
        time, _, tag, text = fields
        if options.since is not None and time.decode() < options.since:
            continue
        stamp = time + b" " if options.timestamps and not continued else b""
        continued = tag == b"P"
        yield stamp + text + (b"" if continued else b"\n")


def tail_offset(path: Path, lines: int) -> int:
    """Return where the last `lines` lines of the file begin."""
    with path.open("rb") as handle:
        position = handle.seek(0, os.SEEK_END)
        block, wanted = b"", lines + 1
        while position > 0 and block.count(b"\n") < wanted:
            step = min(_CHUNK_BYTES, position)
            position -= step
            handle.seek(position)
            block = handle.read(step) + block
    kept = block.split(b"\n")[-(lines + 1) :] if lines else [b""]
    return position + len(block) - len(b"\n".join(kept))


async def read_log(path: Path, options: LogOptions, finished: Callable[[], bool]) -> AsyncIterator[bytes]:
    """Yield chunks of output. With `follow`, continue until `finished()`, called before the last read, is true."""
    left = options.limit_bytes
    while options.follow and not path.exists() and not finished():
        await asyncio.sleep(FOLLOW_SECONDS)
    if not path.exists():
        return
    with path.open("rb") as handle:
        if options.tail_lines is not None:
            handle.seek(tail_offset(path, options.tail_lines))
        rest = b""
        while True:
            at_end = not options.follow or finished()
            data = handle.read(_CHUNK_BYTES)
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            out = b"".join(entries(lines, options))
            if left is not None:
                out = out[:left]
                left -= len(out)
            if out:
                yield out
            if left == 0 or (at_end and not data):
                return
            await asyncio.sleep(0 if data else FOLLOW_SECONDS)
