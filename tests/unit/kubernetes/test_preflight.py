"""Both the doctor and a job's admission name what a cluster lacks, and what to do about it."""

from __future__ import annotations

import base64
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from unit.kubernetes.api_server import NODE, Cluster, kubeconfig, own_certificate, serving

from updraft.exceptions import RefusedError, UnavailableError
from updraft.kubernetes import calls, preflight, rbac
from updraft.kubernetes.clients import cluster_api
from updraft.kubernetes.kubeconfig import Chosen, choose, client_of
from updraft.kubernetes.preflight import PreflightFinding
from updraft.taints import Toleration

Serve = Callable[..., Cluster]


@pytest.fixture
def serve() -> Iterator[Serve]:
    with ExitStack() as stack:
        yield lambda certificate=None, **facts: stack.enter_context(serving(Cluster(**facts), certificate))


def api(cluster: Cluster, tmp_path: Path, **more: Any) -> Any:
    return cluster_api(client_of(choose(kubeconfig(tmp_path / "kubeconfig", cluster.url, **more))))


def examined(
    cluster: Cluster, tmp_path: Path, gpu_types: dict[str, str] | None = None, **more: Any
) -> list[PreflightFinding]:
    return preflight.examine(api(cluster, tmp_path, **more), ["updraft-default"], gpu_types)


def bad(findings: list[PreflightFinding]) -> list[tuple[str, str]]:
    return [(finding.name, finding.detail) for finding in findings if not finding.ok]


# --- kubeconfig -----------------------------------------------------------------------------------------------------


def test_the_only_context_is_meant(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "k", "https://10.0.0.1:6443", "prod")
    assert choose(path) == choose(path, "prod") == Chosen(path, "prod", "https://10.0.0.1:6443")


def test_of_several_contexts_one_has_to_be_chosen_whatever_kubectl_last_used(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path / "k", "https://10.0.0.1:6443", "prod", "dev")
    with pytest.raises(RefusedError, match=r"holds 2 contexts \(dev, prod\), and none is chosen; name the one to use"):
        choose(path)
    assert choose(path, "dev").context == "dev"


def test_what_is_wrong_with_a_kubeconfig_is_told_and_no_secret_of_it(tmp_path: Path) -> None:
    def said(path: Path, context: str | None = None) -> str:
        with pytest.raises(RefusedError) as caught:
            client_of(choose(path, context))
        assert "hush" not in str(caught.value)
        return str(caught.value)

    path = tmp_path / "k"
    assert said(path) == (
        f"kubeconfig: {path} does not exist; give the path of a file that reaches your cluster with kubectl"
    )
    assert "cannot be read" in said(tmp_path)
    for text in ("hush: [", "hush", "[hush]", '{"contexts": [{"hush": 1}]}', '{"contexts": "hush"}'):
        path.write_text(text)
        assert "is no kubeconfig" in said(path)
    path.write_bytes(b"\xff\xfehush")
    assert "is no kubeconfig" in said(path)
    path.write_text("{}")
    assert "holds no context" in said(path)
    kubeconfig(path, "https://c", "prod", token="hush")
    assert "has no context 'dev'; it holds prod" in said(path, "dev")
    kubeconfig(path, "", "prod", token="hush")
    assert "names the cluster 'c', which has no server's address" in said(path)
    kubeconfig(path, "https://c", "prod", users=[{"name": "u", "user": {"client-certificate": "/nowhere"}}])
    assert "cannot be used" in said(path)


# --- the doctor -----------------------------------------------------------------------------------------------------


def test_a_willing_cluster_passes_every_check(serve: Serve, tmp_path: Path) -> None:
    cluster = serve()
    assert examined(cluster, tmp_path, {"nvidia-a100": "jobs/a"}) == [
        PreflightFinding("cluster", True, f"{cluster.url} answers"),
        PreflightFinding("Kubernetes version", True, "v1.34.4"),
        PreflightFinding("cluster's log-in", True, "accepted"),
        PreflightFinding("namespace updraft-default", True, "exists"),
        PreflightFinding("rights in updraft-default", True, "has all 17 that jobs need"),
        PreflightFinding("nodes", True, "1"),
        PreflightFinding("GPUs", True, "2 x nvidia-a100"),
    ]


def test_an_address_where_nobody_listens(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        cluster = Cluster(url=f"http://127.0.0.1:{taken.getsockname()[1]}")
        (finding,) = examined(cluster, tmp_path)
    assert (finding.name, finding.ok) == ("cluster", False)
    assert finding.detail.startswith(f"{cluster.url} cannot be reached")
    assert "correct the server's address" in finding.advice


def test_a_token_that_ran_out(serve: Serve, tmp_path: Path) -> None:
    (finding,) = examined(serve(), tmp_path, token="old")
    assert (finding.name, finding.ok) == ("cluster's log-in", False)
    assert "does not accept the token" in finding.detail
    assert "kubectl create token updraft" in finding.advice


def test_a_cluster_that_is_ill(serve: Serve, tmp_path: Path) -> None:
    cluster = serve(down=True)
    assert bad(examined(cluster, tmp_path)) == [("cluster", f"{cluster.url} answers 503")]


def test_a_certificate_that_nobody_vouches_for(serve: Serve, tmp_path: Path) -> None:
    certificate = own_certificate(tmp_path / "server.pem")
    cluster = serve(certificate)
    (finding,) = examined(cluster, tmp_path)
    assert (finding.name, finding.detail) == ("cluster", f"the certificate of {cluster.url} is not trusted")
    assert "certificate-authority-data" in finding.advice
    with pytest.raises(UnavailableError, match="no safe connection could be made"):
        calls.call("list nodes", api(cluster, tmp_path).list_node)
    known = {
        "certificate-authority-data": base64.b64encode(
            certificate.read_bytes().split(b"-----END PRIVATE KEY-----")[1]
        ).decode()
    }
    assert bad(examined(cluster, tmp_path, trust=known)) == []


@pytest.mark.parametrize("answer", [(200, ["hello"]), (404, {}), (404, ["<html>"]), (405, {}), (400, {"message": "?"})])
def test_a_server_that_is_no_cluster(serve: Serve, tmp_path: Path, answer: tuple[int, Any]) -> None:
    cluster = serve()
    cluster.answer = lambda *_: answer  # type: ignore[method-assign,assignment]
    assert bad(examined(cluster, tmp_path)) == [("cluster", f"{cluster.url} does not answer as Kubernetes does")]


@pytest.mark.parametrize("path", ["/version/", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"])
def test_a_cluster_that_tells_nothing_of_itself(serve: Serve, tmp_path: Path, path: str) -> None:
    cluster = serve()
    willing = cluster.answer
    cluster.answer = lambda method, asked, *more: (  # type: ignore[method-assign]
        (403, {"message": "forbidden"}) if asked == path else willing(method, asked, *more)
    )
    (finding,) = [found for found in examined(cluster, tmp_path) if not found.ok]
    assert finding.detail == f"{cluster.url} does not even tell its version, or what the platform may do (403)"
    assert "ClusterRoles system:discovery and system:basic-user" in finding.advice


@pytest.mark.parametrize("version", ["v1.28.15", "v1.28.3-gke.100", "v1.9.0"])
def test_a_kubernetes_that_is_too_old(serve: Serve, tmp_path: Path, version: str) -> None:
    said = f"Kubernetes {version} is too old: sidecars need 1.29 or later"
    assert bad(examined(serve(version=version), tmp_path)) == [("Kubernetes version", said)]


@pytest.mark.parametrize("version", ["v1.29.0", "v1.34.4-local", "v1.100.1+k3s1", "v2.0.0", "unheard of"])
def test_a_kubernetes_that_will_do(version: str) -> None:
    assert preflight.too_old(version) is None


def test_a_node_that_is_too_old(serve: Serve, tmp_path: Path) -> None:
    info = {**NODE["status"]["nodeInfo"], "kubeletVersion": "v1.27.1"}
    old = {**NODE, "metadata": {"name": "old"}, "status": {**NODE["status"], "nodeInfo": info}}
    cluster = serve(nodes=[NODE, old])
    assert bad(examined(cluster, tmp_path)) == [
        ("nodes", "too old for sidecars, which need 1.29 or later: old (v1.27.1)")
    ]
    with pytest.raises(RefusedError, match=r"nodes too old for sidecars, .*: old \(v1.27.1\); upgrade their kubelets"):
        required(cluster, tmp_path)
    closed = {"taints": [{"key": "virtual-kubelet.io/provider", "effect": "NoSchedule"}]}
    silent = {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]}  # it will be ready again
    cluster.nodes = [NODE, {**old, "spec": silent}, {**old, "spec": closed}]
    with pytest.raises(RefusedError, match=r"later: old \(v1.27.1\); upgrade"):
        required(cluster, tmp_path)
    cluster.nodes = [NODE, {**old, "spec": closed}]
    required(cluster, tmp_path)
    tolerated = [Toleration("virtual-kubelet.io/provider")]
    with pytest.raises(RefusedError, match=r"later: old"):
        preflight.require(api(cluster, tmp_path), "updraft-default", tolerations=tolerated)
    cluster.nodes = [NODE, {**old, "spec": {"unschedulable": True}}]  # as the advice says
    assert bad(examined(cluster, tmp_path)) == []
    required(cluster, tmp_path)


def test_nodes_that_learners_may_not_lie_on_are_named(serve: Serve, tmp_path: Path) -> None:
    def tainted(name: str, key: str) -> dict[str, Any]:
        return {**NODE, "metadata": {"name": name}, "spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}}

    cp = tainted("cp", "node-role.kubernetes.io/control-plane")
    nodes = [NODE, cp, tainted("gpu", "nvidia.com/gpu"), tainted("silent", "node.kubernetes.io/unreachable")]
    only = "for learners only where UPDRAFT_TOLERATIONS names the taint: cp (node-role.kubernetes.io/control-plane)"
    found = examined(serve(nodes=nodes), tmp_path)
    assert [(each.ok, each.detail) for each in found if each.name == "nodes"] == [(True, f"4; {only}")]
    assert bad(examined(serve(nodes=[cp]), tmp_path)) == [("nodes", f"1; {only}")]


def test_a_namespace_that_is_missing(serve: Serve, tmp_path: Path) -> None:
    cluster = serve(namespaces=())
    assert bad(examined(cluster, tmp_path)) == [("namespace updraft-default", "does not exist")]
    cluster.forbidden.clear()
    assert bad(examined(cluster, tmp_path)) == []


def test_a_namespace_in_which_nothing_was_granted_may_as_well_be_missing(serve: Serve, tmp_path: Path) -> None:
    everything = {*rbac.each(rbac.NAMESPACED), ("create", "", "namespaces")}
    cluster = serve(forbidden=everything)
    (namespace, rights) = [f for f in examined(cluster, tmp_path) if not f.ok]
    assert namespace.detail == "does not exist, or nothing was granted there"
    assert "kubectl apply -k deploy/kustomize" in namespace.advice
    assert rights.detail.startswith("may not create pods, delete pods, ")
    with pytest.raises(RefusedError, match="namespace updraft-default does not exist, or nothing was granted"):
        required(cluster, tmp_path)


@pytest.mark.parametrize(
    ("right", "said"),
    [
        (("create", "", "pods"), "may not create pods"),
        (("get", "", "pods/log"), "may not get pods/log"),
        (("create", "networking.k8s.io", "networkpolicies"), "may not create networkpolicies.networking.k8s.io"),
    ],
)
def test_a_right_that_is_missing(serve: Serve, tmp_path: Path, right: tuple[str, str, str], said: str) -> None:
    cluster = serve()
    cluster.forbidden.add(right)
    (finding,) = [f for f in examined(cluster, tmp_path) if not f.ok]
    assert (finding.name, finding.detail) == ("rights in updraft-default", said)
    assert "kubectl apply -k deploy/kustomize" in finding.advice


def test_a_right_that_few_jobs_need_is_told_and_stops_nobody(serve: Serve, tmp_path: Path) -> None:
    cluster = serve()
    cluster.forbidden |= {("create", "policy", "poddisruptionbudgets"), ("get", "", "persistentvolumeclaims")}
    cluster.forbidden.add(("get", "", "serviceaccounts"))
    (rights,) = [found for found in examined(cluster, tmp_path) if found.name.startswith("rights")]
    assert rights.ok
    assert rights.detail == (
        "may not get persistentvolumeclaims, get serviceaccounts, create poddisruptionbudgets.policy: "
        "only jobs with data on volumes need it; only jobs that name a service account need it; "
        "only UPDRAFT_DISRUPTION_BUDGET=true needs it"
    )


def test_nodes_that_may_not_be_listed(serve: Serve, tmp_path: Path) -> None:
    cluster = serve()
    cluster.forbidden.add(("list", "", "nodes"))
    assert [name for name, _ in bad(examined(cluster, tmp_path))] == ["nodes"]


def test_pods_of_others_that_may_not_be_listed_are_told_and_stop_nobody(serve: Serve, tmp_path: Path) -> None:
    cluster = serve()
    cluster.forbidden_on_cluster.add(("list", "", "pods"))
    (found,) = [each for each in examined(cluster, tmp_path) if each.name == "other pods"]
    assert found.ok
    assert "what other workloads take is not counted" in found.detail


def test_a_type_of_gpu_that_no_node_has(serve: Serve, tmp_path: Path) -> None:
    (finding,) = [f for f in examined(serve(), tmp_path, {"v100": "jobs/a, jobs/b"}) if not f.ok]
    assert finding.detail == "no node has v100 (asked for by jobs/a, jobs/b); there is 2 x nvidia-a100"
    assert "kubectl label node NODE updraft.dev/gpu-type=TYPE" in finding.advice


# --- at submission --------------------------------------------------------------------------------------------------


def required(cluster: Cluster, tmp_path: Path, **more: Any) -> None:
    preflight.require(api(cluster, tmp_path, **more), "updraft-default")


def test_a_willing_cluster_costs_four_requests(serve: Serve, tmp_path: Path) -> None:
    cluster = serve()
    required(cluster, tmp_path)
    assert cluster.requests == [
        "POST /apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
        "GET /version/",
        "GET /api/v1/namespaces/updraft-default",
        "GET /api/v1/nodes?resourceVersion=0",
    ]


def test_rules_that_the_cluster_cannot_list_are_asked_for_one_by_one(serve: Serve, tmp_path: Path) -> None:
    cluster = serve(whole_rules=False)
    required(cluster, tmp_path)
    cluster.forbidden.add(("create", "", "services"))
    with pytest.raises(RefusedError, match="the platform may not create services in namespace updraft-default; ask"):
        required(cluster, tmp_path)


@pytest.mark.parametrize(
    ("facts", "token", "said"),
    [
        ({}, "old", r"does not accept the platform's token or certificate \(401\); it may have run out: put a valid"),
        (
            {"version": "v1.27.0"},
            "good",
            "Kubernetes v1.27.0 is too old: sidecars need 1.29 or later; run jobs on a newer",
        ),
        (
            {"namespaces": ()},
            "good",
            "namespace updraft-default does not exist, and the platform may not make it; `kubectl",
        ),
        (
            {"forbidden": {("watch", "", "pods"), ("list", "", "nodes"), ("create", "", "namespaces")}},
            "good",
            "the platform may not watch pods, list nodes in namespace updraft-default; ask the cluster's administrator",
        ),
    ],
)
def test_a_job_is_refused_with_what_to_do(
    serve: Serve, tmp_path: Path, facts: dict[str, Any], token: str, said: str
) -> None:
    with pytest.raises(RefusedError, match=said):
        required(serve(**facts), tmp_path, token=token)


def test_a_cluster_that_is_away_is_waited_for(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        cluster = Cluster(url=f"http://127.0.0.1:{taken.getsockname()[1]}")
        ask = api(cluster, tmp_path).create_self_subject_rules_review
        with pytest.raises(UnavailableError, match=f"nothing answers at {cluster.url}"):
            calls.call("tell what the platform may do", ask, {}, sleep=lambda _: None)


def test_a_token_that_runs_out_later_costs_no_job_its_life(serve: Serve, tmp_path: Path) -> None:
    core = api(serve(), tmp_path, token="old")
    with pytest.raises(UnavailableError, match=r"does not accept the platform's token \(401\)"):
        calls.call("list nodes", core.list_node)
