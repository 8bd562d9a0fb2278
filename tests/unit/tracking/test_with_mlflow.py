"""What the platform writes to a real MLflow server; a process killed between any two requests doubles nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from unit.operators.platform_fakes import Blade, SimulatedKill, Watched

from updraft import tracking
from updraft.exceptions import NotFoundError, RefusedError, UnavailableError
from updraft.lifecycle import State

PYTHON = os.environ.get("UPDRAFT_TEST_MLFLOW_PYTHON")
START_SECONDS = 120
pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if PYTHON is None:
        pytest.skip("UPDRAFT_TEST_MLFLOW_PYTHON is not set; `make test` prepares that environment")
    from mlflow import MlflowClient

    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
    uri = f"http://127.0.0.1:{port}"
    command = [PYTHON, "-m", "mlflow", "server", "--workers", "1", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--serve-artifacts"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    path = f"{Path(PYTHON).parent}{os.pathsep}{os.environ['PATH']}"
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **quiet, "PATH": path},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(f"{uri}/health"):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, "MLflow did not start"
            time.sleep(0.1)
        yield MlflowClient(tracking_uri=uri, registry_uri=uri)
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def exhaustively(client: Any, work: Callable[[Any, str], Any]) -> Iterator[tuple[str, Any]]:
    """Does the work for one job after the other, each killed after one more request than the one before and then done
    again; the last one was not killed. Gives the job and the second run's result."""
    for n in range(1, 100):
        job, blade = f"{work.__name__}-{n}", Blade()
        blade.falls_after = n
        try:
            work(Watched(client, blade), job)
            killed = False
        except SimulatedKill:
            killed = True
        yield job, work(client, job)
        if not killed:
            return
    raise AssertionError("the work makes too many requests")


def open_run(client: Any, job: str, experiment: str = "digits") -> tracking.RunRef:
    return tracking.open_run(
        client,
        job_id=job,
        experiment=experiment,
        params={f"p{n}": n for n in range(230)} | {"long": "x" * 9000},
        tags={"updraft.tenant": "default", "mlflow.note.content": ""},
        manifest={"name": "digits"},
    )


def test_a_job_has_one_run(client: Any) -> None:
    for job, ref in exhaustively(client, open_run):
        runs = client.search_runs([ref.experiment_id], filter_string=f"tags.`updraft.job_id` = '{job}'")
        assert [(r.info.run_id, r.info.status) for r in runs] == [(ref.run_id, "RUNNING")]
        assert len(runs[0].data.params) == 231
        assert [f.path for f in client.list_artifacts(ref.run_id)] == ["manifest.json"]


def test_data_is_named_once(client: Any) -> None:
    ref = open_run(client, "data-1")
    data = [{"source": "s3://datasets/digits/", "tree": "ab" * 32, "files": 3, "bytes": 10, "mount": "training"}]
    for _ in range(2):
        tracking.log_datasets(client, ref.run_id, data)
    (found,) = client.get_run(ref.run_id).inputs.dataset_inputs
    assert (found.dataset.name, found.dataset.source_type) == ("s3://datasets/digits/", "s3")


def register(client: Any, job: str) -> tracking.VersionRef:
    ref = open_run(client, job)
    tracking.claim(client, "digits", "default")
    return tracking.register(
        client,
        name="digits",
        folder=FOLDER[0],
        job_id=job,
        run_id=ref.run_id,
        experiment_id=ref.experiment_id,
        params={"formats": "onnx"},
        tags={"updraft.formats": "onnx"},
        description="checked",
    )


FOLDER: list[Path] = []


def test_a_job_registers_one_version_and_leaves_one_model(client: Any, tmp_path: Path) -> None:
    (tmp_path / "MLmodel").write_text("flavors: {}\nmodel_uuid: x\n")
    (tmp_path / "model.onnx").write_bytes(b"onnx")
    FOLDER[:] = [tmp_path]
    for job, version in exhaustively(client, register):
        ref = open_run(client, job)
        versions = client.search_model_versions(f"run_id = '{ref.run_id}'")
        assert [(v.name, str(v.version)) for v in versions] == [("digits", version.version)]
        models = client.search_logged_models([ref.experiment_id], filter_string=f"tags.`updraft.job_id` = '{job}'")
        assert [(m.model_id, str(m.status)) for m in models] == [(version.model_id, "READY")]
        assert [o.model_id for o in client.get_run(ref.run_id).outputs.model_outputs] == [version.model_id]


def test_a_registered_model_has_the_runs_metrics_and_its_data(client: Any, tmp_path: Path) -> None:
    (tmp_path / "MLmodel").write_text("flavors: {}\nmodel_uuid: x\n")
    FOLDER[:] = [tmp_path]
    ref = open_run(client, "judged-1")
    data = [{"source": "s3://datasets/digits/", "tree": "ab" * 32, "files": 3, "bytes": 10, "mount": "training"}]
    tracking.log_datasets(client, ref.run_id, data)
    client.log_metric(ref.run_id, "val_accuracy", 0.5, timestamp=1, step=1)
    client.log_metric(ref.run_id, "val_accuracy", 0.9, timestamp=2, step=2)
    client.log_metric(ref.run_id, "system/node_0/cpu_utilization_percentage", 10.0, timestamp=2, step=2)
    version = register(client, "judged-1")
    model = client.get_logged_model(version.model_id)
    found = [(m.key, m.value, m.step, m.dataset_name) for m in model.metrics]
    assert found == [("val_accuracy", 0.9, 2, "s3://datasets/digits/")]
    assert [p.value for p in client.get_metric_history(ref.run_id, "val_accuracy")] == [0.5, 0.9]


def test_a_registered_model_is_its_first_tenants(client: Any) -> None:
    from mlflow.exceptions import MlflowException

    for _ in range(2):
        tracking.check_owner(client, "sorter", "vision")
        tracking.claim(client, "sorter", "vision")
    for asked in (tracking.check_owner, tracking.claim):
        with pytest.raises(RefusedError, match="registered model 'sorter' is another tenant's; choose another name"):
            asked(client, "sorter", "audio")
    assert client.get_registered_model("sorter").tags == {"updraft.tenant": "vision"}
    tracking.check_owner(client, "of-nobody", "audio")
    with pytest.raises(MlflowException, match="not found"):  # looking takes no name
        client.get_registered_model("of-nobody")


def test_a_model_without_an_owner_is_the_tenants_whose_job_made_its_first_version(client: Any) -> None:
    for name in ("older", "by-hand", "empty"):
        client.create_registered_model(name)
    first = open_run(client, "owner-1")
    other = client.create_run("0", tags={"updraft.tenant": "audio"})
    for run_id in (first.run_id, other.info.run_id):
        client.create_model_version("older", source="s3://x/y", run_id=run_id)
    client.create_model_version("by-hand", source="s3://x/y")
    with pytest.raises(RefusedError, match="is another tenant's"):
        tracking.claim(client, "older", "audio")
    with pytest.raises(RefusedError, match=r"no tenant's job made; .* set its tag updraft.tenant to 'default'"):
        tracking.claim(client, "by-hand", "default")
    for name in ("older", "empty"):
        tracking.claim(client, name, "default")
        assert client.get_registered_model(name).tags == {"updraft.tenant": "default"}


class AfterGc:
    """A client of a server whose `mlflow gc` has deleted runs."""

    def __init__(self, client: Any, *gone: str) -> None:
        self._client, self._gone = client, gone

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def get_run(self, run_id: str) -> Any:
        from mlflow.exceptions import MlflowException
        from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST

        if run_id in self._gone:
            raise MlflowException(f"Run with id={run_id} not found", error_code=RESOURCE_DOES_NOT_EXIST)
        return self._client.get_run(run_id)


def test_a_first_version_whose_run_was_purged_says_nothing_of_an_owner(client: Any) -> None:
    client.create_registered_model("kept")
    runs = [open_run(client, f"purged-{n}").run_id for n in (1, 2)]
    for run_id in runs:
        client.create_model_version("kept", source="s3://x/y", run_id=run_id)
    one_gone: Any = AfterGc(client, runs[0])
    both_gone: Any = AfterGc(client, *runs)
    with pytest.raises(RefusedError, match="is another tenant's"):
        tracking.check_owner(one_gone, "kept", "audio")
    with pytest.raises(RefusedError, match=r"set its tag updraft.tenant to 'default'"):
        tracking.check_owner(both_gone, "kept", "default")
    tracking.claim(one_gone, "kept", "default")


def test_the_champion_is_found_or_not(client: Any) -> None:
    assert tracking.champion(client, "no-such-model") is None
    client.create_registered_model("lonely")
    assert tracking.champion(client, "lonely") is None
    ref = open_run(client, "champion-1")
    client.log_metric(ref.run_id, "acc", 0.5, step=1)
    client.log_metric(ref.run_id, "acc", 0.7, step=2)
    version = client.create_model_version("lonely", source="s3://x/y", run_id=ref.run_id)
    mine = tracking.VersionRef("lonely", str(version.version), None, ref.run_id)
    for _ in range(2):
        tracking.move_champion(client, mine.name, mine.version, None)
        tracking.tag_version(client, mine, {"updraft.promoted": "true"})
    found = tracking.champion(client, "lonely")
    assert found is not None
    assert (found[0].version, found[1]) == (mine.version, {"acc": 0.7})
    alone = client.create_model_version("lonely", source="s3://x/z")
    client.set_registered_model_alias("lonely", "champion", alone.version)
    found = tracking.champion(client, "lonely")
    assert found is not None
    assert found[1] == {}


def test_the_champion_before_has_an_alias_and_versions_name_their_job(client: Any) -> None:
    tracking.claim(client, "moved", "default")
    assert tracking.owner_of(client, "moved") == "default"
    assert tracking.owner_of(client, "no-such-model") is None
    for number in (1, 2):
        ref = open_run(client, f"moved-{number}")
        client.create_model_version(
            "moved", source="s3://x/y", run_id=ref.run_id, tags={"updraft.job_id": f"moved-{number}"}
        )
    tracking.move_champion(client, "moved", "1", None)
    tracking.move_champion(client, "moved", "2", "1")
    assert client.get_registered_model("moved").aliases == {"champion": "2", "previous": "1"}
    tracking.move_champion(client, "moved", "1", None)
    assert client.get_registered_model("moved").aliases == {"champion": "1"}
    found = tracking.find_version_number(client, "moved", "2")
    assert found is not None
    assert (found.version, found.job_id, found.label) == ("2", "moved-2", "moved version 2")
    assert tracking.find_version_number(client, "moved", "9") is None
    current = tracking.champion(client, "moved")
    assert current is not None
    assert current[0].job_id == "moved-1"


def test_a_run_shows_a_jobs_state_and_ends_once(client: Any) -> None:
    from updraft.controller import outbox
    from updraft_learner.mlflow_rest import TrackingServer
    from updraft_learner.pod import MlflowCredentials

    ref = open_run(client, "end-1")
    server = TrackingServer(MlflowCredentials(client.tracking_uri, "u", "p"), run_id=ref.run_id)
    seen = []
    for state in (State.HALTED, State.QUEUED, State.FAILED, State.FAILED):
        outbox._tell(server, state, {"updraft.reason": f"is {state.value}"})
        run = client.get_run(ref.run_id)
        seen.append((run.info.status, run.data.tags["updraft.state"], run.data.tags["updraft.reason"]))
        ended = run.info.end_time if state is State.FAILED else None
    assert seen == [
        ("KILLED", "HALTED", "is HALTED"),
        ("RUNNING", "QUEUED", "is QUEUED"),
        ("FAILED", "FAILED", "is FAILED"),
        ("FAILED", "FAILED", "is FAILED"),
    ]
    outbox._tell(server, State.FAILED, {})
    assert client.get_run(ref.run_id).info.end_time == ended
    with pytest.raises(NotFoundError):
        outbox._tell(
            TrackingServer(MlflowCredentials(client.tracking_uri, "u", "p"), run_id="0" * 32), State.FAILED, {}
        )


def test_late_metrics_are_replayed_once(client: Any, tmp_path: Path) -> None:
    from folder_store import FolderStore

    from updraft.tracking.replay import replay

    ref, store = open_run(client, "late-1"), FolderStore(tmp_path)
    client.log_metric(ref.run_id, "loss", 1.0, step=1, timestamp=1000)
    lines = b"".join(
        b'{"n": %d, "t": %d, "source": "file", "step": %d, "metrics": {"loss": %f}}\n' % (n, n, n, 1 / n)
        for n in range(1, 5)
    )
    store.put_bytes("m/00000003.jsonl", lines)
    store.put_bytes("a/00000001.data", b"plot")
    store.put_bytes("a/00000001.json", b'{"owner": "run", "path": "plots/a.txt"}')
    secret = SimpleNamespace(get_secret_value=lambda: "p")
    credentials = SimpleNamespace(mlflow=SimpleNamespace(username="u", password=secret))
    settings: Any = SimpleNamespace(mlflow_uri=client.tracking_uri, credentials=lambda: credentials)
    assert replay(settings, store, ref.run_id, "m", "a").points == 3
    assert replay(settings, store, ref.run_id, "m", "a").points == 0
    history = client.get_metric_history(ref.run_id, "loss")
    assert sorted((m.step, m.timestamp) for m in history) == [(1, 1000), (2, 2000), (3, 3000), (4, 4000)]
    assert [f.path for f in client.list_artifacts(ref.run_id, "plots")] == ["plots/a.txt"]


def test_a_server_that_is_away_is_an_error_that_waiting_may_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{closed.getsockname()[1]}"
        away = MlflowClient(tracking_uri=uri, registry_uri=uri)
        for call in (
            lambda: open_run(away, "x"),
            lambda: tracking.set_tags(away, "r", {"a": "b"}),
            lambda: tracking.log_json(away, "r", "a.json", {}),
            lambda: tracking.champion(away, "digits"),
        ):
            with pytest.raises(UnavailableError, match=f"MLflow at {uri}"):
                call()
