"""Serve the loopback endpoint: HTTP around MLflow's `Routes`, the artifact API, and streamed data.

It listens on the pod's loopback address, and accepts requests that pass `Guard`. A client's Authorization header is not
passed on; requests to the server are signed with the job's credentials.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from updraft_learner.contract import DATA_PATH
from updraft_learner.mlflow_rest import ARTIFACTS, ServerUnavailable, TrackingServer
from updraft_learner.record.fenced import Fenced
from updraft_learner.record.report import log
from updraft_learner.record.spool import CHILD, RUN, Spool
from updraft_learner.sidecar.artifact_uris import ArtifactUris
from updraft_learner.sidecar.children import ChildRuns
from updraft_learner.sidecar.data_routes import DataRoutes, Sender
from updraft_learner.sidecar.guard import Guard
from updraft_learner.sidecar.models import LoggedModels
from updraft_learner.sidecar.refusals import EndpointError
from updraft_learner.sidecar.requests import Call
from updraft_learner.sidecar.routes import ARTIFACT_WAIT_SECONDS, Routes

HEALTH_PATH = "/updraft/health"
BODY_LIMIT_BYTES = 32 << 20
CHUNK_BYTES = 1 << 20
REFUSED_BODY_BYTES = 64 << 10
POLL_SECONDS = 30.0
OPEN_PATHS = (HEALTH_PATH, "/health")  # these need no token; they answer "ok", and nothing about the job
_PREFIXES = ("/api/2.0/mlflow/", "/api/3.0/mlflow/")


class Artifacts:
    """Uploads, downloads and listings below the job's own places."""

    def __init__(
        self,
        places: ArtifactUris,
        spool: Spool,
        server: TrackingServer,
        models: LoggedModels,
        children: ChildRuns,
    ) -> None:
        self.places, self.spool, self.server, self.models, self.children = places, spool, server, models, children

    def root_of(self, owner: str, *, write: bool = False) -> str:
        """Return the path of an owner's artifacts on the server. Raises EndpointError for another job's owner."""
        if owner == RUN:
            return self.server.artifact_root()
        if owner.startswith(CHILD):
            return self.children.root_of(owner.removeprefix(CHILD))
        return self.models.root_of(owner, write=write)

    def put(self, path: str, chunks: Iterator[bytes]) -> None:
        owner, below = self.places.parse(path)
        if not below:
            raise EndpointError.invalid("an artifact needs a path below the run's artifacts")
        if owner != RUN:  # asking for the run's own needs the server, which may be away
            self.root_of(owner, write=True)
        self.spool.add(owner, below, chunks)

    def list(self, path: str) -> dict[str, Any]:
        root, below = self._locate(path)
        answer = self.server.list_artifacts(f"{root}/{below}".rstrip("/"))
        if not answer.ok:
            raise EndpointError(str(answer.body.get("error_code", "INTERNAL_ERROR")), answer.message, answer.status)
        return answer.body

    def open(self, path: str) -> Any:
        root, below = self._locate(path)
        return self.server.open_artifact(f"{root}/{below}")

    def _locate(self, path: str) -> tuple[str, str]:
        owner, below = self.places.parse(path)
        self.spool.wait_empty(ARTIFACT_WAIT_SECONDS)
        return self.root_of(owner), below


class Endpoint:
    """The listening server. `port` is the actual port if 0 was requested. Clients need `token`."""

    def __init__(self, listen: str, token: str, routes: Routes, artifacts: Artifacts, data: DataRoutes) -> None:
        host, _, port = listen.rpartition(":")
        handler = type("Handler", (_Handler,), {"routes": routes, "artifacts": artifacts, "data": data})
        self._host = host.strip("[]")
        self._server = _Server((self._host, int(port)), handler)
        self.port = int(self._server.server_address[1])
        self._server.guard = Guard(token, self.port)

    def start(self) -> None:
        serve = partial(self._server.serve_forever, POLL_SECONDS)
        threading.Thread(target=serve, name="endpoint", daemon=True).start()

    def stop(self) -> None:
        # The server rarely checks whether it should end, so wake it with a connection.
        shutdown = threading.Thread(target=self._server.shutdown, daemon=True)
        shutdown.start()
        while shutdown.is_alive():
            with suppress(OSError):
                socket.create_connection((self._host, self.port), 1).close()
            shutdown.join(0.05)
        self._server.server_close()


class _ClientGone(Exception):
    """The program closed its connection during a download."""


class _Server(ThreadingHTTPServer):
    guard: Guard
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnects during a request."""


class _Handler(BaseHTTPRequestHandler):
    routes: Routes
    artifacts: Artifacts
    data: DataRoutes
    protocol_version = "HTTP/1.1"
    server_version = "updraft-sidecar"
    sys_version = ""
    disable_nagle_algorithm = True
    timeout = 300  # of an idle keep-alive connection

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: there are many requests, and a line for each would take the trainer's core."""

    def _answer(self) -> None:
        self._unread, self._begun = True, False
        try:
            self._dispatch()
        except EndpointError as exc:
            self._reply(exc.status, {"error_code": exc.code, "message": str(exc)})
        except Fenced:
            self._reply(403, {"error_code": "PERMISSION_DENIED", "message": "a newer attempt of this job runs"})
        except ServerUnavailable as exc:
            refused = EndpointError.away(str(exc))
            self._reply(refused.status, {"error_code": refused.code, "message": str(refused)})
        except (_ClientGone, ConnectionError, TimeoutError):
            self.close_connection = True
        except OSError as exc:
            disk = EndpointError.disk(exc)
            self._reply(disk.status, {"error_code": disk.code, "message": str(disk)})
        except Exception as exc:  # noqa: BLE001 - outermost line of a request
            log(f"request {self.command} {self.path[:200]}: unexpected {type(exc).__name__}: {exc}")
            self._reply(500, {"error_code": "INTERNAL_ERROR", "message": f"the sidecar failed: {type(exc).__name__}"})

    def _dispatch(self) -> None:
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        self._admit(path)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        if path == HEALTH_PATH:
            self._read_body()
            self._reply(200, {"status": "ok"})
        elif path == DATA_PATH or path.startswith(f"{DATA_PATH}/"):
            self._data(path.removeprefix(DATA_PATH).lstrip("/"), query)
        elif path == ARTIFACTS or path.startswith(f"{ARTIFACTS}/"):
            self._artifact(path.removeprefix(ARTIFACTS).lstrip("/"), query)
        elif path in ("/health", "/version"):
            self._read_body()
            self._send(200, b"OK" if path == "/health" else b"3.17.0", "text/plain")
        elif path.endswith("/mlflow/server-info"):
            self._read_body()
            features = ("workspaces_enabled", "trace_archival_enabled", "multipart_uploads_enabled")
            off = dict.fromkeys((*features, "multipart_downloads_enabled"), False)
            self._reply(200, {"store_type": "SqlStore", **off, "features_enabled": {}})
        else:
            prefix = next((prefix for prefix in _PREFIXES if path.startswith(prefix)), None)
            body = self._read_json()
            if prefix is None:
                raise EndpointError("ENDPOINT_NOT_FOUND", f"{path[:200]} is not part of the job's MLflow endpoint", 404)
            self._reply(200, self.routes.answer(Call(self.command, path.removeprefix(prefix), body, query)))

    def _admit(self, path: str) -> None:
        """Raise EndpointError for a request that `Guard` keeps out. What the client still sends is read first, if it is
        little: a client whose connection ends while it sends does not see the answer."""
        guard = cast(_Server, self.server).guard
        try:
            guard.check_address(self.headers)
            if path not in OPEN_PATHS:
                guard.check_token(self.headers)
        except EndpointError:
            announced = _length(self.headers.get("Content-Length") or "0", 10)
            if announced <= REFUSED_BODY_BYTES and "Transfer-Encoding" not in self.headers:
                self._read_body()
            raise

    def _data(self, path: str, query: dict[str, str]) -> None:
        self._read_body()
        if self.command not in ("GET", "HEAD"):
            raise EndpointError.permission("streamed data can only be read")
        if not path:
            self._reply(200, self.data.page(query))
            return
        part = self.data.part(path, self.headers.get("Range"))

        def begin() -> None:
            self._begun = True
            self.send_response(206 if part.partial else 200)
            for name, value in part.headers().items():
                self.send_header(name, value)
            self.end_headers()

        if self.command == "HEAD" or part.start == part.stop:
            begin()
            return
        self.connection.settimeout(None)  # a program may read slowly, and stop for hours to train
        self.data.send(part, Sender(begin, self.wfile.write, self.connection.sendfile))
        self.connection.settimeout(self.timeout)

    def _artifact(self, path: str, query: dict[str, str]) -> None:
        if self.command == "PUT":
            self.artifacts.put(path, self._chunks())
            self._reply(200, {})
        elif self.command == "GET" and not path:
            self._read_body()
            self._reply(200, self.artifacts.list(query.get("path", "")))
        elif self.command == "GET":
            self._read_body()
            with self.artifacts.open(path) as response:
                self._stream(response)
        else:
            raise EndpointError.permission("artifacts of the job cannot be deleted by the program")

    def _stream(self, response: Any) -> None:
        if response.status >= 300:
            raise EndpointError("RESOURCE_DOES_NOT_EXIST", "MLflow has no such artifact", response.status)
        self.send_response(200)
        self.send_header("Content-Type", response.getheader("Content-Type") or "application/octet-stream")
        length = response.getheader("Content-Length")
        if length is not None:
            self.send_header("Content-Length", length)
        else:
            self.close_connection = True
            self.send_header("Connection", "close")
        self._begun = True
        self.end_headers()
        while chunk := response.read(CHUNK_BYTES):
            try:
                self.wfile.write(chunk)
            except OSError as exc:
                raise _ClientGone from exc  # not a failure of the server

    def _read_json(self) -> dict[str, Any]:
        raw = self._read_body()
        if not raw:
            return {}
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError):
            raise EndpointError.invalid("the request's body is not JSON") from None
        if not isinstance(body, dict):
            raise EndpointError.invalid("the request's body is no JSON object")
        return body

    def _read_body(self) -> bytes:
        parts, size = [], 0
        for chunk in self._chunks():
            size += len(chunk)
            if size > BODY_LIMIT_BYTES:
                raise EndpointError.invalid(f"the request has more than {BODY_LIMIT_BYTES} bytes; send smaller batches")
            parts.append(chunk)
        return b"".join(parts)

    def _chunks(self) -> Iterator[bytes]:
        """Yield the request's body, of known length or chunked."""
        if "chunked" in (self.headers.get("Transfer-Encoding") or "").lower():
            while size := _length(self.rfile.readline(100).split(b";")[0].strip().decode("latin-1"), 16):
                yield from self._exactly(size)
                self.rfile.readline(100)
            while self.rfile.readline(1000).strip():
                pass
        else:
            yield from self._exactly(_length(self.headers.get("Content-Length") or "0", 10))
        self._unread = False

    def _exactly(self, size: int) -> Iterator[bytes]:
        while size:
            chunk = self.rfile.read(min(size, CHUNK_BYTES))
            if not chunk:
                raise ConnectionError("the client went away")
            size -= len(chunk)
            yield chunk

    def _reply(self, status: int, body: dict[str, Any]) -> None:
        if self._begun:  # a download broke off: the client sees that it is too short
            self.close_connection = True
            return
        self._send(status, json.dumps(body).encode(), "application/json")

    def _send(self, status: int, data: bytes, kind: str) -> None:
        if self._unread:  # the body was not read: its rest must not be taken for the next request
            self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if status == 401:
            self.send_header("WWW-Authenticate", 'Bearer realm="the job\'s MLflow run"')
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _length(text: str, base: int) -> int:
    """Return the announced number of bytes. A negative number would be read as "all that comes"."""
    digits = "0123456789abcdef"[:base]
    if not text or len(text) > 16 or any(character not in digits for character in text.lower()):
        raise EndpointError.invalid("the request's length is no number")
    return int(text, base)
