"""Parse and format amounts of memory or disk, and durations, as users write them.

Pure functions; the manifest's model uses them through the annotated types `Bytes`, `DiskBytes` and `Duration`.
"""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from typing import Annotated

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from updraft.manifest.errors import VALUE, wrong

MEMORY_LIMIT_BYTES = 1024**5  # keeps amounts far below 64 bits wherever they are stored
_UNITS = {
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}i": 1024**power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)},
}
MEMORY_PATTERN = r"^\d{1,18}(\.\d{1,6})? ?([KMGT]i?B|[KMGT]i)$"
_MEMORY = re.compile(r"(\d{1,18}(?:\.\d{1,6})?) ?([KMGT]i?B|[KMGT]i)", re.ASCII)
MEMORY_ALLOWED = "a number and a unit (KB, MB, GB, TB, KiB, MiB, GiB, TiB; Ki, Mi, Gi, Ti mean the same as KiB ...)"

DURATION_PATTERN = r"^(?=\d)(\d{1,5}d)?(\d{1,6}h)?(\d{1,7}m)?(\d{1,8}s)?$"
_DURATION = re.compile(r"(?=\d)(?:(\d{1,5})d)?(?:(\d{1,6})h)?(?:(\d{1,7})m)?(?:(\d{1,8})s)?", re.ASCII)
DURATION_ALLOWED = "days, hours, minutes, seconds"
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}


def parse_memory(value: object) -> int:
    """Return the bytes of `16GiB`, `1.5 GB` or `512Mi`. Raises PydanticCustomError for all else, bare numbers
    included."""
    return _parse(value, "memory", "2GiB")


def parse_disk(value: object) -> int:
    """Parse a size as `parse_memory` does, with messages about a disk."""
    return _parse(value, "disk", "20GiB")


def _parse(value: object, what: str, example: str) -> int:
    match = _MEMORY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        nearest = nearest_memory(value, example)
        raise wrong(f"{VALUE} is not an amount of {what}", "a number and a unit", nearest, value=value)
    amount = int(Decimal(match[1]) * _UNITS[match[2]])
    if amount <= 0:
        raise wrong(f"{VALUE} is no {what} at all", "a number above 0 and a unit", example, value=value)
    if amount > MEMORY_LIMIT_BYTES:
        raise wrong(f"{VALUE} is more than there is", "at most 1024TiB", example, value=value)
    return amount


def nearest_memory(value: object, example: str = "2GiB") -> str:
    """Return a valid spelling of what the value probably means."""
    text = str(value)[:100] if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    match = re.search(r"(\d{1,18}(?:\.\d{1,6})?)\s*([kmgt])?(i)?(b)?", text, re.IGNORECASE | re.ASCII)
    if match is None:
        return example
    number, letter = Decimal(match[1]), match[2]
    if letter is not None:
        binary = match[3] is not None or match[4] is None
        unit = f"{letter.upper()}{'iB' if binary else 'B'}"
    else:
        unit = "MiB" if number >= 256 else "GiB"
        if number >= 1024**2:  # bytes
            number, unit = number // 1024**2, "MiB"
    return f"{number:f}{unit}" if 0 < number * _UNITS[unit] <= MEMORY_LIMIT_BYTES else example


def format_memory(amount_bytes: int) -> str:
    """Return the shortest exact writing: 2147483648 -> 2GiB."""
    for letter in reversed("KMGT"):
        for unit in (f"{letter}iB", f"{letter}B"):
            if amount_bytes % _UNITS[unit] == 0:
                return f"{amount_bytes // _UNITS[unit]}{unit}"
    kib = Decimal(amount_bytes) / 1000
    return f"{kib.normalize():f}KB"


def parse_duration(value: object) -> timedelta:
    """Parse `90s`, `15m`, `1h30m` or `7d`. Raises PydanticCustomError for all else, bare numbers included."""
    if isinstance(value, timedelta):
        value = format_duration(value)
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise wrong(
            f"{VALUE} is not a length of time", "a number and a unit (s, m, h, d)", nearest_duration(value), value=value
        )
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    duration = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    if not duration:
        raise wrong(f"{VALUE} is no time at all", "a length of time above 0", "60s", value=value)
    return duration


def nearest_duration(value: object) -> str:
    text = str(value)[:100] if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
    match = re.search(r"(\d{1,8}(?:\.\d{1,6})?)\s*([dhms])?", text, re.IGNORECASE | re.ASCII)
    if match is None:
        return "60s"
    seconds = int(Decimal(match[1]) * _SECONDS[(match[2] or "s").lower()])
    return format_duration(timedelta(seconds=seconds)) if 0 < seconds < 10**8 else "60s"


def format_duration(duration: timedelta) -> str:
    """Return the canonical writing: 5400 s -> 1h30m."""
    rest = int(duration.total_seconds())
    text = ""
    for unit, seconds in _SECONDS.items():
        count, rest = divmod(rest, seconds)
        if count:
            text += f"{count}{unit}"
    return text or "0s"


Bytes = Annotated[
    int,
    PlainValidator(parse_memory),
    PlainSerializer(format_memory, return_type=str),
    WithJsonSchema({"type": "string", "pattern": MEMORY_PATTERN}),
]
DiskBytes = Annotated[
    int,
    PlainValidator(parse_disk),
    PlainSerializer(format_memory, return_type=str),
    WithJsonSchema({"type": "string", "pattern": MEMORY_PATTERN}),
]
Duration = Annotated[
    timedelta,
    PlainValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN}),
]
