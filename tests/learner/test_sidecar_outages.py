"""The sidecar as a process, while its object store is killed, frozen or slow, and while it is killed itself."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from learner.sidecar_fakes import BEARER, CONFIG, RUN, TOKEN, FakeMlflow, make_paths, until

from updraft_learner.contract import Keys, LearnerDone, LearnerStatus
from updraft_learner.pod import S3Credentials
from updraft_learner.store import S3Store, open_store

pytestmark = [pytest.mark.system, pytest.mark.timeout(200)]

RCLONE = shutil.which("rclone", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
KEYS = Keys("t")
PLACE = ("job-1", "train", 1, 1)
LARGE = 70 << 20  # five parts


class S3Server:
    """rclone, behind a proxy that does something once so many bytes have come in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "s3" / "updraft").mkdir(parents=True)
        self.process: subprocess.Popen[bytes] | None = None
        self.received = 0
        self._trigger: tuple[int, Callable[[], None]] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def start(self) -> None:
        command = [str(RCLONE), "serve", "s3", "--addr", f"127.0.0.1:{self._port}", "--auth-key", "key,secret"]
        config = ["--config", str(self.folder / "rclone.conf"), str(self.folder / "s3")]
        self.process = subprocess.Popen([*command, *config], stderr=subprocess.DEVNULL)
        until("rclone starts", lambda: socket.socket().connect_ex(("127.0.0.1", self._port)) == 0)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def after(self, count: int, action: Callable[[], None]) -> None:
        """Call `action` when so many more bytes have come."""
        self._trigger = (self.received + count, action)

    def close(self) -> None:
        self._listener.close()
        self.signal(signal.SIGCONT)
        self.kill()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._port), 5)
            except OSError:
                client.close()
                continue
            for source, target, inward in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._pump, args=(source, target, inward), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, inward: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if inward:
                    self.received += len(data)
                    if self._trigger is not None and self.received >= self._trigger[0]:
                        action, self._trigger = self._trigger[1], None
                        action()
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    if RCLONE is None:
        pytest.skip("rclone is not beside the interpreter; `uv sync` installs it")
    server = S3Server(tmp_path / "server")
    server.start()
    yield server
    server.close()


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Pod:
    def __init__(self, root: Path, s3: S3Server, mlflow: FakeMlflow) -> None:
        self.paths = make_paths(root / "pod")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        access = {"endpoint": s3.endpoint, "access_key": "key", "secret_key": "secret"}
        (root / "credentials.json").write_text(
            json.dumps({"s3": access, "mlflow": {"uri": mlflow.uri}, "endpoint_token": TOKEN})
        )
        self.environment = {
            **os.environ,
            "UPDRAFT_POD_CONFIG": replace(CONFIG, listen=f"127.0.0.1:{self.port}").to_json(),
            "UPDRAFT_ROOT_DIR": str(self.paths.root),
            "UPDRAFT_CREDENTIALS_FILE": str(root / "credentials.json"),
        }
        self.log = root / "sidecar.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "updraft_learner.sidecar"]
            self.process = subprocess.Popen(command, env=self.environment, stderr=log)
        until("the endpoint answers", lambda: answers(self.port), 30)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()

    def log_metric(self, step: int) -> float:
        """Seconds that the program waited."""
        began = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        body = {"run_id": RUN, "key": "loss", "value": step / 2, "timestamp": step, "step": step}
        connection.request("POST", "/api/2.0/mlflow/runs/log-metric", json.dumps(body), BEARER)
        assert connection.getresponse().status == 200
        connection.close()
        return time.monotonic() - began

    def write_large(self) -> tuple[str, str]:
        """A result and a checkpoint of several parts each; their digests."""
        digests = []
        checkpoint = self.paths.checkpoints / "step-1"
        checkpoint.mkdir()
        for path in (self.paths.result / "large.bin", checkpoint / "state.pt"):
            data = os.urandom(1 << 20) * (LARGE >> 20)
            path.write_bytes(data)
            digests.append(hashlib.sha256(data).hexdigest())
        (checkpoint / "COMPLETE").touch()
        return digests[0], digests[1]

    def finish(self) -> None:
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(120) == 0, self.log.read_text()


@pytest.fixture
def pod(tmp_path: Path, s3: S3Server, mlflow: FakeMlflow) -> Iterator[Pod]:
    pod = Pod(tmp_path, s3, mlflow)
    pod.start()
    yield pod
    if pod.process is not None and pod.process.poll() is None:
        pod.kill()
        pod.process.wait()


@pytest.fixture
def store(s3: S3Server) -> S3Store:
    return open_store("updraft", S3Credentials(s3.endpoint, "us-east-1", "key", "secret"))


def check_all_arrived(store: S3Store, mlflow: FakeMlflow, digests: tuple[str, str], steps: int) -> LearnerDone:
    objects = [f"{KEYS.results('job-1', 'train', 1)}/large.bin", f"{KEYS.checkpoint('job-1', 'step-1-a1')}/state.pt"]
    for key, digest in zip(objects, digests, strict=True):
        with store.open(key) as stream:
            assert hashlib.file_digest(stream, "sha256").hexdigest() == digest
    marker = json.loads(store.get_bytes(KEYS.checkpoint_marker("job-1", "step-1-a1")) or b"")
    assert marker["files"]["state.pt"] == {"sha256": digests[1], "size": LARGE}
    assert mlflow.points("loss") == [(step, step / 2) for step in range(steps)]
    chunks = [store.get_bytes(item.key) or b"" for item in store.list(f"{KEYS.metrics(*PLACE)}/")]
    record = [json.loads(line) for line in b"".join(chunks).splitlines()]
    assert [(entry["n"], entry["step"]) for entry in record] == [(step + 1, step) for step in range(steps)]
    assert store._client.list_multipart_uploads(Bucket="updraft", Prefix="")["Uploads"] == []
    done = LearnerDone.from_json(store.get_bytes(KEYS.done(*PLACE)) or b"{}")
    assert (done.metrics_pending, done.artifacts_pending, done.final_checkpoint) == (0, 0, "step-1-a1")
    return done


def test_a_server_that_is_killed_in_the_middle_of_an_upload_loses_nothing(
    pod: Pod, s3: S3Server, mlflow: FakeMlflow, store: S3Store
) -> None:
    killed = threading.Event()

    def kill() -> None:
        s3.kill()
        killed.set()

    s3.after(LARGE // 2, kill)
    digests = pod.write_large()
    assert killed.wait(60)
    waits = [pod.log_metric(step) for step in range(10)]
    assert max(waits) < 10, "the program must not wait for the store"
    time.sleep(4)  # longer than a look at the fence counts
    before = len(mlflow.points("loss"))
    pod.log_metric(10)
    time.sleep(1.5)
    assert len(mlflow.points("loss")) == before, "nobody knows whether a newer attempt runs"
    s3.start()
    until("the points arrive", lambda: len(mlflow.points("loss")) == 11, 60)
    pod.finish()
    check_all_arrived(store, mlflow, digests, 11)


def test_a_server_that_is_frozen_in_the_middle_of_an_upload_loses_nothing(
    pod: Pod, s3: S3Server, mlflow: FakeMlflow, store: S3Store
) -> None:
    frozen = threading.Event()

    def freeze() -> None:
        s3.signal(signal.SIGSTOP)
        frozen.set()

    s3.after(LARGE // 2, freeze)
    digests = pod.write_large()
    assert frozen.wait(60)
    waits = []
    for step in range(12):
        waits.append(pod.log_metric(step))
        time.sleep(0.5)
    assert max(waits) < 10
    s3.signal(signal.SIGCONT)
    until("the points arrive", lambda: len(mlflow.points("loss")) == 12, 60)
    pod.finish()
    check_all_arrived(store, mlflow, digests, 12)


def test_a_sidecar_that_is_killed_in_the_middle_of_an_upload_sends_only_the_rest(
    pod: Pod, s3: S3Server, mlflow: FakeMlflow, store: S3Store
) -> None:
    pod.log_metric(0)
    s3.after(LARGE * 3 // 4, pod.kill)  # the newest checkpoint is first
    digests = pod.write_large()
    assert pod.process is not None
    pod.process.wait(60)
    assert list((pod.paths.private / "uploads").glob("*.json"))
    received = s3.received
    pod.start()
    pod.log_metric(1)
    until("the checkpoint is stored", lambda: store.get_bytes(KEYS.checkpoint_marker("job-1", "step-1-a1")), 60)
    pod.finish()
    check_all_arrived(store, mlflow, digests, 2)
    assert s3.received - received < LARGE * 7 // 4  # a part or two of the checkpoint, and the result
    assert list((pod.paths.private / "uploads").iterdir()) == []


def test_an_mlflow_that_is_away_for_long_gets_each_point_once(
    pod: Pod, s3: S3Server, mlflow: FakeMlflow, store: S3Store
) -> None:
    mlflow.behave = lambda *_: "drop"
    digests = pod.write_large()
    for step in range(300):
        assert pod.log_metric(step) < 10
    until("it is told", lambda: any("cannot be reached" in text for text in status(store).warnings), 30)
    pod.kill()
    assert pod.process is not None
    pod.process.wait()
    pod.start()
    mlflow.behave = lambda *_: None
    until("the points arrive", lambda: len(mlflow.points("loss")) == 300, 60)
    pod.finish()
    check_all_arrived(store, mlflow, digests, 300)


def status(store: S3Store) -> LearnerStatus:
    return LearnerStatus.from_json(store.get_bytes(KEYS.status(*PLACE)) or b'{"t": 0, "phase": ""}')
