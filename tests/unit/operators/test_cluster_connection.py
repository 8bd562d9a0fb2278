"""The connection that names the cluster: what is wrong with it is told, at submission too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from unit.kubernetes.api_server import kubeconfig
from unit.operators.airflow_fakes import Platform

from updraft.exceptions import RefusedError, UnavailableError
from updraft.kubernetes.clients import async_client, check_connection, core_api
from updraft.lifecycle import State
from updraft.settings import settings

Make = Callable[..., Platform]
CONNECTION = "AIRFLOW_CONN_UPDRAFT_KUBERNETES"


def connect(monkeypatch: pytest.MonkeyPatch, **extra: str) -> None:
    monkeypatch.setenv(CONNECTION, json.dumps({"conn_type": "kubernetes", "extra": extra}))


def test_file_and_context_of_the_connection_lead_to_the_server(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kubeconfig(environment / "k", "http://127.0.0.1:7", "prod", "dev")
    connect(monkeypatch, kube_config_path=str(path), cluster_context="dev")
    check_connection(settings())
    assert core_api(settings()).api_client.configuration.host == "http://127.0.0.1:7"


def test_the_only_context_is_meant_though_kubectl_never_used_it(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kubeconfig(environment / "k", "http://127.0.0.1:7", **{"current-context": ""})
    connect(monkeypatch, kube_config_path=str(path), cluster_context="")
    check_connection(settings())
    assert core_api(settings()).api_client.configuration.host == "http://127.0.0.1:7"
    assert asyncio.run(_host_for_a_loop()) == "http://127.0.0.1:7"


def test_of_several_contexts_none_is_taken_because_kubectl_used_it_last(
    environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kubeconfig(environment / "k", "http://127.0.0.1:7", "prod", "dev")
    connect(monkeypatch, kube_config_path=str(path))
    with pytest.raises(UnavailableError, match="holds 2 contexts"):
        core_api(settings())
    with pytest.raises(UnavailableError, match="holds 2 contexts"):
        asyncio.run(_host_for_a_loop())


@pytest.mark.parametrize("form", ["text", "document"])
def test_a_kubeconfig_inside_the_connection_is_read_as_a_file_is(
    environment: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    text = kubeconfig(environment / "k", "http://127.0.0.1:7", "prod", "dev").read_text()
    inside: Any = {"kube_config": text if form == "text" else yaml.safe_load(text)}
    connect(monkeypatch, **inside)
    with pytest.raises(RefusedError, match=r"kube_config of Airflow's connection holds 2 contexts \(dev, prod\)"):
        check_connection(settings())
    with pytest.raises(UnavailableError, match="holds 2 contexts"):
        asyncio.run(_host_for_a_loop())
    connect(monkeypatch, **inside, cluster_context="dev")
    check_connection(settings())
    assert asyncio.run(_host_for_a_loop()) == "http://127.0.0.1:7"


def test_what_is_no_kubeconfig_is_not_repeated(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, kube_config="token: hush")
    with pytest.raises(RefusedError, match="holds no context") as told:
        check_connection(settings())
    assert "hush" not in str(told.value)


async def _host_for_a_loop() -> str:
    async with await async_client(settings().kubernetes_conn_id) as api:
        return str(api.configuration.host)


def test_a_file_that_is_not_there_is_told(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, kube_config_path=str(environment / "nowhere"))
    with pytest.raises(RefusedError, match="nowhere"):
        check_connection(settings())


def test_a_file_that_is_away_for_a_moment_ends_no_job(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, kube_config_path=str(environment / "nowhere"))
    with pytest.raises(UnavailableError, match="does not lead to a cluster"):
        core_api(settings())


def test_a_job_is_refused_while_the_connection_names_no_context(
    make_platform: Make, environment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kubeconfig(environment / "k", "http://127.0.0.1:7", "prod", "dev")
    platform: Any = make_platform()
    connect(monkeypatch, kube_config_path=str(path))
    platform.run_all()
    assert platform.job.state is State.FAILED
    assert platform.job.reason == (
        f"kubeconfig: {path} holds 2 contexts (dev, prod), and none is chosen; name the one to use: --context NAME, or "
        "cluster_context in Airflow's connection"
    )


@pytest.mark.parametrize(
    ("verb", "status", "said"),
    [
        ("review rules", 401, "does not accept the platform's token or certificate (401); it may have run out"),
        ("create namespace", 403, "namespace updraft-default does not exist, and the platform may not make it"),
    ],
)
def test_a_job_is_refused_by_a_cluster_that_cannot_run_it(
    make_platform: Make, verb: str, status: int, said: str
) -> None:
    platform: Any = make_platform()
    platform.cluster.refuse = lambda asked, name: status if asked == verb else None
    platform.run_all()
    assert platform.job.state is State.FAILED
    assert said in platform.job.reason
    assert platform.cluster.created == []
    assert State.QUEUED not in {t.to_state for t in platform.ledger.jobs.transitions(platform.job.id)}
