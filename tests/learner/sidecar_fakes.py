"""Doubles for the sidecar's surroundings: an MLflow server that can misbehave, and stores that fail."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qsl, urlsplit

from folder_store import FolderStore

from updraft_learner.contract import PodConfig
from updraft_learner.mlflow_rest import TrackingServer
from updraft_learner.pod import MlflowCredentials, PodPaths
from updraft_learner.record.disk import PodDisk
from updraft_learner.sidecar.app import Sidecar
from updraft_learner.store import READ_LIMIT_BYTES, StorageError

RUN = "run1"
TOKEN = "token-of-this-launch"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
CONFIG = PodConfig(
    job_id="job-1",
    tenant="default",
    role="train",
    attempt=1,
    learner=1,
    learners=1,
    bucket="updraft",
    prefix="t",
    mlflow_run_id=RUN,
    mlflow_experiment_id="7",
    listen="127.0.0.1:0",
    system_metrics_seconds=0,
)


def make_paths(root: Path) -> PodPaths:
    for folder in ("io", "checkpoints", "result", "logs", ".sidecar"):
        (root / folder).mkdir(parents=True)
    return PodPaths(root)


def until(what: str, check: Callable[[], Any], seconds: float = 20) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := check():
            return value
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {seconds} s")


def end_threads(sidecar: Sidecar) -> None:
    """As a kill would; else they would poll, and log, beside every later test of this process."""
    sidecar._stop_inputs.set()
    sidecar._stop_outputs.set()
    sidecar.forwarder.wake()
    sidecar.spool.wake()


class FakeMlflow:
    """Keeps what it is given, doubles included, as MLflow does.

    `behave` is called for every request with (method, path, body) and may return a status to answer with, "drop" to
    close the connection before acting, or "drop after" to act and then close it.
    """

    def __init__(self) -> None:
        self.metrics: list[dict[str, Any]] = []
        self.params: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.artifacts: dict[str, bytes] = {}
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.authorization: set[str | None] = set()
        self.behave: Callable[[str, str, dict[str, Any]], int | str | None] = lambda *_: None
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                fake._handle(self)

            do_POST = do_PUT = do_PATCH = do_GET

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.uri = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def client(self) -> TrackingServer:
        return TrackingServer(MlflowCredentials(self.uri, "user", "hush"), run_id=RUN, timeout_seconds=5)

    def points(self, name: str) -> list[tuple[int, Any]]:
        return [(item["step"], item["value"]) for item in self.metrics if item["key"] == name]

    def sent(self, path: str) -> list[dict[str, Any]]:
        return [body for _, called, body in self.calls if called == path]

    def _handle(self, request: BaseHTTPRequestHandler) -> None:
        data = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        parts = urlsplit(request.path)
        self.authorization.add(request.headers.get("Authorization"))
        if "/mlflow-artifacts/artifacts/" in parts.path:
            path, body = parts.path.partition("/mlflow-artifacts/artifacts/")[2], {}
        else:
            path = parts.path.partition("/mlflow/")[2]
            body = json.loads(data) if data else dict(parse_qsl(parts.query))
        self.calls.append((request.command, path, body))
        verdict = self.behave(request.command, path, body)
        if verdict == "drop":
            request.close_connection = True
            return
        status, answer = (
            (verdict, {"error_code": "SAID_SO", "message": "as told"}) if isinstance(verdict, int) else (200, {})
        )
        if not isinstance(verdict, int):
            answer = self._act(request.command, path, body, data)
        if verdict == "drop after":
            request.close_connection = True
            return
        payload = json.dumps(answer).encode()
        request.send_response(status)
        request.send_header("Content-Length", str(len(payload)))
        request.end_headers()
        request.wfile.write(payload)

    def _act(self, method: str, path: str, body: dict[str, Any], data: bytes) -> dict[str, Any]:
        if method == "PUT":
            self.artifacts[path] = data
        elif path == "runs/log-batch":
            self.metrics += body["metrics"]
            self.params.update({item["key"]: item["value"] for item in body["params"]})
            self.tags.update({item["key"]: item["value"] for item in body["tags"]})
        elif path == "runs/get":
            info = {
                "run_id": RUN,
                "experiment_id": "7",
                "status": "RUNNING",
                "artifact_uri": "mlflow-artifacts:/real/r1",
            }
            names = {item["key"] for item in self.metrics}
            return {"run": {"info": info, "data": {"metrics": [{"key": name} for name in sorted(names)]}}}
        elif path in ("logged-models/m-1", "logged-models/m-other", "logged-models/m-made"):
            owner = "other" if path.endswith("m-other") else RUN
            model_id = path.partition("/")[2]
            info = {"model_id": model_id, "source_run_id": owner, "artifact_uri": f"mlflow-artifacts:/real/{model_id}"}
            tags = [{"key": "updraft.job_id", "value": "job-1"}] if path.endswith("m-made") else []
            return {"model": {"info": {**info, "tags": tags}}}
        elif path == "metrics/get-history":
            found = [item for item in self.metrics if item["key"] == body["metric_key"]]
            start = int(body.get("page_token", 0))
            page = {"metrics": found[start : start + 3]}
            return {**page, "next_page_token": str(start + 3)} if start + 3 < len(found) else page
        return {}


class FillingDisk(PodDisk):
    """Writes and new files fail while it is `full`."""

    def __init__(self) -> None:
        self.full = False

    def open_to_append(self, path: Path) -> int:
        if not path.exists():
            self._check()
        return super().open_to_append(path)

    def write(self, descriptor: int, data: memoryview) -> int:
        if self.full and len(data) > 10:
            return super().write(descriptor, data[:10])  # the last of the room
        self._check()
        return super().write(descriptor, data)

    def write_json(self, path: Path, value: Any) -> None:
        self._check()
        super().write_json(path, value)

    def _check(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FailingStore(FolderStore):
    """Raises for the calls of which `fails(operation, key)` is true, and remembers the order of writes."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.fails: Callable[[str, str], bool] = lambda *_: False
        self.written: list[str] = []

    def put_file(self, key: str, source: Path | Callable[[], BinaryIO]) -> None:
        if self.fails("put", key):
            raise StorageError("unreachable", f"writing {key}: the object store cannot be reached")
        super().put_file(key, source)
        self.written.append(key)

    def get_bytes(self, key: str, limit_bytes: int = READ_LIMIT_BYTES) -> bytes | None:
        if self.fails("get", key):
            raise StorageError("unreachable", f"reading {key}: the object store cannot be reached")
        return super().get_bytes(key, limit_bytes)
