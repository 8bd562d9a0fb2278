"""A cluster of the user's own in place of the local node: how it is named, and what of the stack changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from unit.kubernetes.api_server import Cluster as Server
from unit.kubernetes.api_server import kubeconfig, serving

from updraft.ledger import Ledger, NewJob, open_ledger, upgrade
from updraft.lifecycle import State
from updraft.stack import config as configuration
from updraft.stack import control
from updraft.stack.cluster import ClusterConfig, pointed_at
from updraft.stack.doctor import doctor
from updraft.stack.layout import MARK_VARIABLE, PART_VARIABLE, Home, StackError
from updraft.stack.parts import Part, build_parts, stop_order

SHELL = {"PATH": "/usr/bin:/bin", "HOME": "/nowhere", "NO_PROXY": "intranet"}
HERE = "127.0.0.1"
NODE = "import time; print('here', flush=True); time.sleep(600)"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return kubeconfig(tmp_path / "kubeconfig", "https://192.0.2.1:6443", "prod", "dev")


def parts_in(home: Home) -> dict[str, Part]:
    config, secrets = configuration.load_config(home), configuration.load_secrets(home)
    return {p.name: p for p in build_parts(home, config, secrets, SHELL)}


def test_the_context_is_chosen_once_and_remembered(home: Home, file: Path) -> None:
    given = {"kubeconfig": str(file), "context": "prod", "address": HERE}
    made = control.initialise(home, cluster=given)
    assert made.cluster == ClusterConfig(kubeconfig=str(file), context="prod", address=HERE)
    kubeconfig(file, "https://192.0.2.1:6443", "prod", "dev", **{"current-context": "dev"})
    assert control.initialise(home).cluster == made.cluster
    other = control.initialise(home, cluster={"context": "dev", "address": HERE})
    assert other.cluster == ClusterConfig(kubeconfig=str(file), context="dev", address=HERE)
    assert control.initialise(home, cluster={"kubeconfig": "local"}).cluster is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"context": "prod"}, "--context needs --kubeconfig FILE"),
        ({"kubeconfig": "FILE", "address": HERE}, r"holds 2 contexts \(dev, prod\), and none is chosen"),
        ({"kubeconfig": "FILE", "context": "live", "address": HERE}, "has no context 'live'; it holds dev, prod"),
        ({"kubeconfig": "FILE-2", "context": "prod"}, "kubeconfig-2 does not exist"),
        ({"kubeconfig": "FILE", "context": "prod", "address": "192.0.2.7"}, "is no address of this machine"),
        ({"kubeconfig": "FILE", "context": "prod", "address": "here"}, "is no address of this machine"),
    ],
)
def test_what_is_no_cluster_is_told_and_nothing_is_changed(
    home: Home, file: Path, given: dict[str, str], said: str
) -> None:
    first = control.initialise(home)
    with pytest.raises(StackError, match=said):
        control.initialise(home, cluster={k: v.replace("FILE", str(file)) for k, v in given.items()})
    assert configuration.load_config(home) == first


def test_a_cluster_on_loopback_needs_an_address_that_its_pods_reach(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "kind", "https://127.0.0.1:6443", "kind")
    with pytest.raises(StackError, match="is an address of this machine alone, at which the cluster's pods do not"):
        pointed_at(None, {"kubeconfig": str(path)})
    assert pointed_at(None, {"kubeconfig": str(path), "address": HERE}) == ClusterConfig(
        kubeconfig=str(path), context="kind", address=HERE
    )


def test_another_file_brings_nothing_of_the_one_before(tmp_path: Path, file: Path) -> None:
    before = ClusterConfig(kubeconfig=str(file), context="prod", address="127.0.0.2")
    other = kubeconfig(tmp_path / "other", "https://127.0.0.1:6443", "prod")
    with pytest.raises(StackError, match="give --address"):
        pointed_at(before, {"kubeconfig": str(other)})


def test_airflow_speaks_to_the_cluster_and_its_pods_find_store_and_mlflow(home: Home, file: Path) -> None:
    control.initialise(home, cluster={"kubeconfig": str(file), "context": "prod", "address": "127.0.0.2"})
    parts, ports = parts_in(home), configuration.load_config(home).ports

    airflow = parts["airflow-scheduler"].environment
    extra = json.loads(airflow["AIRFLOW_CONN_UPDRAFT_KUBERNETES"])["extra"]
    assert extra == {"kube_config_path": str(file), "cluster_context": "prod"}
    assert airflow["UPDRAFT_S3_ENDPOINT"] == f"http://127.0.0.2:{ports.s3}"
    assert airflow["UPDRAFT_MLFLOW_URI"] == f"http://127.0.0.2:{ports.mlflow}"
    assert airflow["NO_PROXY"].split(",")[-1] == "127.0.0.2"
    assert f"127.0.0.2:{ports.s3}" in parts["s3"].argv
    assert parts["mlflow"].argv[parts["mlflow"].argv.index("--host") + 1] == "127.0.0.2"
    assert "127.0.0.2:*" in parts["mlflow"].environment["MLFLOW_SERVER_ALLOWED_HOSTS"]
    assert parts["mlflow"].probe is not None
    assert parts["mlflow"].probe.url == f"http://127.0.0.2:{ports.mlflow}/health"
    # People alone use Airflow: it stays on loopback.
    assert parts["airflow-api"].argv[parts["airflow-api"].argv.index("--host") + 1] == "127.0.0.1"


def test_the_local_node_is_left_out_and_all_else_starts_and_stops_as_ever(home: Home, file: Path) -> None:
    control.initialise(home)
    before = set(parts_in(home))
    control.initialise(home, cluster={"kubeconfig": str(file), "context": "prod", "address": HERE})
    after = parts_in(home)
    assert before - set(after) == {"node"}
    stopped = [part.name for wave in stop_order(tuple(after.values())) for part in wave]
    assert sorted(stopped) == sorted(name for name, part in after.items() if not part.is_task)


# --- the doctor -----------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(Server()) as server:
        yield server


CHECKS = {
    "kubeconfig",
    "cluster",
    "Kubernetes version",
    "cluster's log-in",
    "namespace updraft-default",
    "rights in updraft-default",
    "nodes",
    "GPUs",
}


def checks(home: Home, *arguments: object) -> dict[str, bool]:
    from updraft.stack import doctor as module

    return {check.name: check.ok for check in module._cluster(home, *arguments)}  # type: ignore[arg-type]


def test_the_doctor_looks_at_the_cluster_of_the_home(home: Home, tmp_path: Path, server: Server) -> None:
    path = kubeconfig(tmp_path / "kubeconfig", server.url, "prod", "dev")
    control.initialise(home, cluster={"kubeconfig": str(path), "context": "prod", "address": HERE})
    found = checks(home, None, None)
    assert found == dict.fromkeys(CHECKS, True)


def test_the_doctor_looks_at_a_cluster_before_it_is_used(home: Home, tmp_path: Path, server: Server) -> None:
    path = kubeconfig(tmp_path / "kubeconfig", server.url, "prod", "dev")
    assert checks(home, path, "dev") == dict.fromkeys(CHECKS, True)
    assert checks(home, path, None) == {"kubeconfig": False}
    assert checks(home, tmp_path / "nowhere", None) == {"kubeconfig": False}


def test_a_home_without_a_running_cluster_has_none_to_look_at(home: Home) -> None:
    assert checks(home, None, None) == {}
    control.initialise(home)
    assert checks(home, None, None) == {}


def test_tenants_and_prefix_are_those_of_the_environment(
    home: Home, tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPDRAFT_TENANTS", "vision, speech")
    monkeypatch.setenv("UPDRAFT_NAMESPACE_PREFIX", "ml-")
    server.namespaces = ("ml-vision",)
    found = checks(home, kubeconfig(tmp_path / "kubeconfig", server.url), None)
    assert (found["namespace ml-vision"], found["namespace ml-speech"]) == (True, False)


def test_a_type_of_gpu_that_a_manifest_asks_for_is_missed(tmp_path: Path, server: Server) -> None:
    folder = tmp_path / "checkout" / "jobs" / "large"
    folder.mkdir(parents=True)
    manifest = {"name": "large", "framework": {"name": "pytorch"}, "command": "true", "resources": {"gpus": 1}}
    manifest["resources"] = {"gpus": 1, "gpu_type": "nvidia-h100"}
    (folder / "manifest.yaml").write_text(json.dumps(manifest))
    home = Home(root=tmp_path / "home", repository=tmp_path / "checkout")
    found = checks(home, kubeconfig(tmp_path / "kubeconfig", server.url), None)
    assert [name for name, ok in found.items() if not ok] == ["GPUs"]


def test_the_whole_doctor_tells_of_the_cluster_too(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPDRAFT_UV", "true")  # the true one takes seconds
    found = doctor(home, tmp_path / "nowhere")
    (check,) = [c for c in found if c.name == "kubeconfig"]
    assert check.detail == f"{tmp_path / 'nowhere'} does not exist"
    assert check.advice == "give the path of a file that reaches your cluster with kubectl"


@pytest.fixture
def ledger(home: Home) -> Iterator[Ledger]:
    """With one job, on whatever cluster the home points at."""
    home.root.mkdir(parents=True, exist_ok=True)
    upgrade(url := f"sqlite:///{home.ledger_file}")
    ledger = open_ledger(url)
    ledger.jobs.record(NewJob("digits-1", "default", "digits", "train_model", "digits-1", {}, "ada"))
    yield ledger
    ledger.close()


def test_the_cluster_is_not_left_while_learners_run_on_it(
    home: Home, tmp_path: Path, file: Path, server: Server, ledger: Ledger
) -> None:
    here = kubeconfig(tmp_path / "here", server.url, "here")
    config = control.initialise(home, cluster={"kubeconfig": str(here), "address": HERE})
    other = {"kubeconfig": str(file), "context": "prod", "address": HERE}

    for state in (State.DOWNLOADING, State.DEPLOYING, State.PROCESSING):
        ledger.jobs.move("digits-1", state, "on its way")
        with pytest.raises(StackError, match="digits-1: not ended yet on the cluster so far"):
            control.initialise(home, cluster=other)
        assert control.initialise(home) == config  # no other cluster

    ledger.jobs.move("digits-1", State.HALTED, "halted by ada")
    assert control.initialise(home, cluster=other).cluster != config.cluster


@pytest.fixture
def running(ledger: Ledger) -> None:
    for state in (State.DOWNLOADING, State.DEPLOYING):
        ledger.jobs.move("digits-1", state, "on its way")


def test_the_local_node_is_left_once_it_has_ended(home: Home, file: Path, running: None) -> None:
    control.initialise(home)
    other = {"kubeconfig": str(file), "context": "prod", "address": HERE}
    environment = {**os.environ, MARK_VARIABLE: str(home.root), PART_VARIABLE: "node"}
    with subprocess.Popen([sys.executable, "-c", NODE], env=environment, stdout=subprocess.PIPE) as node:
        assert node.stdout is not None
        assert node.stdout.readline() == b"here\n"  # its supervisor alone was killed
        try:
            with pytest.raises(StackError, match="digits-1: not ended yet on the cluster so far"):
                control.initialise(home, cluster=other)
        finally:
            node.kill()
    assert control.initialise(home, cluster=other).cluster is not None


@pytest.mark.parametrize("answer", [(503, {}), (403, {})])
def test_a_cluster_that_answers_anything_is_not_left(
    home: Home, tmp_path: Path, file: Path, server: Server, running: None, answer: tuple[int, dict[str, str]]
) -> None:
    here = kubeconfig(tmp_path / "here", server.url, "here")
    config = control.initialise(home, cluster={"kubeconfig": str(here), "address": HERE})
    server.answer = lambda *_: answer  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(StackError, match="digits-1: not ended yet"):
        control.initialise(home, cluster={"kubeconfig": str(file), "context": "prod", "address": HERE})
    assert configuration.load_config(home) == config


def test_a_cluster_whose_kubeconfig_was_changed_is_not_taken_for_dead(
    home: Home, tmp_path: Path, file: Path, server: Server, running: None
) -> None:
    here = kubeconfig(tmp_path / "here", server.url, "here")
    control.initialise(home, cluster={"kubeconfig": str(here), "address": HERE})
    here.write_text(here.read_text().replace("here", "renamed"))
    with pytest.raises(StackError, match="cannot be asked whether it is still there"):
        control.initialise(home, cluster={"kubeconfig": str(file), "context": "prod", "address": HERE})


@pytest.mark.parametrize("how", ["gone", "no Kubernetes", "file removed"])
def test_a_cluster_that_is_no_more_holds_nobody_back(
    home: Home, tmp_path: Path, file: Path, running: None, how: str
) -> None:
    with ExitStack() as stack:
        server = stack.enter_context(serving(Server()))
        here = kubeconfig(tmp_path / "here", server.url, "here")
        control.initialise(home, cluster={"kubeconfig": str(here), "address": HERE})
        if how == "gone":
            stack.close()
        elif how == "no Kubernetes":  # somebody else has its address now
            server.answer = lambda *_: (200, ["hello"])  # type: ignore[method-assign,assignment,return-value]
        else:
            here.unlink()
        other = control.initialise(home, cluster={"kubeconfig": str(file), "context": "prod", "address": HERE})
    assert other.cluster == ClusterConfig(kubeconfig=str(file), context="prod", address=HERE)


def test_a_part_that_pods_reach_has_its_port_looked_at_where_it_listens(home: Home, file: Path) -> None:
    config = control.initialise(home, cluster={"kubeconfig": str(file), "context": "prod", "address": HERE})
    assert config.cluster is not None
    elsewhere = config.cluster.model_copy(update={"address": "192.0.2.7"})
    configuration.save_config(home, config.model_copy(update={"cluster": elsewhere}))
    hosts = {name: part.host for name, part in parts_in(home).items() if part.port is not None}
    assert {host for name, host in hosts.items() if name in ("s3", "mlflow")} == {"192.0.2.7"}
    assert {host for name, host in hosts.items() if name not in ("s3", "mlflow")} == {HERE}
