"""Decide whether a series trains again now, from its schedule and from what is known. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from croniter import croniter


@dataclass(frozen=True)
class ScheduleRule:
    """When a series trains again.

    Args:
        cron: The moments at which it may; None: any, at most every `at_most_every`.
        timezone: Of `cron`.
        and_new: Addresses of which one must have new data.
        quiet: How long the data must have been unchanged.
        or_champion_older: It also trains at such a moment without new data, if the champion is older.
    """

    cron: str | None
    timezone: str = "UTC"
    and_new: Sequence[str] = ()
    quiet: timedelta = timedelta(0)
    or_champion_older: timedelta | None = None
    at_most_every: timedelta = timedelta(hours=1)


@dataclass(frozen=True)
class DataSeen:
    """The data at the addresses of `and_new`, as it was listed just now.

    Args:
        fingerprint: Equal for equal data; None if there is no object.
        unchanged_since: When the data was first seen as it is.
    """

    fingerprint: str | None
    objects: int
    size_bytes: int
    unchanged_since: datetime


@dataclass(frozen=True)
class SeriesFacts:
    """What is known of a series.

    Args:
        since: When its schedule came into force: earlier moments of its cron do not count.
        slot: The last moment of its cron that was decided.
        fired_at, fired_on: When it last fired, and the fingerprint of the data then.
        data: None if the data could not be listed; `trouble` says why.
        champion_since: When its champion became that; None without a champion.
        running: A job of it that has not ended.
        paused: Who paused it; None: nobody.
    """

    now: datetime
    since: datetime
    slot: datetime | None = None
    fired_at: datetime | None = None
    fired_on: str | None = None
    data: DataSeen | None = None
    trouble: str = ""
    champion_since: datetime | None = None
    running: str | None = None
    paused: str | None = None


@dataclass(frozen=True)
class Look:
    """What follows from one look.

    Args:
        because: Why the series fires; empty if it does not.
        reason: For people, whether it fires or not.
        slot: The moment of the cron that is decided by this look; None: none is, and the next look decides.
        next_at: The next moment of the cron; None without a cron.
        aged: Whether the champion is too old, so that it fires whatever the data is.
    """

    because: tuple[str, ...]
    reason: str
    slot: datetime | None = None
    next_at: datetime | None = None
    aged: bool = False

    @property
    def fires(self) -> bool:
        return bool(self.because)


def look(rule: ScheduleRule, facts: SeriesFacts) -> Look:
    """Decide whether the series fires now.

    Of several moments that were missed, because the platform was down or a job of the series ran, only the latest
    counts. A moment without new data is decided: data that comes later waits for the next one. A moment at which the
    data still changes, or cannot be listed, is not decided yet.
    """
    waits = waits_for(rule, facts)
    if waits is not None:
        return waits
    slot, next_at = _moments(rule, facts)
    because = _old_champion(rule, facts)
    aged, wait = bool(because), ""
    if rule.and_new:
        new, wait, missing = _new_data(rule, facts)
        because += new
    elif not because and rule.or_champion_older is None:
        because, missing = (f"its time came: {_local(slot or facts.now, rule.timezone)}",), ""
    else:
        missing = "the champion is young enough" if facts.champion_since is not None else "there is no champion"
    if because:
        return Look(because, "; ".join(because), slot, next_at, aged)
    if wait:
        return Look((), wait, next_at=next_at)
    return Look((), missing, slot, next_at)


def waits_for(rule: ScheduleRule, facts: SeriesFacts) -> Look | None:
    """Return what keeps the series from firing whatever its data is; None if that decides."""
    slot, next_at = _moments(rule, facts)
    if slot is not None and slot <= (facts.slot or facts.since):
        assert next_at is not None
        return Look((), f"waits for {_local(next_at, rule.timezone)}", next_at=next_at)
    if facts.paused is not None:
        return Look((), f"paused by {facts.paused}", slot, next_at)
    if slot is None and facts.fired_at is not None and facts.now - facts.fired_at < rule.at_most_every:
        return Look((), f"fired {_ago(facts.now - facts.fired_at)} ago, and at most every {_ago(rule.at_most_every)}")
    if facts.running is not None:
        return Look((), f"job {facts.running} has not ended", next_at=next_at)
    return None


def _moments(rule: ScheduleRule, facts: SeriesFacts) -> tuple[datetime | None, datetime | None]:
    """Return the last moment of the cron and the one after it; None without a cron."""
    if rule.cron is None:
        return None, None
    return latest(rule.cron, rule.timezone, facts.now), following(rule.cron, rule.timezone, facts.now)


def _old_champion(rule: ScheduleRule, facts: SeriesFacts) -> tuple[str, ...]:
    if rule.or_champion_older is None or facts.champion_since is None:
        return ()
    age = facts.now - facts.champion_since
    if age < rule.or_champion_older:
        return ()
    return (f"the champion is {_ago(age)} old, and {_ago(rule.or_champion_older)} is the limit",)


def _new_data(rule: ScheduleRule, facts: SeriesFacts) -> tuple[tuple[str, ...], str, str]:
    """Return why there is new data, or else why it is not known yet, or else that there is none."""
    where = ", ".join(rule.and_new)
    if facts.data is None:
        return (), f"whether there is new data is not known: {facts.trouble}", ""
    if facts.data.fingerprint is None:
        return (), "", f"no data at {where}"
    if facts.data.fingerprint == facts.fired_on:
        return (), "", f"no new data at {where}"
    still = facts.now - facts.data.unchanged_since
    if still < rule.quiet:
        return (), f"new data still comes: unchanged for {_ago(still)} of {_ago(rule.quiet)}", ""
    return (f"new data at {where}: {facts.data.objects} objects, {facts.data.size_bytes / 1e6:.1f} MB",), "", ""


def latest(cron: str, timezone: str, now: datetime) -> datetime:
    """Return the last moment of the cron that is not after `now`, in UTC."""
    moment: datetime = _iterator(cron, timezone, now + timedelta(seconds=1)).get_prev(datetime)
    return _first(cron, moment)


def following(cron: str, timezone: str, now: datetime) -> datetime:
    """Return the first moment of the cron after `now`, in UTC."""
    iterator = _iterator(cron, timezone, now)
    while (moment := _first(cron, iterator.get_next(datetime))) <= now:
        pass
    return moment


def _first(cron: str, moment: datetime) -> datetime:
    """Return the moment in UTC. When clocks are set back, an hour comes twice: a cron that names hours counts it once,
    as the programs called cron do."""
    names_hours = cron != "@hourly" and (cron.startswith("@") or not cron.split()[1].startswith("*"))
    return (moment.replace(fold=0) if names_hours else moment).astimezone(UTC)


def _iterator(cron: str, timezone: str, start: datetime) -> croniter:
    from zoneinfo import ZoneInfo

    from croniter import croniter

    return croniter(cron, start.astimezone(ZoneInfo(timezone)))


def _local(moment: datetime, timezone: str) -> str:
    from zoneinfo import ZoneInfo

    return f"{moment.astimezone(ZoneInfo(timezone)):%Y-%m-%d %H:%M} {timezone}"


def _ago(span: timedelta) -> str:
    seconds = max(round(span.total_seconds()), 0)
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit or seconds == unit:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"
