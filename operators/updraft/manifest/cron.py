"""Whether a text is a cron expression: five fields, or a name such as @daily. Pure; Airflow runs it."""

from __future__ import annotations

import re

from updraft.manifest.errors import VALUE, nearest, wrong

PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@yearly")
_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, 1)}
_DAYS = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of month", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 7, _DAYS),
)
_ITEM = re.compile(r"(?:(\*)|(\w{1,3})(?:-(\w{1,3}))?)(?:/(\d{1,3}))?", re.ASCII)
CRON_ALLOWED = f"minute, hour, day of month, month, day of week, or one of {', '.join(PRESETS)}"


def check_cron(text: str) -> str:
    """Returns `text`; raises PydanticCustomError naming the field that is wrong."""
    if text.startswith("@"):
        if text in PRESETS:
            return text
        raise wrong(f"{VALUE} is not a known schedule", CRON_ALLOWED, nearest(text, PRESETS), value=text)
    parts = text.split()
    if len(parts) != len(_FIELDS):
        raise wrong(f"{VALUE} has {len(parts)} fields and not five", CRON_ALLOWED, "'0 3 * * *'", value=text)
    for part, (name, low, high, names) in zip(parts, _FIELDS, strict=True):
        if not all(_item_is_valid(item, low, high, names) for item in part.split(",")):
            raise wrong(
                f"{VALUE} has {part[:20]!r} as its {name}", f"{name} from {low} to {high}", "'0 3 * * *'", value=text
            )
    return text


def _item_is_valid(item: str, low: int, high: int, names: dict[str, int]) -> bool:
    match = _ITEM.fullmatch(item)
    if match is None:
        return False
    star, first, last, step = match.groups()
    if step is not None and int(step) < 1:
        return False
    if star:
        return True
    ends = [names.get(end.lower(), int(end) if end.isdigit() else -1) for end in (first, last) if end is not None]
    return all(low <= end <= high for end in ends) and ends == sorted(ends)
