"""Waiting for the DAG repeats requests that fail, and ends with what was missing."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from updraft.lifecycle.workflow import TRAIN_DAG
from updraft.stack.dags_ready import wait_for_dags
from updraft.stack.layout import StackError

DAG = f"/api/v2/dags/{TRAIN_DAG}"


class Airflow:
    """Answers as Airflow's api-server; `failures` come first, one per request."""

    def __init__(self, *failures: Exception | httpx.Response, reads_dag: bool = True, errors: tuple[str, ...] = ()):
        self._failures = [*failures]
        self._reads_dag = reads_dag
        self._errors = errors
        self.log_ins = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if self._failures:
            failure = self._failures.pop(0)
            if isinstance(failure, Exception):
                raise failure
            return failure
        if request.url.path == "/auth/token":
            self.log_ins += 1
            return httpx.Response(201, json={"access_token": "token"})
        assert request.headers["Authorization"] == "Bearer token"
        if request.url.path == DAG:
            return httpx.Response(200 if self._reads_dag else 404, json={})
        found = [{"filename": "dags/default.py", "stack_trace": text} for text in self._errors]
        return httpx.Response(200, json={"import_errors": found})


def wait(airflow: Airflow, seconds: float = 60.0) -> list[float]:
    slept: list[float] = []
    with httpx.Client(base_url="http://airflow", transport=httpx.MockTransport(airflow)) as client:
        wait_for_dags(client, "secret", wait_seconds=seconds, sleep=slept.append)
    return slept


@pytest.mark.parametrize(
    "failure",
    [
        lambda: httpx.ConnectError("refused"),
        lambda: httpx.ReadTimeout("slow"),
        lambda: httpx.RemoteProtocolError("closed"),
        lambda: httpx.Response(503),
        lambda: httpx.Response(500),
    ],
)
def test_a_request_that_fails_is_repeated(failure: Callable[[], Exception | httpx.Response]) -> None:
    airflow = Airflow(failure(), failure())
    assert len(wait(airflow)) == 2
    assert airflow.log_ins == 1


def test_an_import_error_ends_the_wait_at_once() -> None:
    with pytest.raises(StackError, match="No module named 'torch'"):
        wait(Airflow(reads_dag=False, errors=("No module named 'torch'",)))


@pytest.mark.parametrize(
    ("airflow", "text"),
    [
        (Airflow(reads_dag=False), "it answers, but does not list the DAG"),
        (Airflow(httpx.ConnectError("refused")), r"did not answer the last request \(ConnectError\)"),
        (Airflow(httpx.Response(503)), "its last answer was 503 to /auth/token"),
    ],
)
def test_the_end_of_the_time_says_what_was_missing(airflow: Airflow, text: str) -> None:
    with pytest.raises(StackError, match=text):
        wait(airflow, seconds=0.0)
