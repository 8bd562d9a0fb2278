"""A manifest whose schedule has conditions: its DAG, its watcher, what a look records, the job that takes a firing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from unit.operators.airflow_fakes import Platform

from updraft.controller.schedules import Watched, look_at
from updraft.ledger import NewSeriesEvent, SeriesEvent
from updraft.lifecycle import State
from updraft.manifest import parse

Make = Callable[..., Platform]
RULE = {"and_new": ["s3://datasets/digits/"], "timezone": "UTC"}
WATCHED = Watched("default", "digits", "job_digits", RULE, "digits")
RAW: dict[str, Any] = {
    "name": "digits",
    "framework": {"name": "shell"},
    "command": "true",
    "schedule": {"cron": "0 3 * * *", "and_new": ["s3://datasets/digits/"], "quiet": "10m"},
}


def test_the_dag_of_such_a_manifest_waits_for_the_events_of_its_series() -> None:
    from airflow.sdk import DAG
    from airflow.serialization.serialized_objects import DagSerialization
    from airflow.utils.types import DagRunType

    from updraft.operators.wiring import DAG_ARGS, params, timetable, train_tasks
    from updraft.timetables import SeriesTimetable

    manifest = parse(RAW)
    with DAG(dag_id="job_digits", schedule=timetable(manifest, "job_digits"), **DAG_ARGS) as dag:
        train_tasks(dag, params(manifest), "default")
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert isinstance(stored.timetable, SeriesTimetable)
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    made = stored.timetable.generate_run_id(run_type=DagRunType.MANUAL, run_after=moment, data_interval=None)
    assert made.startswith("digits-260101-000000-")
    ((_, asset),) = stored.timetable.asset_condition.iter_assets()
    (watcher,) = asset.watchers
    assert watcher.trigger["classpath"] == "updraft.triggers.series.SeriesTrigger"
    kwargs = watcher.trigger["kwargs"]
    assert (kwargs["series"], kwargs["dag_id"], kwargs["rule"]["quiet"]) == ("digits", "job_digits", "10m")


@pytest.fixture
def platform(make_platform: Make) -> Platform:
    """One whose series has never fired."""
    return make_platform()


def objects(monkeypatch: pytest.MonkeyPatch, found: list[Any] | Exception) -> None:
    from updraft.storage import remote

    def listed(*_: object, **__: object) -> list[Any]:
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(remote, "list_for_schedule", listed)


def item(version: str) -> tuple[str, Any]:
    return "s3://datasets/digits/", SimpleNamespace(key="digits/a.csv", size=10, version=version)


def looked(platform: Platform) -> SeriesEvent | None:
    return look_at(platform.services, WATCHED)


def stored(platform: Platform) -> Any:
    (schedule,) = platform.ledger.schedules.of_tenant("default")
    return schedule


def test_new_data_fires_once_and_again_only_when_it_changes(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects(monkeypatch, [item("a")])
    fired = looked(platform)
    assert fired is not None
    assert fired.reason == "new data at s3://datasets/digits/: 1 objects, 0.0 MB"
    assert looked(platform) == fired  # until a job takes it
    platform.dag_started_by(fired.key)
    platform.run_all()
    assert platform.job.state is State.COMPLETED, platform.errors
    assert platform.ledger.series.find(fired.key).job_id == platform.job.id
    assert [t.reason for t in platform.ledger.jobs.transitions(platform.job.id)][1] == (
        "started by its schedule: new data at s3://datasets/digits/: 1 objects, 0.0 MB"
    )
    assert looked(platform) is None
    assert stored(platform).reason.startswith("fired ")


def test_a_bucket_that_cannot_be_listed_is_the_reason(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    from updraft.exceptions import RefusedError

    objects(monkeypatch, RefusedError("s3://datasets/digits/: bucket 'datasets' is not open to manifests"))
    assert looked(platform) is None
    assert stored(platform).reason == (
        "whether there is new data is not known: s3://datasets/digits/: bucket 'datasets' is not open to manifests"
    )


def test_a_second_run_for_the_same_firing_is_skipped(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    objects(monkeypatch, [item("a")])
    fired = looked(platform)
    assert fired is not None
    platform.dag_started_by(fired.key)
    platform.run("admit")
    platform.run_id, platform.states = "digits-2", {}
    assert platform.run("admit") == "skipped"
    assert platform.run("release") == "success"
    assert [job.id for job in platform.ledger.jobs.find("default", None, "digits", 10)] == ["digits-1"]


def test_a_run_that_airflow_named_takes_its_firing_also_when_its_task_runs_again(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects(monkeypatch, [item("a")])
    fired = looked(platform)
    assert fired is not None
    platform.dag_started_by(fired.key)
    platform.run_id = "asset_triggered__2026-01-01T00:00:00+00:00_9L5W4DRD"
    assert [platform.run("admit") for _ in range(2)] == ["success", "success"]
    assert platform.ledger.series.find(fired.key).job_id == platform.job.id  # type: ignore[union-attr]


def test_a_run_whose_manifest_is_refused_takes_the_firing(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise Airflow would be told again, and would start such a run again and again."""
    objects(monkeypatch, [item("a")])
    fired = looked(platform)
    assert fired is not None
    platform.dag_started_by(fired.key)
    platform.params["manifest"]["comand"] = "python"
    platform.run_all()
    assert platform.job.state is State.FAILED
    assert platform.ledger.schedules.untaken("default", "digits") is None


def test_airflow_is_told_again_of_a_firing_that_no_job_takes_ever_less_often(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    from updraft.triggers import series

    objects(monkeypatch, [item("a")])
    trigger = series.SeriesTrigger(tenant="default", series="digits", dag_id="job_digits", rule=RULE, model=None)
    trigger.make_services = lambda: platform.services
    now = [0.0]
    told: list[float] = []

    async def slept(seconds: float) -> None:
        now[0] += seconds

    async def watch() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now[0])
        monkeypatch.setattr(series.asyncio, "sleep", slept)
        async for event in trigger.run():
            assert event.payload["fired"].startswith("fired default/digits ")
            told.append(now[0])
            if len(told) == 4:
                return

    asyncio.run(watch())
    assert told == [0.0, 60.0, 180.0, 420.0]


def test_a_series_with_a_job_that_runs_waits(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    platform.run("admit")
    objects(monkeypatch, [item("a")])
    assert looked(platform) is None
    assert stored(platform).reason == "job digits-1 has not ended"


def test_an_old_champion_fires(platform: Platform) -> None:
    book = platform.ledger
    rule = {"or_champion_older": "30d", "timezone": "UTC"}
    watched = Watched("default", "digits", "job_digits", rule, "digits")
    assert look_at(platform.services, watched) is None
    assert stored(platform).reason == "there is no champion"
    book.series.record(NewSeriesEvent("p", "default", "digits", "promoted", "better", model="digits", version="1"))
    assert look_at(platform.services, watched) is None
    assert stored(platform).reason == "the champion is young enough"
    clock = book.series._clock
    book.series._clock = lambda: clock() - timedelta(days=31)
    book.series.record(NewSeriesEvent("q", "default", "digits", "promoted", "better", model="digits", version="2"))
    fired = look_at(platform.services, watched)
    assert fired is not None
    assert fired.reason == "the champion is 31 d old, and 30 d is the limit"


def test_a_paused_series_does_not_fire(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    objects(monkeypatch, [item("a")])
    platform.ledger.schedules.ensure("default", "digits", "job_digits", RULE)
    platform.ledger.schedules.pause("default", "digits", "ada")
    assert looked(platform) is None
    assert stored(platform).reason == "paused by ada"
    platform.ledger.schedules.pause("default", "digits", None)
    assert looked(platform) is not None
