"""A job that Airflow has accepted is listed at once, to those who may know of it, before its first task has run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from unit.api.api_fakes import FakeRuns, Platform, make_platform

from updraft.api.accepted import AcceptedRun
from updraft.lifecycle.workflow import tenant_dag

API = "/updraft/api/v1"
NOW = datetime.now(UTC) + timedelta(days=1)  # newer than what the tests record


def run(run_id: str, *, state: str = "queued", tenant: str = "default", **more: Any) -> AcceptedRun:
    dag_id = more.pop("dag_id", tenant_dag("train_model", tenant))
    conf = more.pop("conf", {"manifest": {"name": "digits"}})
    return AcceptedRun(dag_id, run_id, state, NOW, NOW, user="ada", conf=conf, **more)


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    return make_platform(tmp_path, ("vision", "speech"))


def listed(platform: Platform, query: str = "", user: str = "ada:vision") -> list[dict[str, Any]]:
    answer = platform.client(user).get(f"{API}/jobs{query}")
    assert answer.status_code == 200, answer.text
    return [{name: job[name] for name in ("id", "state", "tenant", "reason")} for job in answer.json()["jobs"]]


def test_it_is_pending_with_the_reason_and_before_older_jobs(platform: Platform) -> None:
    platform.job("digits-1", "vision")
    platform.accepted.runs = [run("digits-2", tenant="vision")]
    found = listed(platform)
    assert [job["id"] for job in found] == ["digits-2", "digits-1"]
    assert found[0] == {
        "id": "digits-2",
        "state": "PENDING",
        "tenant": "vision",
        "reason": "Accepted by Airflow; its first task has not started.",
    }


@pytest.mark.parametrize(
    ("more", "state", "reason"),
    [
        (
            {"paused": True},
            "PENDING",
            "Accepted by Airflow, but the DAG vision.train_model is paused; unpause it in Airflow's",
        ),
        ({"state": "running"}, "PENDING", "Accepted by Airflow; its first task has not started."),
        ({"state": "success"}, "CANCELLED", "The run was ended in Airflow before its first task ran."),
        ({"state": "failed"}, "FAILED", "The run ended in Airflow before the job was recorded"),
    ],
)
def test_the_reason_says_what_it_waits_for(platform: Platform, more: dict[str, Any], state: str, reason: str) -> None:
    platform.accepted.runs = [run("digits-2", tenant="vision", **more)]
    (job,) = listed(platform)
    assert job["state"] == state
    assert job["reason"].startswith(reason)


def test_once_it_is_recorded_it_is_listed_once(platform: Platform) -> None:
    platform.job("digits-1", "vision")
    platform.accepted.runs = [run("digits-1", tenant="vision", state="running")]
    (job,) = listed(platform)
    assert job["reason"] == "submitted"


@pytest.mark.parametrize("what", ["logs", "manifest", "files"])
def test_what_it_does_not_have_yet_is_answered_with_the_reason(platform: Platform, what: str) -> None:
    platform.accepted.runs = [run("digits-2", tenant="vision")]
    answer = platform.client("ada:vision").get(f"{API}/jobs/digits-2/{what}")
    assert answer.status_code == 404
    assert "digits-2" in answer.text
    assert "its first task has not started" in answer.text


@pytest.mark.parametrize("what", ["transitions", "attempts", "checkpoints", "requests", "metrics"])
def test_its_history_is_empty(platform: Platform, what: str) -> None:
    platform.accepted.runs = [run("digits-2", tenant="vision")]
    answer = platform.client("ada:vision").get(f"{API}/jobs/digits-2/{what}")
    assert answer.status_code == 200, answer.text
    assert not any(answer.json().values())
    other = platform.client("bob:speech").get(f"{API}/jobs/digits-2/{what}")
    assert other.status_code == 404
    assert "does not exist" in other.text


def test_another_tenants_is_not_there(platform: Platform) -> None:
    platform.accepted.runs = [run("digits-2", tenant="speech"), run("digits-3", tenant="nobody")]
    assert listed(platform) == []
    assert [job["id"] for job in listed(platform, user="bob:speech")] == ["digits-2"]
    client = platform.client("ada:vision")
    missing, foreign = client.get(f"{API}/jobs/none"), client.get(f"{API}/jobs/digits-2")
    assert (missing.status_code, foreign.status_code) == (404, 404)
    assert foreign.text == missing.text.replace("none", "digits-2")
    assert client.get("/updraft/jobs/digits-2").status_code == 404


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("?state=pending", ["digits-2", "digits-1"]),
        ("?state=completed", []),
        ("?name=digits", ["digits-2", "digits-1"]),
        ("?name=other", []),
        ("?limit=1", ["digits-2"]),
    ],
)
def test_filters_count_for_it_too(platform: Platform, query: str, ids: list[str]) -> None:
    platform.job("digits-1", "vision")
    platform.accepted.runs = [run("digits-2", tenant="vision")]
    assert [job["id"] for job in listed(platform, query)] == ids


def test_its_page_and_the_list_show_it(platform: Platform) -> None:
    platform.accepted.runs = [run("digits-2", tenant="vision")]
    client = platform.client("ada:vision")
    for page in ("/updraft/jobs", "/updraft/jobs/digits-2"):
        answer = client.get(page)
        assert answer.status_code == 200
        assert "digits-2" in answer.text
        assert "its first task has not started" in answer.text
    assert "data-verb" not in client.get("/updraft/jobs/digits-2").text


def test_a_run_of_the_form_or_of_a_schedule_has_the_id_that_its_job_will_have(platform: Platform) -> None:
    form = run("manual__2026-01-01T00:00:00+00:00", tenant="vision", conf={"name": "digits"})
    platform.accepted.runs = [form]
    (before,) = listed(platform)
    assert before["id"].startswith("digits-")
    assert platform.client("ada:vision").get(f"{API}/jobs/{before['id']}").json()["run_id"] == form.run_id


def nothing() -> None:
    """Do nothing."""


@dataclass
class RacingRuns(FakeRuns):
    """Something happens `before` or `after` the runs are compared with the ledger."""

    before: Callable[[], object] = nothing
    after: Callable[[], object] = nothing

    def unrecorded(self, recorded: Callable[[Any], set[tuple[str, str]]]) -> list[AcceptedRun]:
        self.before()
        found = super().unrecorded(recorded)
        self.after()
        return found


@pytest.mark.parametrize("query", ["", "/digits-1"])
def test_one_that_is_recorded_while_it_is_looked_for_is_there_once(platform: Platform, query: str) -> None:
    runs = [run("digits-1", tenant="vision", state="running")]
    platform.accepted = RacingRuns(runs, before=lambda: platform.job("digits-1", "vision"))
    answer = platform.client("ada:vision").get(f"{API}/jobs{query}")
    assert answer.status_code == 200, answer.text
    jobs = answer.json()["jobs"] if not query else [answer.json()]
    assert [(job["id"], job["reason"]) for job in jobs] == [("digits-1", "submitted")]


def test_one_that_is_recorded_after_the_runs_were_read_is_listed_once(platform: Platform) -> None:
    runs = [run("digits-1", tenant="vision", state="running")]
    platform.accepted = RacingRuns(runs, after=lambda: platform.job("digits-1", "vision"))
    (job,) = listed(platform)
    assert job["reason"] == "submitted"
