"""What is shown of a job while it runs and at its end."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from rich.console import Console
from unit.client.client_fakes import NOW, FakeAirflow, job_answer, make_client

from updraft.cli import live
from updraft.cli.console import folded
from updraft.cli.live import Snapshot
from updraft.cli.plot import plot, sparkline
from updraft.exceptions import UnavailableError
from updraft.schemas import JobDetail, Stage

START = datetime(2026, 1, 1, tzinfo=UTC)


def learner(number: int, step: int, total: int = 100, epoch: int | None = None) -> dict[str, Any]:
    progress = {"step": step, "total": total, "epoch": epoch, "epochs": 10 if epoch else None}
    return {"role": "train", "attempt": 1, "learner": number, "phase": "running", "progress": progress}


def snapshot(step: int | None = None, seconds: int = 0, state: str = "PROCESSING", **more: Any) -> Snapshot:
    fields = dict(more)
    stages = fields.pop("stages", ())
    learners = [] if step is None else [learner(1, step)]
    job = JobDetail.model_validate(job_answer(state=state, learners=learners, attempt=1, **fields))
    return Snapshot(job, stages, at=START + timedelta(seconds=seconds), pace=(START, 10))


def test_time_left_follows_the_pace() -> None:
    assert snapshot(60, seconds=50).seconds_left() == 40.0
    assert snapshot(10, seconds=50).seconds_left() is None
    assert snapshot().seconds_left() is None


def test_a_gang_is_as_far_as_its_slowest_learner() -> None:
    job = JobDetail.model_validate(job_answer(learners=[learner(1, 50), learner(2, 30)]))
    progress = live.progress_of(job)
    assert progress is not None
    assert progress.step == 30


def test_the_training_line_holds_what_people_look_for() -> None:
    found = snapshot(60, seconds=50, metrics={"system/cpu": 1.0, "lr": 0.1, "val_loss": 0.25})
    assert live.training_text(found) == "step 60/100  val_loss 0.25  lr 0.1  40 s left"


def test_lines_tell_each_change_once() -> None:
    def at(state: str, started: bool) -> Stage:
        return Stage(name="train", state=state, started_at=START if started else None)

    transitions = [{"at": NOW, "state": "QUEUED", "reason": "place 1"}]
    first = snapshot(stages=(at("none", False),), transitions=transitions)
    second = snapshot(stages=(at("deferred", True),), transitions=transitions)
    third = snapshot(stages=(at("queued", True),), transitions=transitions)
    ended = Stage(name="train", state="success", started_at=START, ended_at=START + timedelta(seconds=5))
    fourth = snapshot(stages=(ended,), transitions=transitions)
    assert live.changes(None, first) == ["00:00:00 QUEUED: place 1"]
    assert live.changes(first, second) == ["00:00:00   train: running"]
    assert live.changes(second, third) == []
    assert live.changes(third, fourth) == ["00:00:00   train: success after 5.0 s"]


def test_a_task_that_airflow_passed_over_is_not_said_to_run() -> None:
    """It has a start and an end in Airflow; the job has not ended so far."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    stages = tuple(
        Stage(name=name, state=state, started_at=at, ended_at=at)
        for name, state in (("train", "failed"), ("evaluate", "upstream_failed"), ("promote", "removed"))
    )
    job = JobDetail.model_validate(job_answer())
    told = [line for line in live.changes(None, Snapshot(job, stages)) if "  " in line]
    assert [line.split()[1:3] for line in told] == [["train:", "failed"]]


def test_long_lines_break_between_words_on_a_terminal_only() -> None:
    def console(terminal: bool) -> Console:
        return Console(file=io.StringIO(), width=30, force_terminal=terminal)

    text = "name: 'Wrong' is not a valid name\n  http://127.0.0.1:21475/a/long/address"
    assert folded(text, console(True), 4) == (
        "name: 'Wrong' is not a valid\n    name\n  http://127.0.0.1:21475/a/long/address"
    )
    assert folded(text, console(False), 4) == text


def test_lines_tell_progress_by_the_tenth() -> None:
    assert live.changes(snapshot(11), snapshot(12)) == []
    assert len(live.changes(snapshot(19), snapshot(20))) == 1


def test_the_live_view_can_be_drawn_at_any_moment() -> None:
    states = ("none", "queued", "running", "deferred", "success", "failed", "skipped", "upstream_failed")
    stages = tuple(Stage(name=state, state=state, started_at=START, tries=2) for state in states)
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    for found in (snapshot(), snapshot(50, 10, stages=stages), Snapshot(snapshot().job, trouble="gone [/]")):
        console.print(live.render(found))
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    assert "step 50/100" in drawn
    assert "gone [/]" in drawn


def run_follow(airflow: FakeAirflow, *, terminal: bool, **options: Any) -> tuple[JobDetail, str]:
    console = Console(file=io.StringIO(), width=160, force_terminal=terminal, no_color=True)
    with make_client(airflow) as client:
        job = live.follow(client, "digits-1", console=console, sleep=lambda _s: None, **options)
    return job, console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("terminal", [True, False])
def test_follow_ends_with_verdict_model_and_addresses(airflow: FakeAirflow, terminal: bool) -> None:
    airflow.runs["digits-1"] = {"dag_id": "train_model", "state": "running", "tasks": []}
    done = job_answer(
        state="COMPLETED",
        reason="registered digits-cnn version 3",
        model={"name": "digits-cnn", "version": "3", "alias": "champion", "url": "http://mlflow/model"},
        links={"airflow_run": "http://airflow/run", "mlflow_run": "http://mlflow/run"},
        verdict={"state": "COMPLETED", "reason": "x", "exit_codes": {"digits-1-train-1": 0}, "code": None},
        metrics={"val_accuracy": 0.99},
        attempt=1,
    )
    airflow.jobs["digits-1"] = [job_answer(state="QUEUED"), job_answer(), done]

    def override(request: httpx.Request) -> httpx.Response | None:
        if request.url.path.endswith("/metrics"):
            return httpx.Response(503, json={"error": {"message": "MLflow is away"}})
        return httpx.Response(200, json={"checkpoints": []}) if request.url.path.endswith("/checkpoints") else None

    airflow.override = override
    job, shown = run_follow(airflow, terminal=terminal)
    assert job.state == "COMPLETED"
    for words in (
        "COMPLETED: registered digits-cnn version 3",
        "digits-cnn version 3 @champion",
        "val_accuracy=0.99",
        "digits-1-train-1: 0",
        "http://airflow/run",
        "http://mlflow/run",
        "http://mlflow/model",
    ):
        assert words in shown


def test_follow_asks_again_while_the_platform_is_silent_and_gives_up_in_the_end(airflow: FakeAirflow) -> None:
    airflow.runs["digits-1"] = {"dag_id": "train_model", "state": "running", "tasks": []}
    airflow.jobs["digits-1"] = [job_answer(), job_answer(state="FAILED", reason="exit code 1")]
    asked = 0

    def override(request: httpx.Request) -> httpx.Response | None:
        nonlocal asked
        asked += request.url.path.endswith("/jobs/digits-1")
        down = {"error": {"message": "The ledger did not answer within 5 s"}}
        return httpx.Response(503, json=down) if asked in (2, 3) else None

    airflow.override = override
    job, shown = run_follow(airflow, terminal=False)
    assert job.state == "FAILED"
    assert shown.count("no answer, asking again: The ledger did not answer within 5 s") == 1
    asked = 0
    airflow.jobs["digits-1"] = [job_answer()]
    with pytest.raises(UnavailableError, match="The ledger did not answer"):
        run_follow(airflow, terminal=False, patience_seconds=0)


def test_a_spark_line_has_gaps_for_values_that_are_no_numbers() -> None:
    assert sparkline([0.0, None, 1.0], 10) == "▁ █"
    assert sparkline([2.0, 2.0], 10) == "▁▁"
    assert sparkline([None, float("nan"), float("inf")], 10) == ""
    assert len(sparkline([float(n) for n in range(1000)], 24)) == 24


def test_a_plot_spans_its_values() -> None:
    lines = plot([1, 2, 3], [1.0, None, 3.0], height=3).splitlines()
    assert lines[0] == "3 │  •"
    assert lines[2] == "1 │•"
    assert lines[-1].split() == ["1", "3", "step"]
    assert plot([1], [None]) == ""
