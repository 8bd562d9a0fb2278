"""Halting, resuming and cancelling from Airflow's pages: the forms, the one task, and waiting for the answer."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from updraft.ledger import Ledger, NewJob, open_ledger, upgrade
from updraft.lifecycle import State, Verdict
from updraft.manifest import parse

JOB = "digits-1"
MANIFEST = parse(
    {"name": "digits", "framework": {"name": "shell"}, "command": "true", "params": {"lr": 0.1}}
).canonical()


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """The ledger of a platform with one running job."""
    from updraft.settings import settings

    url = f"sqlite:///{tmp_path}/ledger.db"
    upgrade(url)
    for name in ("S3_ENDPOINT", "MLFLOW_URI"):
        monkeypatch.setenv(f"UPDRAFT_{name}", "http://127.0.0.1:1")
    monkeypatch.setenv("UPDRAFT_CREDENTIALS_FILE", str(tmp_path / "none.json"))
    monkeypatch.setenv("UPDRAFT_LEDGER_URL", url)
    settings.cache_clear()
    book = open_ledger(url)
    book.jobs.record(NewJob(JOB, "default", "digits", "train_model", JOB, MANIFEST, "ada"))
    for state in (State.QUEUED, State.DEPLOYING, State.PROCESSING):
        book.jobs.move(JOB, state, "because")
    yield book
    book.close()
    settings.cache_clear()


def context(run: str = "r1", user: str | None = "ada", **params: Any) -> Any:
    run_of = SimpleNamespace(dag_id="halt_job", run_id=run, triggering_user_name=user)
    return {"params": {"job": JOB, "wait_minutes": 10, **params}, "dag_run": run_of}


def operator(kind: str) -> Any:
    from updraft.operators.requests import RequestOperator

    return RequestOperator(task_id=kind, kind=kind, tenant="default")


def execute(kind: str, given: Any, task: Any = None) -> Any:
    """The trigger that the task defers to, or its result."""
    from airflow.sdk.exceptions import TaskDeferred

    task = task or operator(kind)
    try:
        return inspect.unwrap(type(task).execute)(task, given)
    except TaskDeferred as deferred:
        return deferred.trigger if deferred.method_name == "answered" else deferred


def answered(kind: str, given: Any, seq: int = 1) -> str:
    return str(operator(kind).answered(given, {"kind": "answered", "seq": seq}))


def failure(kind: str, given: Any) -> str:
    with pytest.raises(AirflowFailException) as caught:
        execute(kind, given)
    return str(caught.value)


def halted(ledger: Ledger) -> None:
    request = ledger.requests.make(JOB, "halt", "ada")
    ledger.jobs.move(JOB, State.HALTED, "halted by ada")
    ledger.requests.answer(JOB, request.seq, "halted; the last checkpoint is step-3")


def test_a_halt_is_recorded_under_the_users_name_and_its_answer_shown(ledger: Ledger) -> None:
    trigger = execute("halt", context(user="eve"))
    request = ledger.requests.pending(JOB, "halt")
    assert request is not None
    assert (request.by, trigger.serialize()[1]["seq"]) == ("eve", request.seq)
    ledger.jobs.move(JOB, State.HALTED, "halted by eve")
    ledger.requests.answer(JOB, request.seq, "halted; the last checkpoint is step-3")
    assert answered("halt", context(user="eve")) == "halted; the last checkpoint is step-3"


def test_a_task_that_runs_twice_asks_once(ledger: Ledger) -> None:
    execute("halt", context())
    execute("halt", context())
    assert len(ledger.requests.of_job(JOB)) == 1
    ledger.jobs.move(JOB, State.HALTED, "halted by ada")
    ledger.requests.answer(JOB, 1, "halted")
    assert execute("halt", context()) == "halted"  # the worker was lost while the answer came
    assert "is halted already" in failure("halt", context(run="r2"))


def test_what_is_refused_fails_at_once_with_the_reason(ledger: Ledger) -> None:
    assert "'digits-9' does not exist" in failure("halt", context(job="digits-9"))
    assert "not halted" in failure("resume", context())
    ledger.jobs.finish(JOB, Verdict(State.FAILED, "exit code 1"))
    for kind in ("halt", "resume"):
        assert "has ended FAILED" in failure(kind, context(run=kind))
    assert "has ended FAILED already" in failure("cancel", context(run="cancel"))


def test_the_requests_of_one_tenant_reach_no_job_of_another(ledger: Ledger) -> None:
    from updraft.operators.requests import RequestOperator

    task = RequestOperator(task_id="halt", kind="halt", tenant="vision")
    with pytest.raises(AirflowFailException, match=f"'{JOB}' does not exist"):
        execute("halt", context(), task)
    assert ledger.requests.pending(JOB, "halt") is None


def test_a_ledger_that_is_away_is_left_to_airflows_retries(ledger: Ledger) -> None:
    from updraft.exceptions import UnavailableError
    from updraft.services import platform_services

    def away() -> Ledger:
        raise UnavailableError("The ledger does not answer")

    task = operator("halt")
    task.make_services = lambda: replace(platform_services(), open_ledger=away)
    with pytest.raises(UnavailableError):
        execute("halt", context(), task)


def test_an_answer_that_is_not_what_was_asked_for_fails_the_task(ledger: Ledger) -> None:
    execute("halt", context())
    with pytest.raises(AirflowFailException, match="not answered the request to halt within 10 min; the request stays"):
        answered("halt", context())
    ledger.jobs.finish(JOB, Verdict(State.FAILED, "exit code 1"))
    with pytest.raises(AirflowFailException, match="was asked to halt, but: the job has ended FAILED: exit code 1"):
        answered("halt", context())


def test_the_form_of_a_resume_becomes_changes(ledger: Ledger) -> None:
    halted(ledger)
    box = {"env": {"A": "1"}, "resources": {"memory": "1GiB", "gpus": 0}}
    fields = {"command": "false", "params": {"lr": 0.5}, "memory": "4GiB", "cpus": None, "learners": 2, "changes": box}
    execute("resume", context(run="r2", **fields))
    request = ledger.requests.pending(JOB, "resume")
    assert request is not None
    assert request.revision is not None
    assert request.revision["changes"] == {
        "command": "false",
        "params": {"lr": 0.5},
        "env": {"A": "1"},
        "resources": {"memory": "4GiB", "gpus": 0, "learners": 2},
    }
    assert request.revision["manifest"] == parse(request.revision["manifest"]).canonical()


def test_an_empty_form_changes_nothing(ledger: Ledger) -> None:
    halted(ledger)
    execute("resume", context(run="r2", command="", params=None, memory="", changes={}))
    request = ledger.requests.pending(JOB, "resume")
    assert request is not None
    assert request.revision is None


def test_wrong_changes_are_all_named_in_the_log_and_the_failure(
    ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    halted(ledger)
    with caplog.at_level(logging.ERROR):
        said = failure("resume", context(memory="16 Gigs", changes={"name": "x", "export": {}}))
    for field in ("resources.memory", "name", "export"):
        assert field in said
    assert ledger.requests.pending(JOB, "resume") is None


def run_trigger(**options: Any) -> dict[str, Any]:
    from updraft.triggers.requests import AnswerTrigger

    trigger = AnswerTrigger(job_id=JOB, seq=1, **options)
    assert trigger.serialize()[0] == "updraft.triggers.requests.AnswerTrigger"
    assert AnswerTrigger(**trigger.serialize()[1]).serialize() == trigger.serialize()

    async def first() -> Any:
        return await anext(trigger.run())  # type: ignore[call-overload]

    event: dict[str, Any] = asyncio.run(first()).payload
    return event


def test_the_trigger_fires_when_answered_and_when_it_is_late(ledger: Ledger) -> None:
    ledger.requests.make(JOB, "halt", "ada")
    assert run_trigger(wait_seconds=0.0) == {"kind": "late", "seq": 1}
    ledger.requests.answer(JOB, 1, "halted")
    assert run_trigger(wait_seconds=0.0) == {"kind": "answered", "seq": 1}


def test_the_task_links_to_the_job_that_it_asked(ledger: Ledger) -> None:
    from updraft.operators.links import AskedJobLink

    task = operator("cancel")
    assert AskedJobLink().get_link(task, ti_key=None) == ""  # type: ignore[arg-type]
    task._job_id(context())
    assert AskedJobLink().get_link(task, ti_key=None).endswith(f"/updraft/jobs/{JOB}")  # type: ignore[arg-type]
