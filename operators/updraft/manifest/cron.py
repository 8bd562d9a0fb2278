"""Check that a text is a schedule: five cron fields, or a name such as @daily. Airflow also uses croniter."""

from __future__ import annotations

from updraft.manifest.errors import VALUE, nearest, wrong

PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@yearly")
_FIELDS = {
    "minute": "from 0 to 59",
    "hour": "from 0 to 23",
    "day of month": "from 1 to 31",
    "month": "from 1 to 12",
    "day of week": "from 0 to 7",
}
_RANDOM = ("h", "r")  # croniter's own syntax: a value that is drawn at random each time
CRON_ALLOWED = f"minute, hour, day of month, month, day of week, or one of {', '.join(PRESETS)}"


def check_cron(text: str) -> str:
    """Return `text`. Raises PydanticCustomError, which names the wrong field, or a time that never comes."""
    from croniter import CroniterBadDateError, croniter  # 0.1 s, which a manifest without a schedule does not need

    if text.startswith("@"):
        if text in PRESETS:
            return text
        raise wrong(f"{VALUE} is not a known schedule", CRON_ALLOWED, nearest(text, PRESETS), value=text)
    parts = text.split()
    if len(parts) != len(_FIELDS):
        raise wrong(f"{VALUE} has {len(parts)} fields and not five", CRON_ALLOWED, "'0 3 * * *'", value=text)
    for number, (name, allowed) in enumerate(_FIELDS.items()):
        alone = ["*"] * number + [parts[number]] + ["*"] * (len(_FIELDS) - 1 - number)
        drawn = any(item.lower().startswith(_RANDOM) for item in parts[number].split(","))
        if drawn or not croniter.is_valid(" ".join(alone)):
            problem = f"{VALUE} has {parts[number][:20]!r} as its {name}"
            raise wrong(problem, f"{name} {allowed}", "'0 3 * * *'", value=text)
    try:
        croniter(text).get_next()
    except CroniterBadDateError:
        raise wrong(f"{VALUE} never comes", "a day that its month has", "'0 3 28 * *'", value=text) from None
    except ValueError:  # croniter accepts each field, but not all together
        raise wrong(f"{VALUE} is not a cron expression", CRON_ALLOWED, "'0 3 * * *'", value=text) from None
    return text
