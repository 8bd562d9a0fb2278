"""The whole sidecar in one process: the endpoint as a client meets it, the drain, and what the platform then reads."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from learner.sidecar_fakes import BEARER, CONFIG, RUN, TOKEN, FailingStore, FakeMlflow, end_threads, make_paths, until

from updraft_learner.contract import ALIVE_FILE, Keys, LearnerDone, LearnerStatus, PodConfig
from updraft_learner.sidecar.app import Sidecar

PLACE = ("job-1", "train", 1, 1)
KEYS = Keys("t")
OWN = "7/run1/artifacts"


class Pod:
    """A started sidecar and an HTTP client of its endpoint."""

    def __init__(self, root: Path, mlflow: FakeMlflow, config: PodConfig = CONFIG, **options: Any) -> None:
        self.paths, self.store = make_paths(root), FailingStore(root.parent / "s3")
        self.sidecar = Sidecar(config, self.paths, self.store, mlflow.client(), TOKEN, **options)
        self.sidecar.start()

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.sidecar.endpoint.port, timeout=20)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body)
        chunked = iter([body[:2], body[2:]]) if isinstance(body, bytes) and headers == {} else data
        connection.request(method, path, chunked, {**BEARER, **(headers or {})})
        response = connection.getresponse()
        text = response.read()
        connection.close()
        return response.status, json.loads(text) if text else {}

    def api(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        return self.ask(method, f"/api/2.0/mlflow/{path}", body)

    def done(self) -> LearnerDone:
        return LearnerDone.from_json(self.store.get_bytes(KEYS.done(*PLACE)) or b"{}")

    def status(self) -> LearnerStatus:
        return LearnerStatus.from_json(self.store.get_bytes(KEYS.status(*PLACE)) or b"{}")


@pytest.fixture
def pod(tmp_path: Path, mlflow: FakeMlflow) -> Iterator[Pod]:
    made = Pod(tmp_path / "pod", mlflow)
    yield made
    end_threads(made.sidecar)


def test_a_batch_is_recorded_and_sent_with_our_credentials(pod: Pod, mlflow: FakeMlflow) -> None:
    metrics = [
        {"key": "loss", "value": 0.5, "timestamp": 1000, "step": 1},
        {"key": "loss", "value": "NaN", "timestamp": 2000, "step": 2},
        {"key": "loss", "value": 9, "timestamp": 1000, "step": 1},
        {"key": "acc", "value": 1, "timestamp": 1000, "step": 1, "model_id": "m-1"},
    ]
    body = {
        "run_id": RUN,
        "metrics": metrics,
        "params": [{"key": "p", "value": "1"}],
        "tags": [{"key": "t", "value": "x"}],
    }
    assert pod.api("POST", "runs/log-batch", body) == (200, {})
    pod.sidecar.drain()
    assert mlflow.points("loss") == [(1, 0.5), (2, "NaN")]
    assert [item["model_id"] for item in mlflow.metrics if item["key"] == "acc"] == ["m-1"]
    assert (mlflow.params, mlflow.tags["t"]) == ({"p": "1"}, "x")
    assert mlflow.authorization == {"Basic dXNlcjpodXNo"}
    assert pod.done().metrics_pending == 0


REFUSED = [
    ("POST", "runs/log-metric", {"run_id": "other", "key": "a", "value": 1}, 403, "run 'other' is not the job's"),
    ("POST", "runs/log-metric", {"key": "a", "value": 1}, 403, "run None is not the job's"),
    ("POST", "runs/log-metric", {"run_id": RUN, "key": "a"}, 400, "value of metric 'a' is no number"),
    ("POST", "runs/log-metric", {"run_id": RUN, "key": "", "value": 1}, 400, "key '' is refused"),
    ("POST", "runs/log-batch", {"run_id": RUN, "metrics": 5}, 400, "metrics is no list of objects"),
    ("POST", "runs/log-metric", [1], 400, "no JSON object"),
    ("POST", "runs/set-tag", {"run_id": RUN, "key": "updraft.x", "value": "1"}, 403, "belongs to the platform"),
    ("POST", "runs/delete-tag", {"run_id": RUN, "key": "mlflow.user"}, 403, "belongs to the platform"),
    ("POST", "runs/delete", {"run_id": RUN}, 403, "the platform alone ends, deletes"),
    ("DELETE", "registered-models/delete", {"name": "m"}, 403, "the platform does"),
    ("GET", "registered-models/get?name=m", None, 404, "the program has registered no model 'm'"),
    ("POST", "model-versions/create", {"name": "m" * 300}, 400, "1 to 256 characters"),
    ("POST", "runs/create", {"experiment_id": "8"}, 403, "experiment 8 is not the job's"),
    ("GET", "experiments/get?experiment_id=8", None, 403, "experiment 8 is not the job's"),
    ("GET", "users/get", None, 404, "is not part of the job's MLflow endpoint"),
    ("DELETE", "logged-models/m-1", None, 403, "creates, reads and finishes models"),
    ("GET", "logged-models/..%2F..%2Fruns", None, 403, "creates, reads and finishes models"),
    ("GET", "logged-models/..", None, 400, "no id of a logged model"),
    ("GET", "logged-models/m-1%0A", None, 400, "no id of a logged model"),
    ("POST", "runs/log-metric", {"run_id": RUN, "key": "<b>", "value": 1}, 400, "names hold letters"),
    ("POST", "runs/log-metric", {"run_id": RUN, "key": "../x", "value": 1}, 400, "names hold letters"),
    ("POST", "runs/set-tag", {"run_id": RUN, "key": "a\n", "value": "1"}, 400, "names hold letters"),
    ("POST", "runs/log-metric", {"run_id": RUN, "key": "a", "value": 1, "model_id": "m-other"}, 403, "does not belong"),
    ("POST", "runs/outputs", {"run_id": RUN, "models": [{"model_id": "m-other"}]}, 403, "does not belong"),
    ("POST", "logged-models", {"name": "m", "tags": [{"key": "updraft.job_id", "value": "j"}]}, 403, "the platform"),
    ("PATCH", "logged-models/m-1/tags", {"tags": [{"key": "updraft.x", "value": "j"}]}, 403, "the platform"),
    ("PATCH", "logged-models/m-1/tags", {"tags": [{"key": "updraft.job_id", "value": "j"}]}, 403, "the platform"),
    ("PATCH", "logged-models/m-made/tags", {"tags": [{"key": "x", "value": "j"}]}, 403, "the platform made"),
    ("PATCH", "logged-models/m-made", {"status": 2}, 403, "the platform made"),
    ("POST", "logged-models/m-made/params", {"params": [{"key": "x", "value": "j"}]}, 403, "the platform made"),
    ("POST", "runs/log-metric", {"run_id": RUN, "key": "a", "value": 1, "model_id": "m-made"}, 403, "platform made"),
    ("POST", "runs/outputs", {"run_id": RUN, "models": [{"model_id": "m-made"}]}, 403, "the platform made"),
    ("POST", "logged-models", {"name": "m", "tags": "x"}, 400, "tags is no list of objects"),
    ("POST", "runs/log-metric", b"[" * 100_000, 400, "is not JSON"),
    ("POST", "runs/log-inputs", {"run_id": RUN, "runId": "other"}, 400, "field 'runId' is refused"),
    ("POST", "runs/outputs", {"run_id": RUN, "models": [{"modelId": "m-other"}]}, 400, "field 'modelId' is refused"),
    ("POST", "logged-models", {"name": "m", "experimentId": "8"}, 400, "field 'experimentId' is refused"),
    ("GET", f"artifacts/list?run_id={RUN}&runId=other", None, 400, "field 'runId' is refused"),
]


@pytest.mark.parametrize(("method", "path", "body", "status", "message"), REFUSED)
def test_everything_else_is_refused_in_mlflows_form(
    pod: Pod, mlflow: FakeMlflow, method: str, path: str, body: Any, status: int, message: str
) -> None:
    found, answer = pod.api(method, path, body)
    assert (found, set(answer)) == (status, {"error_code", "message"})
    assert message in answer["message"]
    assert not [call for call in mlflow.calls if call[0] != "GET"]


@pytest.mark.parametrize(
    "head", ["Content-Length: -1", "Content-Length: x", "Content-Length: 1_0", "Transfer-Encoding: chunked\r\n\r\n-1"]
)
def test_a_length_that_is_none_is_refused_at_once(pod: Pod, head: str) -> None:
    port = pod.sidecar.endpoint.port
    own = f"Host: 127.0.0.1:{port}\r\nAuthorization: Bearer {TOKEN}"
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(f"POST /api/2.0/mlflow/runs/set-tag HTTP/1.1\r\n{own}\r\n{head}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"length is no number" in answer


def test_what_the_server_forbids_does_not_hold_up_the_rest(pod: Pod, mlflow: FakeMlflow) -> None:
    """MLflow answers 403 also to a path or a model that it does not like; the job's run is served all the same."""
    forbidden = ("runs/outputs", "real/r1/odd", "real/r1/%252e%252e/x")
    mlflow.behave = lambda method, path, body: 403 if path in forbidden else None
    base = f"/api/2.0/mlflow-artifacts/artifacts/{OWN}"
    for name in ("odd", "%252e%252e/x", "good"):
        assert pod.ask("PUT", f"{base}/{name}", b"x", {"Content-Type": "text/plain"}) == (200, {})
    assert pod.ask("PUT", f"{base}/a%0D%0AX-Header:%20b", b"x", {"Content-Type": "text/plain"})[0] == 400
    assert pod.api("POST", "runs/outputs", {"run_id": RUN, "models": [{"model_id": "m-1"}]}) == (200, {})
    assert pod.api("POST", "runs/log-metric", {"run_id": RUN, "key": "loss", "value": 1, "step": 1}) == (200, {})
    pod.sidecar.drain()
    done = pod.done()
    assert (done.metrics_pending, done.artifacts_pending) == (0, 0)
    assert (mlflow.artifacts, mlflow.points("loss")) == ({"real/r1/good": b"x"}, [(1, 1.0)])
    assert sum("MLflow refused" in warning for warning in done.warnings) == 3


def test_starting_ending_and_nesting_runs_stays_in_the_jobs_run(pod: Pod, mlflow: FakeMlflow) -> None:
    tags = [{"key": key, "value": "v"} for key in ("mlflow.parentRunId", "mlflow.user", "mlflow.source.name", "own")]
    status, answer = pod.api("POST", "runs/create", {"experiment_id": "0", "tags": tags})
    assert (status, answer["run"]["info"]["run_id"]) == (200, RUN)
    assert answer["run"]["info"]["artifact_uri"] == f"mlflow-artifacts:/{OWN}"
    assert pod.api("POST", "runs/update", {"run_id": RUN, "status": "FAILED"})[1]["run_info"]["status"] == "RUNNING"
    pod.sidecar.drain()
    assert mlflow.tags == {"own": "v"}
    assert "runs/update" not in {path for _, path, _ in mlflow.calls}


def test_while_the_server_is_away_the_run_is_answered_from_memory(pod: Pod, mlflow: FakeMlflow) -> None:
    mlflow.behave = lambda *_: "drop"
    pod.api("POST", "runs/log-metric", {"run_id": RUN, "key": "loss", "value": 2, "timestamp": 5000, "step": 4})
    pod.api("POST", "runs/log-parameter", {"run_id": RUN, "key": "lr", "value": "1"})
    status, answer = pod.api("GET", f"runs/get?run_id={RUN}")
    assert status == 200
    assert answer["run"]["data"] == {
        "metrics": [{"key": "loss", "value": 2.0, "step": 4, "timestamp": 5000}],
        "params": [{"key": "lr", "value": "1"}],
        "tags": [],
    }
    status, answer = pod.api("GET", f"metrics/get-history?run_id={RUN}&metric_key=loss")
    assert (status, answer["error_code"]) == (503, "TEMPORARILY_UNAVAILABLE")


def test_artifacts_go_to_the_servers_own_place_in_any_encoding(pod: Pod, mlflow: FakeMlflow) -> None:
    base = "/api/2.0/mlflow-artifacts/artifacts"
    assert pod.ask("PUT", f"{base}/{OWN}/docs/a%20b.txt", b"whole", {"Content-Type": "text/plain"}) == (200, {})
    assert pod.ask("PUT", f"{base}/{OWN}/chunked.bin", b"chunked", {}) == (200, {})
    assert pod.ask("PUT", f"{base}/{OWN}/empty", b"", {"Content-Length": "0"}) == (200, {})
    for path in ("7/other/artifacts/x", f"{OWN}/../../x", f"{OWN}/a%5Cb", OWN, "8/run1/artifacts/x", "7/models/m/x"):
        assert pod.ask("PUT", f"{base}/{path}", b"x", {"Content-Type": "text/plain"})[0] in (400, 403)
    pod.sidecar.drain()
    assert mlflow.artifacts == {
        "real/r1/docs/a%20b.txt": b"whole",
        "real/r1/chunked.bin": b"chunked",
        "real/r1/empty": b"",
    }


def test_files_of_the_platforms_own_model_are_read_and_never_written(pod: Pod, mlflow: FakeMlflow) -> None:
    """It is what becomes the version in the registry."""
    path = "/api/2.0/mlflow-artifacts/artifacts/7/models/m-made/artifacts/model.onnx"
    assert pod.api("GET", "logged-models/m-made")[0] == 200
    for _ in range(2):  # having read it changes nothing
        assert pod.ask("GET", path)[0] == 200
        status, answer = pod.ask("PUT", path, b"evil", {"Content-Type": "x"})
        assert (status, answer["error_code"]) == (403, "PERMISSION_DENIED")
    pod.sidecar.drain()
    assert not mlflow.artifacts


def test_the_marker_is_written_last_and_says_what_is_there(pod: Pod, mlflow: FakeMlflow) -> None:
    (pod.paths.result / "model.bin").write_bytes(b"12345")
    (pod.paths.logs / "train.log").write_bytes(b"1")
    checkpoint = pod.paths.checkpoints / "step-3"
    checkpoint.mkdir()
    (checkpoint / "w").write_bytes(b"123")
    (checkpoint / "COMPLETE").touch()
    (pod.paths.checkpoints / "step-4").mkdir()
    lines = [{"step": 3, "metrics": {"loss": 1.5}}, {"progress": {"step": 3, "total": 4}}, "oops"]
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    (pod.paths.io / "metrics.jsonl").write_text(text)
    pod.sidecar.drain()
    assert pod.store.written[-1] == KEYS.done(*PLACE)
    done = pod.done()
    assert replace(done, t=0) == LearnerDone(
        t=0,
        files=4,
        bytes=9,
        metrics_sent=1,
        metrics_pending=0,
        final_checkpoint="step-3-a1",
        warnings=(
            "metrics file: line 3 of this process: it is not JSON",
            "checkpoint step-4 has no COMPLETE; not stored",
        ),
    )
    status = pod.status()
    assert (status.phase, status.progress, status.last_metrics) == ("done", {"step": 3, "total": 4}, {"loss": 1.5})
    assert (status.bad_lines, status.pending_bytes, [item.name for item in status.checkpoints]) == (1, 0, ["step-3-a1"])
    assert pod.store.get_bytes(f"{KEYS.files(*PLACE)}/train.log") == b"1"
    assert LearnerStatus.from_json(status.to_json()) == status


def test_a_store_that_is_away_at_the_end_is_waited_for(tmp_path: Path, mlflow: FakeMlflow) -> None:
    pod = Pod(tmp_path / "pod", mlflow, sleep=lambda seconds: None)
    (pod.paths.result / "model.bin").write_bytes(b"12345")
    tries: list[str] = []
    pod.store.fails = lambda operation, key: operation == "put" and (tries.append(key), len(tries) < 6)[1]
    pod.sidecar.drain()
    assert pod.done().files == 1
    assert len(tries) > 6


def test_mlflow_away_at_the_end_leaves_everything_in_the_store(pod: Pod, mlflow: FakeMlflow) -> None:
    mlflow.behave = lambda *_: "drop"
    (pod.paths.io / "metrics.jsonl").write_text(json.dumps({"step": 1, "metrics": {"loss": 1}}) + "\n")
    pod.ask("PUT", f"/api/2.0/mlflow-artifacts/artifacts/{OWN}/a", b"kept", {"Content-Type": "x"})
    pod.sidecar.drain(mlflow_seconds=0.2)
    done = pod.done()
    assert (done.metrics_pending, done.artifacts_pending) == (1, 1)
    assert pod.store.get_bytes(f"{KEYS.artifacts(*PLACE)}/00000001.data") == b"kept"
    assert json.loads(pod.store.get_bytes(f"{KEYS.artifacts(*PLACE)}/00000001.json") or b"") == {
        "owner": "run",
        "path": "a",
    }
    chunks = b"".join(pod.store.get_bytes(item.key) or b"" for item in pod.store.list(KEYS.metrics(*PLACE)))
    assert [json.loads(line)["metrics"] for line in chunks.splitlines()] == [{"loss": 1.0}]


def test_an_mlflow_that_was_away_all_the_time_is_not_waited_for_again(pod: Pod, mlflow: FakeMlflow) -> None:
    mlflow.behave = lambda *_: "drop"
    (pod.paths.io / "metrics.jsonl").write_text(json.dumps({"step": 1, "metrics": {"loss": 1}}) + "\n")
    until("it is known to be away", lambda: pod.sidecar.forwarder.failing_since)
    pod.sidecar.forwarder.failing_since = time.monotonic() - 60
    began = time.monotonic()
    pod.sidecar.drain()
    assert time.monotonic() - began < 10
    assert pod.done().metrics_pending == 1


def test_a_stop_request_touches_the_stop_file_and_follows_no_link(pod: Pod, tmp_path: Path) -> None:
    pod.store.put_bytes(KEYS.stop(*PLACE), b"")
    pod.sidecar.poll_requests()
    assert (pod.paths.io / "stop").exists()
    link = pod.paths.io / "link"
    link.symlink_to(tmp_path / "elsewhere")
    link.replace(pod.paths.io / "stop")  # at once: the sidecar's own thread would make the file in between
    pod.sidecar.poll_requests()
    assert not (tmp_path / "elsewhere").exists()
    assert not (pod.paths.io / "stop").is_symlink()


def test_many_threads_write_at_once_and_nothing_is_lost(pod: Pod, mlflow: FakeMlflow) -> None:
    def write(worker: int) -> None:
        for step in range(25):
            body = {"run_id": RUN, "key": f"m{worker}", "value": step, "timestamp": step, "step": step}
            assert pod.api("POST", "runs/log-metric", body)[0] == 200

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pod.sidecar.drain()
    assert {worker: mlflow.points(f"m{worker}") for worker in range(6)} == {
        worker: [(step, float(step)) for step in range(25)] for worker in range(6)
    }


def test_health_is_answered(pod: Pod) -> None:
    assert pod.ask("GET", "/updraft/health") == (200, {"status": "ok"})


HOLDS_THE_LOCK = """
import sys
from pathlib import Path
from updraft_learner.elastic.alive import AliveLock

AliveLock(Path(sys.argv[1]), sys.argv[2], "2-name").take()
print("taken", flush=True)
sys.stdin.readline()
"""


def test_the_coordinator_is_told_of_a_killed_learner(tmp_path: Path, mlflow: FakeMlflow) -> None:
    with socket.create_server(("127.0.0.1", 0)) as coordinator:
        coordinator.settimeout(20)
        pod = Pod(tmp_path / "pod", mlflow, replace(CONFIG, in_place=True))
        address = f"127.0.0.1:{coordinator.getsockname()[1]}"
        command = [sys.executable, "-c", HOLDS_THE_LOCK, str(pod.paths.at(ALIVE_FILE)), address]
        learner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            assert learner.stdout is not None
            assert learner.stdout.readline() == b"taken\n"
            learner.kill()
            connection, _ = coordinator.accept()
            with connection, connection.makefile("rw") as lines:
                assert json.loads(lines.readline()) == {"type": "killed", "member": "2-name", "token": TOKEN}
                lines.write('{"answer": "ok"}\n')
        finally:
            learner.wait()
            end_threads(pod.sidecar)
