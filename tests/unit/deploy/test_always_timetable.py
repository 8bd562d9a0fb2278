"""The reaper runs again and again, whatever its first interval was."""

from __future__ import annotations

from datetime import timedelta

import pytest
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from airflow.timetables.simple import ContinuousTimetable
from pendulum import DateTime, now

from updraft.timetables import AlwaysTimetable

FREE = TimeRestriction(earliest=None, latest=None, catchup=False)


def following(timetable: ContinuousTimetable, last: DataInterval | None) -> DataInterval:
    found = timetable.next_dagrun_info(last_automated_data_interval=last, restriction=FREE)
    assert isinstance(found, DagRunInfo)
    assert found.data_interval is not None
    return found.data_interval


def test_each_run_begins_later_than_the_last_one() -> None:
    timetable, last, starts = AlwaysTimetable(), None, list[DateTime]()
    for _ in range(5):
        last = following(timetable, last)
        starts.append(last.start)
    assert starts == sorted(set(starts))


@pytest.mark.parametrize("length", [timedelta(0), timedelta(seconds=1)])
def test_an_empty_interval_is_not_repeated(length: timedelta) -> None:
    at = now("UTC").subtract(hours=1)
    last = DataInterval(at, at + length)
    found = following(AlwaysTimetable(), last)
    assert found.start > last.start
    assert found.end >= found.start


def test_airflows_own_repeats_it() -> None:
    """If this fails, Airflow has mended it, and `@continuous` will do."""
    at = now("UTC").subtract(hours=1)
    assert following(ContinuousTimetable(), DataInterval(at, at)).start == at
