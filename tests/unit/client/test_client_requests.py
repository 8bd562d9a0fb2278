"""Halting and resuming over HTTP: what is sent, and what waiting for the answer makes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from unit.client.client_fakes import NOW, FakeAirflow, job_answer

from updraft.client import Client
from updraft.client.http import InvalidRequestError
from updraft.exceptions import NotFoundError, RefusedError, UnavailableError, UpdraftError


def request(answer: str | None = None, kind: str = "halt") -> dict[str, Any]:
    return {"seq": 3, "kind": kind, "by": "ada", "at": NOW, "answer": answer}


def serve(airflow: FakeAirflow, answers: list[Any], kind: str = "halt") -> list[dict[str, Any]]:
    """The verb is accepted; `answers` are successive ones of the controller: None, text, or a status of failure."""
    sent: list[dict[str, Any]] = []

    def override(asked: httpx.Request) -> httpx.Response | None:
        if asked.url.path.endswith(f"/{kind}"):
            sent.append(json.loads(asked.content or b"null"))
            body = {"id": "digits-1", "message": "asked for", "request": request(kind=kind)}
            return httpx.Response(202, json=body)
        if asked.url.path.endswith("/requests"):
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if isinstance(answer, int):
                return httpx.Response(answer, json={"error": {"message": "the ledger is away", "fields": []}})
            return httpx.Response(200, json={"requests": [request(answer, kind)]})
        return None

    airflow.override = override
    return sent


def test_a_request_is_made_and_not_waited_for(airflow: FakeAirflow, client: Client) -> None:
    serve(airflow, [None])
    assert client.halt("digits-1") == "asked for"


def test_the_changes_are_sent_as_they_are(airflow: FakeAirflow, client: Client) -> None:
    sent = serve(airflow, [None], "resume")
    client.resume("digits-1", {"params": {"lr": 0.1}})
    client.resume("digits-1")
    assert sent == [{"changes": {"params": {"lr": 0.1}}}, {"changes": {}}]


def test_waiting_gives_the_controllers_answer_and_outlives_a_platform_that_is_away(
    airflow: FakeAirflow, client: Client
) -> None:
    airflow.jobs["digits-1"] = [job_answer(state="HALTED")]
    serve(airflow, [None, 503, None, "halted; the last checkpoint is step-3"])
    assert client.halt("digits-1", wait=True) == "halted; the last checkpoint is step-3"


@pytest.mark.parametrize(
    ("ask", "kind", "answer", "state"),
    [
        (Client.halt, "halt", "the job has ended COMPLETED: trained", "COMPLETED"),
        (Client.halt, "halt", "withdrawn: bob asked to resume", "PROCESSING"),
        (Client.resume, "resume", "the job has ended CANCELLED: by bob", "CANCELLED"),
    ],
)
def test_an_answer_that_is_not_what_was_asked_for_is_an_error(
    airflow: FakeAirflow, client: Client, ask: Callable[..., str], kind: str, answer: str, state: str
) -> None:
    airflow.jobs["digits-1"] = [job_answer(state=state)]
    serve(airflow, [answer], kind)
    with pytest.raises(UpdraftError, match=rf"^job digits-1 was asked to {kind}, but: {answer}$"):
        ask(client, "digits-1", wait=True)


def test_waiting_ends_in_time_and_says_that_the_request_stays(airflow: FakeAirflow, client: Client) -> None:
    serve(airflow, [None])
    with pytest.raises(UnavailableError, match="within 0 s; the request stays"):
        client.halt("digits-1", wait=True, timeout_seconds=0)
    serve(airflow, [503])
    with pytest.raises(UnavailableError, match=r"within 0 s \(the ledger is away\)"):
        client.halt("digits-1", wait=True, timeout_seconds=0)


def test_what_the_platform_refuses_is_refused(airflow: FakeAirflow, client: Client) -> None:
    wrong = {"error": {"message": "changes: 1 field is wrong", "fields": [{"field": "name", "message": "no"}]}}
    for status, body, kind in ((409, "is halted already", RefusedError), (422, wrong, InvalidRequestError)):
        answer = body if isinstance(body, dict) else {"error": {"message": body, "fields": []}}
        airflow.override = lambda r, s=status, a=answer: (  # type: ignore[misc]
            httpx.Response(s, json=a) if r.url.path.endswith("/resume") else None
        )
        with pytest.raises(kind):
            client.resume("digits-1", {"name": "x"})


def test_a_job_that_only_airflow_knows_cannot_be_halted_yet(airflow: FakeAirflow, client: Client) -> None:
    airflow.runs["digits-1"] = {"dag_id": "train_model", "dag_run_id": "digits-1", "state": "queued", "conf": {}}
    with pytest.raises(RefusedError, match="first task has not recorded it yet") as caught:
        client.halt("digits-1")
    assert not isinstance(caught.value, NotFoundError)
    with pytest.raises(NotFoundError):
        client.halt("digits-9")
