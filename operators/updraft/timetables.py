"""Timetables that name a DAG run as its job is named, so that one id serves for both.

Airflow asks a DAG's timetable for the id of each run that has none: started from the form, by cron, by a backfill.
Its own answer, `manual__2026-01-01T00:00:00+00:00`, cannot be the id of a job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.timetables.simple import AssetTriggeredTimetable, NullTimetable
from airflow.timetables.trigger import CronTriggerTimetable

from updraft.lifecycle.names import job_id

if TYPE_CHECKING:
    from airflow.timetables.base import DataInterval
    from airflow.utils.types import DagRunType
    from pendulum import DateTime


class OnDemandTimetable(NullTimetable):
    """A timetable without a schedule, as `schedule=None`. `name` begins the ids of the runs."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def serialize(self) -> dict[str, Any]:
        return {"name": self.name}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> OnDemandTimetable:
        return cls(data["name"])

    def generate_run_id(
        self, *, run_type: DagRunType, run_after: DateTime, data_interval: DataInterval | None, **extra: Any
    ) -> str:
        return run_id(self.name, run_type, run_after)


class CronTimetable(CronTriggerTimetable):
    """A timetable with a run at each moment of a cron expression. Make it with `named`."""

    name = "job"

    @classmethod
    def named(cls, name: str, cron: str, timezone: str) -> CronTimetable:
        """Return the timetable of `cron` (five fields, or @daily and the like) in `timezone`; `name` begins the ids of
        its runs.

        Example:
            CronTimetable.named("digits-cnn", "0 3 * * *", "Europe/Berlin")
        """
        made = cls(cron, timezone=timezone)
        made.name = name
        return made

    def serialize(self) -> dict[str, Any]:
        return {**super().serialize(), "name": self.name}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> CronTimetable:
        made = super().deserialize(data)
        assert isinstance(made, CronTimetable)
        made.name = data["name"]
        return made

    def generate_run_id(
        self, *, run_type: DagRunType, run_after: DateTime, data_interval: DataInterval | None, **extra: Any
    ) -> str:
        return run_id(self.name, run_type, run_after)


class SeriesTimetable(AssetTriggeredTimetable):
    """A timetable with a run at each event of a series' asset. Make it with `named`."""

    name = "job"

    @classmethod
    def named(cls, name: str, asset: Any) -> SeriesTimetable:
        """Return the timetable of `asset`; `name` begins the ids of the runs."""
        made = cls([asset])
        made.name = name
        return made

    def serialize(self) -> dict[str, Any]:
        return {**super().serialize(), "name": self.name}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> SeriesTimetable:
        made = super().deserialize(data)
        assert isinstance(made, SeriesTimetable)
        made.name = data["name"]
        return made

    def generate_run_id(
        self, *, run_type: DagRunType, run_after: DateTime, data_interval: DataInterval | None, **extra: Any
    ) -> str:
        return run_id(self.name, run_type, run_after)


def run_id(name: str, run_type: DagRunType, run_after: DateTime) -> str:
    """Return the id of a run of the job series `name`, as in `digits-cnn-261231-235959-1a2b3c`.

    The same `run_type` and `run_after` give the same id.
    """
    return job_id(name, run_after, f"{name}\0{run_type.value}\0{run_after.isoformat()}".encode())
