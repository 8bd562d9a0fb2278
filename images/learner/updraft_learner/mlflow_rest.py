"""Call the real MLflow server's REST API with the job's credentials. No client library; callers retry.

Used by the forwarder, the artifact spool and the endpoint's read routes. `before_write` is called before each request
that changes something, and may refuse it by raising an exception.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO
from urllib.parse import quote, urlencode, urlsplit

from updraft_learner.pod import MlflowCredentials

API = "/api/2.0/mlflow"
ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"
REST_SECONDS = 30.0
UPLOAD_SECONDS = 300.0
TAG_ROOT_RUN = "updraft.root_run"  # on a nested run: the job's run
TAG_MODEL_REQUEST = "updraft.model_request"  # names under which the program asked to register models
TAG_MODEL_NEWEST = "updraft.model_request.newest"  # the last of them as JSON: {"name", "model_id"}
TAG_JOB = "updraft.job_id"  # on the logged model that the platform makes itself
CHILD_RUNS = 1_000  # nested runs that one launch may start
DOWN_SECONDS = 3.0  # after a failed connection, callers that cannot wait do not try for this time


class ServerUnavailable(Exception):
    """The server gave no usable answer.

    `ambiguous` is False only if the request certainly had no effect.
    """

    def __init__(self, message: str, *, ambiguous: bool) -> None:
        super().__init__(message)
        self.ambiguous = ambiguous


@dataclass(frozen=True)
class Answer:
    status: int
    body: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.status < 300

    @property
    def message(self) -> str:
        return str(self.body.get("message") or self.body.get("error_code") or f"status {self.status}")[:300]


class TrackingServer:
    """A client of one MLflow server with one connection per request; several threads may use it."""

    def __init__(
        self,
        credentials: MlflowCredentials,
        *,
        run_id: str,
        timeout_seconds: float = REST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        parts = urlsplit(credentials.uri)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("the MLflow address in the credentials file is no http or https address")
        self.run_id = run_id
        self._https = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._base = parts.path.rstrip("/")
        self._timeout_seconds, self._clock = timeout_seconds, clock
        self._headers = {"Accept": "application/json"}
        if credentials.username is not None and credentials.password is not None:
            token = base64.b64encode(f"{credentials.username}:{credentials.password}".encode()).decode()
            self._headers["Authorization"] = f"Basic {token}"
        if credentials.workspace:
            self._headers["X-MLFLOW-WORKSPACE"] = credentials.workspace
        self._down_until = 0.0
        self._artifact_root: str | None = None
        self._lock = threading.Lock()
        self.before_write: Callable[[], None] = lambda: None

    @property
    def seems_up(self) -> bool:
        """Return False shortly after a request that got no answer."""
        return self._clock() >= self._down_until

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> Answer:
        return self.call("GET", path, query=query)

    def post(self, path: str, body: Mapping[str, Any]) -> Answer:
        return self.call("POST", path, body=body)

    def call(
        self, method: str, path: str, *, body: Mapping[str, Any] | None = None, query: Mapping[str, Any] | None = None
    ) -> Answer:
        """Make one request below `/api/2.0/mlflow/`.

        Raises:
            ServerUnavailable: no answer, or one that means: later (429, 5xx).
        """
        if method != "GET" and not path.endswith("/search"):
            self.before_write()
        data = None if body is None else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": "application/json"}
        suffix = f"?{urlencode(query, doseq=True)}" if query else ""
        with self._exchange(method, f"{API}/{path}{suffix}", data, headers, self._timeout_seconds) as response:
            return self._answer(response)

    def artifact_root(self) -> str:
        """Return the path of the run's artifacts below the server's artifact API."""
        if self._artifact_root is None:
            answer = self.get("runs/get", {"run_id": self.run_id})
            if not answer.ok:
                raise ServerUnavailable(f"MLflow does not give the run: {answer.message}", ambiguous=False)
            self._artifact_root = artifact_path(str(answer.body["run"]["info"]["artifact_uri"]))
        return self._artifact_root

    def serves_run(self) -> bool:
        """Return whether the server still gives the job its run: what else it refuses is wrong with the request itself.

        Raises ServerUnavailable.
        """
        return self.get("runs/get", {"run_id": self.run_id}).ok

    def put_artifact(self, path: str, file: BinaryIO, size: int) -> Answer:
        """Upload a file to `path` below the artifact API."""
        self.before_write()
        headers = {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        with self._exchange("PUT", f"{ARTIFACTS}/{quote(path)}", file, headers, UPLOAD_SECONDS) as response:
            return self._answer(response)

    def list_artifacts(self, path: str) -> Answer:
        with self._exchange(
            "GET", f"{ARTIFACTS}?{urlencode({'path': path})}", None, {}, self._timeout_seconds
        ) as response:
            return self._answer(response)

    @contextmanager
    def open_artifact(self, path: str) -> Any:
        """Open the response of a download, to be read inside the block."""
        with self._exchange("GET", f"{ARTIFACTS}/{quote(path)}", None, {}, UPLOAD_SECONDS) as response:
            yield response

    @contextmanager
    def _exchange(self, method: str, target: str, body: Any, headers: Mapping[str, str], timeout_seconds: float) -> Any:
        connection = self._connection(timeout_seconds)
        sent = False
        try:
            connection.connect()
            sent = True
            connection.request(method, self._base + target, body=body, headers={**self._headers, **headers})
            yield connection.getresponse()
            self._down_until = 0.0
        except (OSError, http.client.HTTPException) as exc:
            self._down_until = self._clock() + DOWN_SECONDS
            reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else type(exc).__name__
            raise ServerUnavailable(f"MLflow cannot be reached ({reason})", ambiguous=sent) from exc
        finally:
            connection.close()

    def _connection(self, timeout_seconds: float) -> http.client.HTTPConnection:
        if self._https:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=timeout_seconds, context=context)
        return _QuickConnection(self._host, self._port, timeout=timeout_seconds)

    def _answer(self, response: http.client.HTTPResponse) -> Answer:
        raw = response.read()
        try:
            body = json.loads(raw) if raw else {}
        except ValueError:
            body = {}
        answer = Answer(response.status, body if isinstance(body, dict) else {})
        if answer.status == 429 or answer.status >= 500:
            raise ServerUnavailable(
                f"MLflow answered {answer.status}: {answer.message}", ambiguous=answer.status not in (429, 503)
            )
        return answer


class _QuickConnection(http.client.HTTPConnection):
    """A connection without Nagle's delay between headers and body."""

    def connect(self) -> None:
        super().connect()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def artifact_path(uri: str) -> str:
    """Return the path below the artifact API of an `mlflow-artifacts:` location.

    Raises:
        ServerUnavailable: another kind of location, which only a client with storage credentials could reach.
    """
    parts = urlsplit(uri)
    if parts.scheme != "mlflow-artifacts":
        raise ServerUnavailable(
            f"the run's artifacts lie at a {parts.scheme or 'local'} location; start MLflow with --serve-artifacts",
            ambiguous=False,
        )
    return parts.path.strip("/").removeprefix(ARTIFACTS.strip("/")).strip("/")
