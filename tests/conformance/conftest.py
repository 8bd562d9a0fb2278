"""A `cluster` for the conformance tests: a local node of their own, or a real cluster.

UPDRAFT_TEST_KUBECONFIG names the real one; that of `make cluster` is `.updraft/cluster/kubeconfig`. Its image with
python3 and /bin/sh is UPDRAFT_TEST_IMAGE_PREFIX/python:1. There each test stays inside a namespace that it makes, and
those about the local node, its faults and its restarts do not run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import urllib3
from conformance_helpers import eventually
from kubecluster.target import named_target
from kubernetes import client, config

CATALOGUE = '[images."updraft/shell:1"]\n\n[images."updraft/unbuilt:1"]\npackage = "updraft-learner"\n'


class LocalNode:
    """A local node process."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder, self._arguments = folder, arguments
        self.token = uuid.uuid4().hex
        self.port = 0
        (folder / "token").write_text(self.token)
        (folder / "catalogue.toml").write_text(CATALOGUE)
        self.process = self._start()

    @property
    def state_dir(self) -> Path:
        return self.folder / "state"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "updraft_localnode", "--state-dir", str(self.state_dir)]
        command += ["--port", str(self.port), "--token-file", str(self.folder / "token")]
        command += ["--catalogue", str(self.folder / "catalogue.toml"), "--images-dir", str(self.folder / "images")]
        command += ["--restart-backoff-seconds", "0.2", *self._arguments]
        environment = {**os.environ, "UPDRAFT_TEST_LEAK": "must not reach a container"}
        log = (self.folder / "log").open("a")
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("local node: "), (self.folder / "log").read_text()
        self.port = int(line.rpartition(":")[2])
        return process

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.process = self._start()

    def stop(self) -> int:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(15)

    def api_client(self, token: str | None = None) -> client.ApiClient:
        settings = client.Configuration(host=self.url)
        settings.api_key = {"authorization": f"Bearer {token or self.token}"}
        return client.ApiClient(settings)


@dataclass
class Cluster:
    """Where a test runs: an API client and a namespace of its own."""

    api_client: client.ApiClient
    namespace: str
    image: str
    node: LocalNode | None

    @property
    def core(self) -> client.CoreV1Api:
        return client.CoreV1Api(self.api_client)

    def async_client(self) -> Any:
        """A client for asyncio with the same rights; to be made in an event loop and closed."""
        from kubernetes_asyncio import client as async_client

        given = self.api_client.configuration
        settings = async_client.Configuration(host=given.host)
        settings.ssl_ca_cert, settings.cert_file, settings.key_file = given.ssl_ca_cert, given.cert_file, given.key_file
        if given.api_key:
            settings.api_key = {"BearerToken": given.api_key["authorization"]}
        return async_client.ApiClient(settings)

    def pod(self, name: str, script: str, **spec: Any) -> dict[str, Any]:
        """A pod with one container `base` that runs a shell script."""
        labels = spec.pop("labels", {})
        container = {"name": "base", "image": self.image, "command": ["/bin/sh", "-c", script], **spec.pop("base", {})}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels},
            "spec": {"restartPolicy": "Never", "containers": [container], **spec},
        }

    def create(self, body: dict[str, Any]) -> Any:
        return self.core.create_namespaced_pod(self.namespace, body)

    def read(self, name: str) -> Any:
        return self.core.read_namespaced_pod(name, self.namespace)

    def wait_phase(self, name: str, *phases: str) -> Any:
        def reached() -> Any:
            pod = self.read(name)
            return pod if pod.status.phase in phases else None

        return eventually(reached)

    def finished(self, name: str) -> Any:
        return self.wait_phase(name, "Succeeded", "Failed")

    def log(self, name: str, **options: Any) -> str:
        # Preloaded, this client's answer is the text of a bytes literal.
        answer = self.core.read_namespaced_pod_log(name, self.namespace, _preload_content=False, **options)
        return str(answer.data.decode())

    def faults(self, method: str = "GET", body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The fault lab of the local node: what it answers."""
        assert self.node is not None
        headers = {"Authorization": f"Bearer {self.node.token}"}
        answer = urllib3.PoolManager().request(
            method, f"{self.node.url}/faults", json=body, headers=headers, retries=False
        )
        assert answer.status == 200, answer.data
        return dict(answer.json())

    def fault(self, kind: str, **body: Any) -> dict[str, Any]:
        """Asks for a fault; what it did."""
        return dict(self.faults("POST", {"kind": kind, **body})["did"])

    def gone(self, name: str) -> bool:
        try:
            self.read(name)
        except client.ApiException as exc:
            return exc.status == 404
        return False


@pytest.fixture(scope="session")
def _target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[client.ApiClient, str, LocalNode | None]]:
    named = named_target()
    if named is not None:
        if named.own is not None:
            named.own.load_python_image()
        yield config.new_client_from_config(str(named.kubeconfig)), named.python_image, None
        return
    node = LocalNode(tmp_path_factory.mktemp("localnode"), "--cpus", "4", "--memory", "8GiB", "--gpus", "nvidia-a100=2")
    try:
        yield node.api_client(), "updraft/shell:1", node
    finally:
        node.stop()


@pytest.fixture
def cluster(_target: tuple[client.ApiClient, str, LocalNode | None]) -> Iterator[Cluster]:
    api_client, image, node = _target
    namespace = f"updraft-test-{uuid.uuid4().hex[:8]}"
    core = client.CoreV1Api(api_client)
    core.create_namespace({"metadata": {"name": namespace}})
    if node is None:  # pods are refused until a controller has made it
        eventually(lambda: core.list_namespaced_service_account(namespace).items)
    try:
        yield Cluster(api_client, namespace, image, node)
    finally:
        core.delete_collection_namespaced_pod(namespace, grace_period_seconds=0)
        core.delete_namespace(namespace)


@pytest.fixture
def local_cluster(cluster: Cluster) -> Cluster:
    """For what a real cluster does otherwise, or cannot be asked to do."""
    only_local()
    return cluster


@pytest.fixture
def free_cluster(cluster: Cluster) -> Cluster:
    """For what reaches beyond the test's namespace: nobody wants that on a cluster of their own."""
    named = named_target()
    if named is not None and named.own is None:
        pytest.skip("it is not confined to a namespace")
    return cluster


@pytest.fixture
def known_cluster(cluster: Cluster) -> Cluster:
    """For what is compared to the letter: other versions, plug-ins and admission add fields of their own."""
    named = named_target()
    if named is not None and named.own is None:
        pytest.skip("what was recorded are the answers of the cluster of `make cluster`")
    return cluster


def only_local() -> None:
    if named_target() is not None:
        pytest.skip("it is about the local node, its faults or its restarts")


@pytest.fixture(scope="module")
def _lab_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNode]:
    only_local()
    node = LocalNode(tmp_path_factory.mktemp("lab"), "--cpus", "8", "--memory", "8GiB", "--shutdown-grace-seconds", "1")
    try:
        yield node
    finally:
        node.stop()


@pytest.fixture
def lab(_lab_node: LocalNode) -> Iterator[Cluster]:
    """A local node whose nodes the test may lose. Afterwards it is whole and empty."""
    namespace = f"t-{uuid.uuid4().hex[:8]}"
    cluster = Cluster(_lab_node.api_client(), namespace, "updraft/shell:1", _lab_node)
    cluster.core.create_namespace({"metadata": {"name": namespace}})
    try:
        yield cluster
    finally:
        cluster.faults("DELETE")
        cluster.core.delete_collection_namespaced_pod(namespace, grace_period_seconds=0)
        cluster.core.delete_namespace(namespace)
        eventually(lambda: len(cluster.core.list_node().items) == 1 and not cluster.faults()["unseen_pods"])


@pytest.fixture
def own_node(tmp_path: Path) -> Iterator[Cluster]:
    """A local node that the test may kill. Its namespace is `default`."""
    only_local()
    node = LocalNode(tmp_path, "--shutdown-grace-seconds", "1")
    try:
        yield Cluster(node.api_client(), "default", "updraft/shell:1", node)
    finally:
        if node.process.poll() is None:
            node.stop()
