"""From the pod's start to the program's: the sidecar stages and lets the program start, as a real process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from learner.sidecar_fakes import CONFIG, until

TREE = "0" * 64
STAGED, FAILED = "io/staged", "io/staging-failed"


class Store(BaseHTTPRequestHandler):
    """An S3 server that is slow to answer for trees."""

    answer = threading.Event()

    def do_GET(self) -> None:
        if "/trees/" in self.path:
            self.answer.wait(60)
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_PUT = do_HEAD = do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    Store.answer = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    Store.answer.set()
    server.shutdown()
    server.server_close()


class Pod:
    """A sidecar and the folders that it shares with the program."""

    def __init__(self, root: Path, endpoint: str) -> None:
        self.root = root / "pod"
        self.root.mkdir()
        self.credentials = root / "credentials.json"
        s3 = {"endpoint": endpoint, "access_key": "key", "secret_key": "hush"}
        written = {"s3": s3, "mlflow": {"uri": "http://127.0.0.1:9"}, "endpoint_token": "t0k3n"}
        self.credentials.write_text(json.dumps(written))
        self.sidecar: subprocess.Popen[str] | None = None

    def start(self, config: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "UPDRAFT_POD_CONFIG": config,
            "UPDRAFT_ROOT_DIR": str(self.root),
            "UPDRAFT_CREDENTIALS_FILE": str(self.credentials),
        }
        command = [sys.executable, "-m", "updraft_learner.sidecar"]
        self.sidecar = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        return self.sidecar

    def there(self, name: str) -> bool:
        return (self.root / name).exists()


@pytest.fixture
def pod(tmp_path: Path, endpoint: str) -> Iterator[Pod]:
    pod = Pod(tmp_path, endpoint)
    yield pod
    if pod.sidecar is not None and pod.sidecar.poll() is None:
        pod.sidecar.kill()
        pod.sidecar.communicate()


def with_tree() -> str:
    return replace(CONFIG, code_tree=TREE).to_json()


def test_the_program_may_start_once_everything_is_staged_and_the_endpoint_answers(pod: Pod) -> None:
    sidecar = pod.start(CONFIG.to_json())
    until("staged", lambda: pod.there(STAGED), 30)
    assert not pod.there(FAILED)
    sidecar.kill()  # its completion marker would wait for a store that takes it
    _, said = sidecar.communicate()
    lines = [line.split(" ", 2) for line in said.splitlines()]
    assert [who for _, who, _ in lines] == ["updraft-sidecar:"] * len(lines)
    assert "stage: done" in [text for _, _, text in lines]


def test_a_sidecar_that_cannot_stage_ends_the_program_and_waits_for_the_pods_end(pod: Pod) -> None:
    Store.answer.set()
    sidecar = pod.start(with_tree())
    until("failed", lambda: pod.there(FAILED), 30)
    told = (pod.root / FAILED).read_text()
    assert told == "65 code: tree 000000000000 is not in the store; submit the job again\n"
    assert not pod.there(STAGED)
    assert sidecar.poll() is None  # one that ends is started again by the cluster
    sidecar.terminate()
    assert sidecar.wait(30) == 0


@pytest.mark.parametrize(
    ("config", "credentials", "message"),
    [
        ("", None, "environment variable UPDRAFT_POD_CONFIG is not set"),
        ("{}", None, "UPDRAFT_POD_CONFIG is not a valid pod configuration"),
        (CONFIG.to_json(), "hush", "credentials.json is not of the form"),
        (CONFIG.to_json(), '{"s3": {}, "mlflow": {"uri": "hush"}}', "credentials.json is not of the form"),
    ],
)
def test_impossible_configuration_ends_the_program_with_64(
    pod: Pod, config: str, credentials: str | None, message: str
) -> None:
    if credentials is not None:
        pod.credentials.write_text(credentials)
    sidecar = pod.start(config)
    until("failed", lambda: pod.there(FAILED), 30)
    sidecar.terminate()
    _, said = sidecar.communicate(timeout=30)
    told = (pod.root / FAILED).read_text()
    assert told.startswith("64 ")
    assert message in told
    assert "hush" not in told + said


def test_a_pod_that_is_removed_does_not_wait_for_its_staging(pod: Pod) -> None:
    sidecar = pod.start(with_tree())
    until("staging has begun", lambda: pod.there("code"), 30)
    sidecar.send_signal(signal.SIGTERM)
    assert sidecar.wait(10) == 0
    assert not pod.there(STAGED)
    assert not pod.there(FAILED)


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("updraft_learner.stage", ("botocore", "psutil", "zipfile", "http.server", "xml.etree.ElementTree", "torch")),
        ("updraft_learner.sidecar.__main__", ("botocore", "psutil", "zipfile", "xml.etree.ElementTree", "torch")),
        ("updraft_learner", ("updraft_learner.runtime", "json", "threading")),
    ],
)
def test_nothing_is_imported_that_only_some_pods_need(module: str, heavy: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
