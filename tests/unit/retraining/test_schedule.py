"""When a series trains again: by time, data and the champion's age; what is missed, late, paused or still running."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from updraft.retraining.schedule import DataSeen, Look, ScheduleRule, SeriesFacts, following, latest, look

START = datetime(2026, 1, 1, tzinfo=UTC)
DAILY = ScheduleRule("0 3 * * *")
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
DATA = "s3://datasets/digits/"


def at(day: int, hour: int = 0, minute: int = 0) -> datetime:
    return datetime(2026, 1, day, hour, minute, tzinfo=UTC)


def facts(now: datetime, **known: object) -> SeriesFacts:
    return replace(SeriesFacts(now, START), **known)  # type: ignore[arg-type]


def seen(fingerprint: str | None, since: datetime = START) -> DataSeen:
    return DataSeen(fingerprint, 3, 2_000_000, since)


def test_a_cron_fires_once_at_each_of_its_moments() -> None:
    assert look(DAILY, facts(at(1, 2, 59))) == Look((), "waits for 2026-01-01 03:00 UTC", next_at=at(1, 3))
    due = look(DAILY, facts(at(1, 3)))
    assert due.because == ("its time came: 2026-01-01 03:00 UTC",)
    assert due.slot == at(1, 3)
    assert not look(DAILY, facts(at(1, 4), slot=due.slot)).fires
    assert look(DAILY, facts(at(2, 3), slot=due.slot)).slot == at(2, 3)


def test_of_several_missed_moments_the_latest_fires() -> None:
    found = look(DAILY, facts(at(9, 12), slot=at(2, 3)))
    assert (found.fires, found.slot) == (True, at(9, 3))


def test_moments_before_the_schedule_came_into_force_do_not_count() -> None:
    assert not look(DAILY, SeriesFacts(at(9, 12), since=at(9, 11))).fires


def test_at_its_moment_a_series_with_data_needs_new_data() -> None:
    rule = replace(DAILY, and_new=(DATA,))
    found = look(rule, facts(at(2, 3), data=seen("b"), fired_on="a"))
    assert found.because == (f"new data at {DATA}: 3 objects, 2.0 MB",)
    none = look(rule, facts(at(2, 3), data=seen("a"), fired_on="a"))
    assert (none.fires, none.reason, none.slot) == (False, f"no new data at {DATA}", at(2, 3))
    empty = look(rule, facts(at(2, 3), data=seen(None)))
    assert (empty.fires, empty.reason) == (False, f"no data at {DATA}")


def test_data_that_comes_after_the_moment_waits_for_the_next_one() -> None:
    rule = replace(DAILY, and_new=(DATA,))
    decided = look(rule, facts(at(2, 3), data=seen("a"), fired_on="a")).slot
    assert not look(rule, facts(at(2, 4), slot=decided, data=seen("b"), fired_on="a")).fires
    assert look(rule, facts(at(3, 3), slot=decided, data=seen("b"), fired_on="a")).fires


def test_data_that_still_changes_or_cannot_be_listed_leaves_the_moment_open() -> None:
    rule = replace(DAILY, and_new=(DATA,), quiet=timedelta(minutes=10))
    moving = look(rule, facts(at(2, 3, 5), data=seen("b", at(2, 3))))
    assert (moving.reason, moving.slot) == ("new data still comes: unchanged for 5 min of 10 min", None)
    assert look(rule, facts(at(2, 3, 10), data=seen("b", at(2, 3)))).fires
    away = look(rule, facts(at(2, 3), trouble="the bucket 'datasets' does not exist"))
    assert (away.slot, away.reason) == (
        None,
        "whether there is new data is not known: the bucket 'datasets' does not exist",
    )


def test_without_a_cron_new_data_fires_at_most_every_hour() -> None:
    rule = ScheduleRule(None, and_new=(DATA,), at_most_every=HOUR)
    assert look(rule, facts(at(1), data=seen("a"))).fires
    early = look(rule, facts(at(1, 0, 30), data=seen("b"), fired_on="a", fired_at=at(1)))
    assert (early.fires, early.reason) == (False, "fired 30 min ago, and at most every 1 h")
    assert look(rule, facts(at(1, 1), data=seen("b"), fired_on="a", fired_at=at(1))).fires


def test_an_old_champion_fires_without_new_data() -> None:
    rule = replace(DAILY, and_new=(DATA,), or_champion_older=30 * DAY)
    old = facts(at(31, 3), data=seen("a"), fired_on="a", champion_since=START)
    assert look(rule, old).because == ("the champion is 30 d old, and 30 d is the limit",)
    assert not look(rule, replace(old, now=at(30, 3))).fires
    assert look(rule, replace(old, data=None)).fires  # it does not depend on the bucket
    alone = ScheduleRule(None, or_champion_older=30 * DAY)
    assert look(alone, facts(at(2))).reason == "there is no champion"
    assert look(alone, facts(at(2), champion_since=START)).reason == "the champion is young enough"


def test_a_job_that_runs_delays_the_next_and_a_pause_drops_it() -> None:
    running = look(DAILY, facts(at(2, 3), running="digits-1"))
    assert (running.fires, running.slot, running.reason) == (False, None, "job digits-1 has not ended")
    paused = look(DAILY, facts(at(2, 3), paused="ada"))
    assert (paused.fires, paused.slot, paused.reason) == (False, at(2, 3), "paused by ada")


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        # In Berlin, 02:30 does not exist on 29 March 2026 and is there twice on 25 October 2026.
        (datetime(2026, 3, 28, 12, tzinfo=UTC), 1),
        (datetime(2026, 10, 24, 12, tzinfo=UTC), 1),
    ],
    ids=["the hour that is left out", "the hour that comes twice"],
)
def test_a_nightly_cron_fires_once_in_the_night_that_the_clocks_change(now: datetime, expected: int) -> None:
    rule, fired, slot = ScheduleRule("30 2 * * *", "Europe/Berlin"), 0, now
    for minutes in range(0, 24 * 60, 5):
        found = look(rule, SeriesFacts(now + timedelta(minutes=minutes), since=now, slot=slot))
        if found.fires:
            assert found.slot is not None
            fired, slot = fired + 1, found.slot
    assert fired == expected


MOMENTS = st.datetimes(datetime(2025, 1, 1), datetime(2027, 1, 1)).map(lambda moment: moment.replace(tzinfo=UTC))
CRONS = st.sampled_from(["0 3 * * *", "*/20 * * * *", "@hourly", "30 2 * * 0", "0 0 1 * *", "15 4 29 2 *"])
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe"])


@settings(max_examples=150, deadline=None)
@given(CRONS, ZONES, MOMENTS)
def test_latest_and_following_moments_enclose_now(cron: str, zone: str, now: datetime) -> None:
    assert latest(cron, zone, now) <= now < following(cron, zone, now)


@settings(max_examples=100, deadline=None)
@given(CRONS, ZONES, MOMENTS, st.lists(st.tuples(st.integers(1, 3000), st.sampled_from("abc"), st.booleans())))
def test_no_moment_fires_twice_and_none_fires_on_the_same_data(
    cron: str, zone: str, start: datetime, looks: list[tuple[int, str, bool]]
) -> None:
    rule = ScheduleRule(cron, zone, and_new=(DATA,))
    known = SeriesFacts(start, start)
    fired: list[datetime] = []
    for minutes, fingerprint, runs in looks:
        now = known.now + timedelta(minutes=minutes)
        known = replace(known, now=now, data=seen(fingerprint), running="job" if runs else None)
        found = look(rule, known)
        assert found.reason
        if found.slot is not None:
            assert known.slot is None or found.slot > known.slot
            known = replace(known, slot=found.slot)
        if found.fires:
            assert found.slot is not None
            assert fingerprint != known.fired_on
            assert not runs
            fired.append(found.slot)
            known = replace(known, fired_on=fingerprint, fired_at=now)
    assert len(set(fired)) == len(fired)
