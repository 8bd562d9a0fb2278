"""The real cluster does what it is there for: pods run, are refused, reach each other, and die of real causes."""

from __future__ import annotations

import base64
import json
import subprocess
from typing import Any

import pytest
import urllib3
from cluster_helpers import Pods, eventually
from kubecluster.images import PAUSE_IMAGE, PYTHON_IMAGE, image_names
from kubecluster.machines import NODES
from kubecluster.parts import GPU, GPU_TYPE_LABEL, GPUS
from kubecluster.running import Cluster
from kubernetes import client

pytestmark = pytest.mark.cluster


def test_two_nodes_are_ready_and_say_which_gpus_they_have(own_cluster: Cluster, pods: Pods) -> None:
    nodes = pods.core.list_node().items
    conditions = {n.metadata.name: {c.type: c.status for c in n.status.conditions} for n in nodes}
    assert {name: found["Ready"] for name, found in conditions.items()} == {"node-a": "True", "node-b": "True"}
    assert {
        n.metadata.name: (
            n.metadata.labels[GPU_TYPE_LABEL],
            n.status.allocatable[GPU],
            n.status.node_info.kubelet_version,
        )
        for n in nodes
    } == {name: (gpus.kind, str(gpus.count), "v1.34.4") for name, gpus in GPUS.items()}


def test_who_shows_no_certificate_is_refused(own_cluster: Cluster, pods: Pods) -> None:
    settings = pods.api_client.configuration
    anonymous = urllib3.PoolManager(ca_certs=settings.ssl_ca_cert, cert_reqs="CERT_REQUIRED")
    for path in ("/api/v1/namespaces", "/version", "/healthz"):
        assert anonymous.request("GET", settings.host + path, retries=False).status == 401


def test_a_restricted_pod_runs_and_its_log_and_exit_code_are_seen(pods: Pods) -> None:
    pods.create("three", "id -u; python3 -c 'print(6 * 7)'; exit 3")
    assert pods.terminated("three").exit_code == 3
    assert pods.log("three") == "65532\n42\n"
    assert pods.read("three").status.phase == "Failed"


def test_a_privileged_pod_is_refused(pods: Pods) -> None:
    with pytest.raises(client.ApiException) as refused:
        pods.create("mighty", "true", base={"securityContext": {"privileged": True}})
    assert refused.value.status == 403
    assert 'violates PodSecurity "restricted:latest": privileged' in json.loads(refused.value.body)["message"]


def test_pods_of_a_headless_service_find_each_other_across_nodes(own_cluster: Cluster, pods: Pods) -> None:
    service = {"clusterIP": "None", "selector": {"gang": "g"}, "publishNotReadyAddresses": True}
    pods.core.create_namespaced_service(pods.namespace, {"metadata": {"name": "gang"}, "spec": service})
    serve = "python3 -c \"import socket; s = socket.create_server(('', 9000)); s.accept()[0].sendall(b'from b')\""
    ask = (
        "import socket, sys, time\n"
        "for _ in range(100):\n"
        "    try:\n"
        "        print(socket.create_connection(('b.gang', 9000), 2).recv(99).decode()); sys.exit()\n"
        "    except OSError: time.sleep(0.2)\n"
        "sys.exit('never reached')\n"
    )
    gang: dict[str, Any] = {"labels": {"gang": "g"}, "subdomain": "gang"}
    pods.create("b", serve, hostname="b", nodeName="node-b", **gang)
    pods.create("a", f'python3 -c "{ask}"', hostname="a", nodeName="node-a", **gang)
    assert (pods.terminated("a").exit_code, pods.log("a")) == (0, "from b\n")
    assert pods.read("a").status.host_ip != pods.read("b").status.host_ip


def test_a_name_that_is_not_the_clusters_does_not_exist_and_that_is_told_at_once(
    own_cluster: Cluster, pods: Pods
) -> None:
    script = "import socket, time; t = time.time()\ntry: socket.getaddrinfo('updraft.example', 80)\n"
    script += "except OSError as e: print(e.errno, time.time() - t < 4)  # a resolver asks again after 5"
    pods.create("asks", f'python3 -c "{script}"')
    pods.finished("asks")
    assert pods.log("asks") == "-2 True\n"


def test_gpus_are_handed_out_until_none_is_left(own_cluster: Cluster, pods: Pods) -> None:
    def wanting(count: int) -> dict[str, Any]:
        return {"base": {"resources": {"limits": {GPU: str(count)}}}, "nodeSelector": {GPU_TYPE_LABEL: "nvidia-h100"}}

    pods.create("fits", "sleep 600", **wanting(2))
    assert pods.in_phase("fits", "Running").spec.node_name == "node-b"
    pods.create("waits", "true", **wanting(1))

    def unschedulable() -> str | None:
        conditions = pods.read("waits").status.conditions or []
        return next((c.message for c in conditions if c.reason == "Unschedulable"), None)

    assert "1 Insufficient nvidia.com/gpu" in eventually(unschedulable)
    pods.core.delete_namespaced_pod("fits", pods.namespace, grace_period_seconds=0)
    assert pods.terminated("waits").exit_code == 0


def test_a_container_over_its_memory_limit_is_killed_by_the_kernel(pods: Pods) -> None:
    limits = {"resources": {"limits": {"memory": "64Mi"}, "requests": {"memory": "64Mi"}}}
    pods.create("eats", 'exec python3 -c "b = bytearray(256 * 2**20); print(len(b))"', base=limits)
    ended = pods.terminated("eats")
    assert (ended.reason, ended.exit_code) == ("OOMKilled", 137)


def test_a_pod_with_an_unknown_image_says_so_within_seconds(pods: Pods) -> None:
    pods.create("unknown", "true", base={"image": "updraft.test/nobody-built-this:1"})

    def reason() -> str | None:
        statuses = pods.read("unknown").status.container_statuses or []
        return next((s.state.waiting.reason for s in statuses if s.state.waiting), None)

    assert eventually(lambda: reason() in {"ErrImagePull", "ImagePullBackOff"})


def test_kubectl_comes_with_the_cluster(own_cluster: Cluster, pods: Pods) -> None:
    pods.create("runs", "echo here; sleep 600")
    pods.in_phase("runs", "Running")
    kubectl = [str(own_cluster.layout.kubectl), "-n", pods.namespace]

    def said(*arguments: str) -> str:
        return subprocess.run([*kubectl, *arguments], capture_output=True, text=True, check=True).stdout

    assert said("get", "pods", "-o", "name") == "pod/runs\n"
    assert said("exec", "runs", "--", "python3", "-c", "print(2 + 2)") == "4\n"
    assert said("logs", "runs") == "here\n"


def test_every_request_of_a_client_is_in_the_audit_log(own_cluster: Cluster, pods: Pods) -> None:
    with pytest.raises(client.ApiException):
        pods.read("nobody")
    events = [json.loads(line) for line in own_cluster.layout.audit_log.read_text().splitlines()]
    seen = [
        (e["user"]["username"], e["verb"], e["objectRef"]["resource"], e["responseStatus"]["code"])
        for e in events
        if e.get("objectRef", {}).get("namespace") == pods.namespace and e["objectRef"].get("name") == "nobody"
    ]
    assert seen == [("updraft-admin", "get", "pods", 404)]
    assert not [e for e in events if "requestObject" in e or "responseObject" in e]


def test_a_pod_sees_its_secret_and_no_token_that_it_did_not_ask_for(pods: Pods) -> None:
    secret = {"metadata": {"name": "word"}, "data": {"word": base64.b64encode(b"open\n").decode()}}
    pods.core.create_namespaced_secret(pods.namespace, secret)
    mounted = {"volumeMounts": [{"name": "word", "mountPath": "/word"}]}
    volumes = [{"name": "word", "secret": {"secretName": "word"}}]
    script = "cat /word/word; [ -e /var/run/secrets/kubernetes.io ] || echo none"
    pods.create("reads", script, base=mounted, volumes=volumes, automountServiceAccountToken=False)
    pods.finished("reads")
    assert pods.log("reads") == "open\nnone\n"


def test_an_image_is_loaded_on_every_node(own_cluster: Cluster) -> None:
    for node in NODES:
        assert {PAUSE_IMAGE, PYTHON_IMAGE} <= image_names(own_cluster.layout, node)
