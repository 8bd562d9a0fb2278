"""A job that its schedule started on new data trains only if the data has drifted, where the manifest says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ledger_helpers import add_job
from unit.operators.airflow_fakes import Platform, registered_champion
from unit.operators.conftest import MANIFEST

from updraft.ledger import NewSeriesEvent
from updraft.lifecycle import State
from updraft_data.drift import Numbers, Profile
from updraft_data.suite import suite_digest

Make = Callable[..., Platform]
KEY = "fired default/digits 2026-01-01"
SCHEDULE = {"cron": "0 3 * * *", "and_new": ["s3://datasets/digits/"], "and_drift": {"above": 0.2}}
OLD_TREE = "a" * 64


def columns(shift: float) -> dict[str, Any]:
    numbers = Numbers(quantiles=tuple(n + shift for n in range(101)))
    return Profile(rows=100, columns={"age": numbers}).model_dump(mode="json")


def started_by_its_schedule(platform: Platform, *, aged: bool = False) -> None:
    evidence = {"because": ["new data"], "aged": aged}
    platform.ledger.series.record(NewSeriesEvent(KEY, "default", "digits", "fired", "new data", evidence=evidence))
    platform.dag_started_by(KEY)


def champion(platform: Platform, profile: dict[str, Any] | None = None) -> None:
    """Another job made it, of data with these columns."""
    add_job(platform.ledger, "older-1")
    platform.ledger.jobs.set_inputs("older-1", None, [{"source": "s3://a/", "tree": OLD_TREE, "mount": "."}])
    registered_champion(platform, "older-1")
    if profile is not None:
        result = {"success": True, "evaluated": 1, "failed": [], "warnings": [], "profile": profile}
        platform.ledger.validations.record("default", OLD_TREE, digest(), success=True, result=result)


def digest() -> str:
    (item,) = MANIFEST["data"]
    return suite_digest(item["expectations"], "auto")


@pytest.fixture
def platform(make_platform: Make) -> Platform:
    from updraft.ledger.tables import validations

    made = make_platform(schedule=SCHEDULE)
    with made.ledger._engine.begin() as connection:  # its data is judged by its own pod
        connection.execute(validations.delete())
    made.judges = lambda source: {"result": {"success": True, "evaluated": 1, "profile": columns(5.0)}}
    return made


def attempts(platform: Platform) -> list[str]:
    return [attempt.role for attempt in platform.ledger.attempts.of_job(platform.job.id)]


def test_without_drift_the_job_ends_before_its_training(platform: Platform) -> None:
    champion(platform, columns(0.0))
    started_by_its_schedule(platform)
    states = platform.run_all()
    words = "no drift: column age is 0.05 away from what version 1 of digits was trained on; 0.2 is asked"
    assert (platform.job.state, platform.job.reason) == (State.COMPLETED, f"not trained: {words}"), platform.errors
    assert attempts(platform) == ["prepare"]
    assert states == {
        **dict.fromkeys(("admit", "stage_data", "release"), "success"),
        **dict.fromkeys(
            ("validate_data", "train", "watch_checkpoints", "evaluate", "export_model", "register_model", "promote"),
            "skipped",
        ),
    }
    assert platform.mlflow.alias_moves == []
    assert not platform.ledger.queue.holds(platform.job.id)


def test_with_drift_it_trains(platform: Platform) -> None:
    champion(platform, columns(50.0))
    started_by_its_schedule(platform)
    platform.run_all()
    assert platform.job.reason.startswith("trained; registered as digits version 2"), platform.errors
    reasons = [each.reason for each in platform.ledger.jobs.transitions(platform.job.id)]
    assert (
        "the data has drifted: column age is 0.45 away from what version 1 of digits was trained on; 0.2 is asked"
        in reasons
    )


def test_it_trains_when_a_user_starts_it_or_the_champion_is_too_old(make_platform: Make, platform: Platform) -> None:
    champion(platform, columns(0.0))
    platform.run_all()
    assert platform.job.reason.startswith("trained; ")


def test_it_trains_if_the_champion_is_too_old(platform: Platform) -> None:
    champion(platform, columns(0.0))
    started_by_its_schedule(platform, aged=True)
    platform.run_all()
    assert platform.job.reason.startswith("trained; ")


@pytest.mark.parametrize("known", [None, {"rows": -1}, {"columns": 3}])
def test_it_trains_if_nothing_is_known_of_the_champions_data(platform: Platform, known: dict[str, Any] | None) -> None:
    champion(platform, known)
    started_by_its_schedule(platform)
    platform.run_all()
    assert platform.job.reason.startswith("trained; ")


def test_it_trains_without_a_champion(platform: Platform) -> None:
    started_by_its_schedule(platform)
    platform.run_all()
    assert platform.job.reason.startswith("trained; ")


def test_a_column_that_the_data_does_not_have_ends_the_job(platform: Platform) -> None:
    platform.params["manifest"]["schedule"]["and_drift"]["columns"] = ["agee"]
    champion(platform, columns(0.0))
    started_by_its_schedule(platform)
    platform.run_all()
    assert platform.job.state is State.FAILED
    assert platform.job.reason == ("schedule.and_drift.columns: agee cannot be compared; columns that can: age")
