"""Timetables that name a DAG run as its job is named, so that one id serves for both; and that of the reaper.

Airflow asks a DAG's timetable for the id of each run that has none: started from the form, by a backfill.
Its own answer, `manual__2026-01-01T00:00:00+00:00`, cannot be the id of a job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from airflow.timetables.base import DagRunInfo, DataInterval, Timetable
from airflow.timetables.simple import AssetTriggeredTimetable, ContinuousTimetable, NullTimetable

from updraft.lifecycle.names import job_id

if TYPE_CHECKING:
    from airflow.timetables.base import TimeRestriction
    from airflow.utils.types import DagRunType
    from pendulum import DateTime


class _NamesRuns(Timetable):
    """What the timetables share: `name` begins the ids of the runs, and is stored with the DAG."""

    name = "job"

    def serialize(self) -> dict[str, Any]:
        return {**super().serialize(), "name": self.name}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Self:
        made = super().deserialize(data)
        assert isinstance(made, cls)
        made.name = data["name"]
        return made

    def generate_run_id(
        self, *, run_type: DagRunType, run_after: DateTime, data_interval: DataInterval | None, **extra: Any
    ) -> str:
        return run_id(self.name, run_type, run_after)


class OnDemandTimetable(_NamesRuns, NullTimetable):
    """A timetable without a schedule, as `schedule=None`. Make it with `named`."""

    @classmethod
    def named(cls, name: str) -> OnDemandTimetable:
        """Return a timetable; `name` begins the ids of its runs."""
        made = cls()
        made.name = name
        return made


class SeriesTimetable(_NamesRuns, AssetTriggeredTimetable):
    """A timetable with a run at each event of a series' asset. Make it with `named`.

    Airflow itself names the runs that the events start, so their jobs have derived ids; runs that users start are named
    here.
    """

    @classmethod
    def named(cls, name: str, asset: Any) -> SeriesTimetable:
        """Return the timetable of `asset`; `name` begins the ids of the runs."""
        made = cls([asset])
        made.name = name
        return made


class AlwaysTimetable(ContinuousTimetable):
    """A timetable with one run after the other, as `@continuous`, also where the first run's interval is empty.

    The first interval of a DAG without a start date begins and ends now. The next one begins where it ends, so that its
    run would have the same logical date: Airflow 3.3.2 says "run already exists" and never starts another one.
    """

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """Return the interval of the next run, which begins later than the last one."""
        found = super().next_dagrun_info(
            last_automated_data_interval=last_automated_data_interval, restriction=restriction
        )
        last = last_automated_data_interval
        if found is None or found.data_interval is None or last is None or found.data_interval.start > last.start:
            return found
        start = last.start.add(microseconds=1)
        return DagRunInfo.interval(start, max(start, found.data_interval.end))


def run_id(name: str, run_type: DagRunType, run_after: DateTime) -> str:
    """Return the id of a run of the job series `name`, as in `digits-cnn-261231-235959-1a2b3c`.

    The same `run_type` and `run_after` give the same id.
    """
    return job_id(name, run_after, f"{name}\0{run_type.value}\0{run_after.isoformat()}".encode())
