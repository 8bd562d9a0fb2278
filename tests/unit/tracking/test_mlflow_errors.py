"""Which of MLflow's answers are worth asking again, and which end a job with the server's own words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import requests
from mlflow.exceptions import MlflowException, RestException
from mlflow.protos import databricks_pb2
from mlflow.utils.rest_utils import verify_rest_response

from updraft.exceptions import NotFoundError, RefusedError, UnavailableError, UpdraftError
from updraft.tracking.runs import answering, experiment_of

CLIENT: Any = SimpleNamespace(tracking_uri="http://127.0.0.1:5000")


def told(exc: Exception) -> UpdraftError:
    with pytest.raises(UpdraftError) as caught, answering(CLIENT):
        raise exc
    return caught.value


def of_server(code: str, message: str) -> RestException:
    return RestException({"error_code": code, "message": message})


def of_http(status: int) -> requests.HTTPError:
    """As uploads of artifacts fail."""
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError(f"{status} Error", response=response)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("RESOURCE_DOES_NOT_EXIST", NotFoundError),
        ("INVALID_PARAMETER_VALUE", RefusedError),
        ("RESOURCE_ALREADY_EXISTS", RefusedError),
        ("BAD_REQUEST", RefusedError),
        ("PERMISSION_DENIED", RefusedError),
        ("UNAUTHENTICATED", RefusedError),
        ("ENDPOINT_NOT_FOUND", RefusedError),
        ("REQUEST_LIMIT_EXCEEDED", UnavailableError),
        ("RESOURCE_EXHAUSTED", UnavailableError),
        ("ABORTED", UnavailableError),
        ("TEMPORARILY_UNAVAILABLE", UnavailableError),
        ("DEADLINE_EXCEEDED", UnavailableError),
        ("INTERNAL_ERROR", UnavailableError),
        ("a code of a later version", UnavailableError),
    ],
)
def test_every_answer_is_one_of_three_kinds_and_keeps_the_servers_words(code: str, kind: type[UpdraftError]) -> None:
    error = told(of_server(code, "key 'a b' is not allowed"))
    assert type(error) is kind
    assert "http://127.0.0.1:5000" in str(error)
    assert "key 'a b' is not allowed" in str(error)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, RefusedError), (401, RefusedError), (403, RefusedError), (404, NotFoundError), (413, RefusedError)]
    + [(408, UnavailableError), (429, UnavailableError), (500, UnavailableError), (503, UnavailableError)],
)
def test_artifact_requests_are_judged_by_their_status(status: int, kind: type[UpdraftError]) -> None:
    assert type(told(of_http(status))) is kind


@pytest.mark.parametrize(("status", "kind"), [(403, RefusedError), (503, UnavailableError)])
def test_an_answer_that_is_no_json_is_judged_by_its_status(status: int, kind: type[UpdraftError]) -> None:
    response = requests.Response()
    response.status_code, response._content = status, b"<html>no</html>"
    with pytest.raises(MlflowException) as caught:
        verify_rest_response(response, "/api/2.0/mlflow/runs/create")
    assert type(told(caught.value)) is kind


@pytest.mark.parametrize("exc", [requests.ConnectionError("refused"), requests.Timeout("20 s")])
def test_no_answer_is_unavailable(exc: Exception) -> None:
    assert type(told(exc)) is UnavailableError


def test_retries_that_were_used_up_are_unavailable() -> None:
    text = "API request to http://127.0.0.1:5000/... failed with exception Max retries exceeded"
    assert type(told(MlflowException(text))) is UnavailableError


def test_a_database_that_gave_up_is_not_the_requests_fault() -> None:
    text = "QueuePool limit of size 5 reached (Background on this error at: https://sqlalche.me/e/20/3o7r)"
    assert type(told(MlflowException(text, databricks_pb2.BAD_REQUEST))) is UnavailableError


def test_wrong_credentials_are_said_to_be_the_platforms() -> None:
    assert "check its credentials" in str(told(of_server("PERMISSION_DENIED", "Permission denied")))


def test_a_first_job_that_asks_before_its_series_is_granted_asks_again() -> None:
    refusals = [MlflowException("Permission denied", error_code=databricks_pb2.PERMISSION_DENIED)] * 3

    def get_experiment_by_name(name: str) -> Any:
        if refusals:
            raise refusals.pop()
        return SimpleNamespace(experiment_id="7", lifecycle_stage="active")

    client: Any = SimpleNamespace(get_experiment_by_name=get_experiment_by_name)
    assert experiment_of(client, "digits", pause_seconds=0.0) == "7"
