"""The loopback endpoint as an attacker on the same machine meets it: another user's process, or a page in a browser."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from learner.sidecar_fakes import BEARER, CONFIG, RUN, TOKEN, FailingStore, FakeMlflow, end_threads, make_paths

from updraft_learner.sidecar.app import Sidecar
from updraft_learner.sidecar.guard import Guard

METRIC = json.dumps({"run_id": RUN, "key": "accuracy", "value": 1.0, "timestamp": 1, "step": 1})
LOG_METRIC = "/api/2.0/mlflow/runs/log-metric"
READ_RUN = f"/api/2.0/mlflow/runs/get?run_id={RUN}"
ARTIFACT = "/api/2.0/mlflow-artifacts/artifacts/7/run1/artifacts/a.txt"


@pytest.fixture
def sidecar(tmp_path: Path, mlflow: FakeMlflow) -> Iterator[Sidecar]:
    made = Sidecar(CONFIG, make_paths(tmp_path / "pod"), FailingStore(tmp_path / "s3"), mlflow.client(), TOKEN)
    made.start()
    yield made
    end_threads(made)


def ask(
    sidecar: Sidecar, method: str, path: str, body: str | None, headers: list[tuple[str, str]]
) -> tuple[int, dict[str, Any], http.client.HTTPMessage]:
    """`{port}` in a header is the endpoint's. Host is 127.0.0.1 unless `headers` has one."""
    port = sidecar.endpoint.port
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    if all(name != "Host" for name, _ in headers):
        connection.putheader("Host", f"127.0.0.1:{port}")
    for name, value in headers:
        connection.putheader(name, value.format(port=port))
    connection.putheader("Content-Length", str(len(body or "")))
    connection.endheaders((body or "").encode())
    response = connection.getresponse()
    answer = response.status, json.loads(response.read() or b"{}"), response.headers
    connection.close()
    return answer


NO_TOKEN: dict[str, list[tuple[str, str]]] = {
    "none": [],
    "another": [("Authorization", "Bearer guessed")],
    "empty": [("Authorization", "Bearer ")],
    "part": [("Authorization", f"Bearer {TOKEN[:-1]}")],
    "longer": [("Authorization", f"Bearer {TOKEN}x")],
    "scheme": [("Authorization", f"Token {TOKEN}")],
    "not ascii": [("Authorization", "Bearer t\xe4t")],
    "twice": [("Authorization", "Bearer guessed"), ("Authorization", f"Bearer {TOKEN}")],
}


@pytest.mark.parametrize("headers", NO_TOKEN.values(), ids=NO_TOKEN.keys())
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("POST", LOG_METRIC, METRIC), ("GET", READ_RUN, None), ("PUT", ARTIFACT, "x"), ("GET", "/version", None)],
)
def test_a_process_without_the_token_gets_401_and_changes_nothing(
    sidecar: Sidecar, mlflow: FakeMlflow, method: str, path: str, body: str | None, headers: list[tuple[str, str]]
) -> None:
    status, answer, told = ask(sidecar, method, path, body, headers)
    assert (status, answer["error_code"]) == (401, "UNAUTHENTICATED")
    assert "send the header `Authorization: Bearer $MLFLOW_TRACKING_TOKEN`" in answer["message"]
    assert told["WWW-Authenticate"].startswith("Bearer ")
    assert TOKEN not in json.dumps(answer)
    sidecar.drain()
    assert (mlflow.metrics, mlflow.artifacts) == ([], {})


def test_a_user_name_that_comes_before_the_token_is_explained(sidecar: Sidecar) -> None:
    status, answer, _ = ask(sidecar, "POST", LOG_METRIC, METRIC, [("Authorization", "Basic bWU6aHVzaA==")])
    assert status == 401
    assert "MLFLOW_TRACKING_USERNAME" in answer["message"]


def test_a_large_body_without_the_token_is_not_read(sidecar: Sidecar) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", sidecar.endpoint.port, timeout=20)
    connection.putrequest("PUT", ARTIFACT)
    connection.putheader("Content-Length", str(1 << 30))
    connection.endheaders(b"the first of it")
    response = connection.getresponse()
    assert (response.status, response.headers["Connection"]) == (401, "close")
    connection.close()


FOREIGN: list[list[tuple[str, str]]] = [
    [("Host", "attacker.example:{port}")],
    [("Host", "127.0.0.1")],
    [("Host", "127.0.0.1:1")],
    [("Host", "127.0.0.1.attacker.example:{port}")],
    [("Host", "attacker.example:{port}"), ("Host", "127.0.0.1:{port}")],
    [("Host", "")],
    [("Origin", "http://attacker.example")],
    [("Origin", "null")],
    [("Origin", "https://127.0.0.1:{port}")],
    [("Origin", "http://127.0.0.1:8080")],
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
@pytest.mark.parametrize(("method", "path", "body"), [("POST", LOG_METRIC, METRIC), ("GET", "/updraft/health", None)])
def test_another_host_or_origin_is_refused_even_with_the_token(
    sidecar: Sidecar, mlflow: FakeMlflow, method: str, path: str, body: str | None, headers: list[tuple[str, str]]
) -> None:
    status, answer, _ = ask(sidecar, method, path, body, [*headers, *BEARER.items()])
    assert (status, answer["error_code"]) == (403, "PERMISSION_DENIED")
    assert headers[0][0] in answer["message"]
    sidecar.drain()
    assert mlflow.metrics == []


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "localhost:{port}", "[::1]:{port}", "LOCALHOST:{port}"])
@pytest.mark.parametrize("origin", [None, "http://localhost:{port}"])
def test_the_program_is_served_under_each_name_of_the_endpoint(
    sidecar: Sidecar, mlflow: FakeMlflow, host: str, origin: str | None
) -> None:
    headers = [("Host", host), *BEARER.items(), *([("Origin", origin)] if origin else [])]
    assert ask(sidecar, "POST", LOG_METRIC, METRIC, headers)[:2] == (200, {})
    sidecar.drain()
    assert mlflow.points("accuracy") == [(1, 1.0)]


def test_health_needs_no_token(sidecar: Sidecar) -> None:
    assert ask(sidecar, "GET", "/updraft/health", None, [])[:2] == (200, {"status": "ok"})


def test_an_endpoint_without_a_token_does_not_start() -> None:
    with pytest.raises(ValueError, match="needs a token"):
        Guard("", 5000)
