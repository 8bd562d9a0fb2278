"""Schedules in the ledger: a rule and its cursor, pauses, and firings that exactly one job takes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from updraft.exceptions import NotFoundError
from updraft.ledger import Job, Ledger, NewSeriesEvent, Schedule

RULE = {"cron": "0 3 * * *", "and_new": ["s3://datasets/digits/"]}


def made(ledger: Ledger) -> Schedule:
    return ledger.schedules.ensure("default", "digits", "job_digits", RULE)


def fired(schedule: Schedule, key: str = "fired digits 1") -> NewSeriesEvent:
    return NewSeriesEvent(key, schedule.tenant, schedule.series, "fired", "new data")


def test_a_schedule_is_recorded_once_and_keeps_its_cursor(ledger: Ledger, clock: Any) -> None:
    first = made(ledger)
    ledger.schedules.save(replace(first, slot=first.since, seen="a", fired_on="a", reason="no new data"))
    clock.forward(3600)
    again = made(ledger)
    assert (again.since, again.slot, again.fired_on, again.reason) == (first.since, first.since, "a", "no new data")


def test_a_changed_rule_comes_into_force_now_and_keeps_the_data_that_it_fired_on(ledger: Ledger, clock: Any) -> None:
    first = made(ledger)
    ledger.schedules.save(replace(first, slot=first.since, fired_on="a"))
    clock.forward(3600)
    changed = ledger.schedules.ensure("default", "digits", "job_digits", {**RULE, "cron": "@hourly"})
    assert (changed.since, changed.slot, changed.fired_on) == (first.since + timedelta(hours=1), None, "a")


def test_a_pause_is_not_undone_by_a_look_that_began_before_it(ledger: Ledger) -> None:
    before = made(ledger)
    ledger.schedules.pause("default", "digits", "ada")
    ledger.schedules.save(replace(before, reason="waits"))
    (stored,) = ledger.schedules.of_tenant("default")
    assert (stored.paused_by, stored.reason) == ("ada", "waits")
    assert ledger.schedules.pause("default", "digits", None).paused_by is None
    with pytest.raises(NotFoundError, match="'words' of tenant 'default' has no schedule"):
        ledger.schedules.pause("default", "words", "ada")


def test_a_firing_is_taken_by_one_job(ledger: Ledger, submit: Callable[..., Job]) -> None:
    schedule = made(ledger)
    event = ledger.schedules.save(replace(schedule, reason="new data"), fired(schedule))
    assert event is not None
    assert ledger.schedules.untaken("default", "digits") == event
    jobs = [submit(f"digits-{number}").id for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        owners = set(pool.map(lambda job_id: ledger.schedules.take(event.key, job_id), jobs))
    assert len(owners) == 1
    assert owners < set(jobs)
    assert ledger.schedules.untaken("default", "digits") is None
    assert ledger.schedules.take("no such firing", jobs[0]) is None


def test_a_schedule_that_fires_is_stored_with_its_event(ledger: Ledger) -> None:
    schedule = made(ledger)
    first = ledger.schedules.save(replace(schedule, fired_on="a"), fired(schedule))
    again = ledger.schedules.save(replace(schedule, fired_on="a"), fired(schedule))  # the same moment
    assert first == again
    assert len(ledger.series.of_series("default", "digits")) == 1
