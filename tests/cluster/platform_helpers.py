"""A whole platform whose learners are pods of the cluster that is tested on, and a witness of what it makes there.

On the cluster of `make cluster` Airflow, MLflow and the object store are processes of this machine, started with the
command that the documentation names; they speak to the cluster as the account of deploy/kustomize. On somebody's
cluster all of it lies in one namespace (`namespace_platform`). Called by the fixtures of the cluster tests.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import account_helpers
import namespace_platform
from account_helpers import NAMESPACE, Account
from cluster_helpers import eventually
from kubecluster.running import Cluster, Say
from kubecluster.target import Target
from kubernetes import client, config
from system_helpers import PREPARED, REPOSITORY, Stack, pretty
from urllib3.exceptions import HTTPError

from updraft.allocation import Node
from updraft.client import Client, load_config
from updraft.kubernetes.capacity import capacity_from_nodes
from updraft.stack import control
from updraft.stack.layout import Home
from updraft_learner.contract import LABEL_JOB, LABEL_LEARNER, LABEL_ROLE

UP_SECONDS = 900  # the first start builds MLflow's environment
DOWN_SECONDS = 180
END_SECONDS = 900  # of a job, beside all the others on two cores
LOOK_SECONDS = 0.4
SETTINGS = {
    "UPDRAFT_NODE_LOST_SECONDS": "4",  # the default is 30, and tests lose many a node
    "UPDRAFT_DEPLOY_TIMEOUT_SECONDS": "120",  # of 600: a test waits for its end
    # Of 900. A runtime may lose a program's end, and its pod is there for as long.
    "UPDRAFT_STORE_GRACE_SECONDS": "120",
    "UPDRAFT_TRUSTED_TENANTS": "true",  # one test adds tenants
    "UPDRAFT_LEAST_RUN_MINUTES": "0",
    "UPDRAFT_RESIZE_MINUTES": "0.1",
    "UPDRAFT_NODE_CACHE_CLAIM": "node-cache",  # a test makes it; only jobs that stream or mount data use it
}
TENANTS_FILE = "tenants.yaml"  # in the platform's home
ONE_TENANT = "administrators: [admin]\ntenants: {default: {}}\n"
PROGRAMS = Path(__file__).parent / "programs"


class Witness:
    """Looks at the namespace of jobs all the time, as administrator, and remembers each object as it last was."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        self._namespace = namespace
        api_client = config.new_client_from_config(str(kubeconfig))
        self._plain = api_client.sanitize_for_serialization
        self.core = client.CoreV1Api(api_client)
        network, policy = client.NetworkingV1Api(api_client), client.PolicyV1Api(api_client)
        self._lists = {
            "pod": self.core.list_namespaced_pod,
            "secret": self.core.list_namespaced_secret,
            "service": self.core.list_namespaced_service,
            "networkpolicy": network.list_namespaced_network_policy,
            "poddisruptionbudget": policy.list_namespaced_pod_disruption_budget,
        }
        self._seen: dict[tuple[str, str], dict[str, Any]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="witness", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            try:
                for kind, found in self._listed(LABEL_JOB):
                    self._seen |= {(kind, item["metadata"]["uid"]): item for item in found}
            except (HTTPError, client.ApiException, AttributeError):  # a test has ended the API server
                continue

    def _now(self, selector: str | None = LABEL_JOB) -> dict[str, list[dict[str, Any]]]:
        return dict(self._listed(selector))

    def _listed(self, selector: str | None) -> Iterator[tuple[str, list[dict[str, Any]]]]:
        # The client's generated code cannot read a few valid answers (such as an empty image name in a status).
        for kind, ask in self._lists.items():
            yield kind, json.loads(ask(self._namespace, label_selector=selector, _preload_content=False).data)["items"]

    def _of(self, job_id: str) -> list[tuple[str, dict[str, Any]]]:
        found = [(kind, item) for (kind, _), item in list(self._seen.items())]
        return [(kind, item) for kind, item in found if item["metadata"]["labels"][LABEL_JOB] == job_id]

    def kinds(self, job_id: str) -> set[str]:
        """What was made for a job, by kind."""
        return {kind for kind, _ in self._of(job_id)}

    def pods(self, job_id: str, role: str = "train") -> list[dict[str, Any]]:
        """Every pod of a job's role that was seen, in the order of their making, then by learner."""
        pods = [item for kind, item in self._of(job_id) if kind == "pod" and _label(item, LABEL_ROLE) == role]
        return sorted(pods, key=lambda pod: (pod["metadata"]["creationTimestamp"], _label(pod, LABEL_LEARNER)))

    def nodes(self, job_id: str) -> list[str]:
        """Where its training pods were."""
        return [pod["spec"].get("nodeName", "") for pod in self.pods(job_id)]

    def running(self, job_id: str) -> Any:
        """The name of a pod whose program runs now, if one does."""
        for pod in self._now(f"{LABEL_JOB}={job_id}")["pod"]:
            for status in pod["status"].get("containerStatuses") or ():
                if (
                    status["name"] == "base"
                    and "running" in status["state"]
                    and "deletionTimestamp" not in pod["metadata"]
                ):
                    return pod["metadata"]["name"]
        return None

    def nodes_there(self) -> list[dict[str, Any]]:
        """Of the whole cluster, as its API lists them."""
        answer: list[dict[str, Any]] = json.loads(self.core.list_node(_preload_content=False).data)["items"]
        return answer

    def left(self, job_id: str) -> list[str]:
        """Of a job that has ended: kind and name of whatever is still there."""
        now = self._now(f"{LABEL_JOB}={job_id}")
        return [f"{kind} {item['metadata']['name']}" for kind, items in now.items() for item in items]


def open_nodes(nodes: Sequence[Mapping[str, Any]]) -> list[Node]:
    """Neither cordoned nor tainted, such as those of a control plane are. In the form of the API."""
    return [node for node in capacity_from_nodes(nodes).nodes if node.ready and not node.gpus_only]


def cpus_apart(nodes: Sequence[Node]) -> float | None:
    """What each of two learners has to want so that no node takes both; None where one of them would find no place."""
    largest, *others = sorted((node.cpus for node in nodes), reverse=True)
    wanted = largest / 2 + 0.1
    return wanted if any(cpus >= wanted for cpus in others) else None


def _label(item: dict[str, Any], name: str) -> str:
    return str(item["metadata"]["labels"].get(name, ""))


@dataclass(frozen=True)
class Platform(Stack):
    """With the namespace of the cluster that its learners run in."""

    namespace: str
    witness: Witness = field(repr=False)

    def end(self, job_id: str) -> Any:
        return self.client.wait(job_id, timeout_seconds=END_SECONDS)

    def completed(self, job_id: str) -> Any:
        detail = self.end(job_id)
        assert detail.state == "COMPLETED", self.explained(job_id)
        assert self.witness.nodes(job_id), f"no pod of {job_id} was ever seen on the cluster"
        return detail

    def ended(self, job_id: str) -> tuple[str, str | None, list[str | None]]:
        """Of a job that failed: class and label of its verdict, and the labels of all attempts."""
        detail = self.end(job_id)
        assert detail.state == "FAILED", self.explained(job_id)
        verdict = detail.verdict["details"]
        return verdict["cause"], verdict["label"], [a.label for a in self.client.attempts(job_id).attempts]

    def explained(self, job_id: str) -> str:
        """For the report of a test that fails."""
        attempts = self.client.attempts(job_id).model_dump_json(indent=1)
        return f"{pretty(self.client.job(job_id))}\n{attempts}"

    def nothing_is_left(self, job_id: str) -> None:
        """Whatever was made for it is gone within a minute; the cluster's own collector takes some seconds."""
        eventually(lambda: not self.witness.left(job_id))

    @property
    def nodes(self) -> list[Node]:
        """Those that a learner without GPUs may lie on."""
        return open_nodes(self.witness.nodes_there())


@dataclass(frozen=True)
class OwnPlatform(Platform):
    """On the cluster of `make cluster`, with which tests may do what they like."""

    cluster: Cluster = field(repr=False)
    user: Account = field(repr=False)  # a shell as the page wants it, in which `updraft` is this platform's

    def kubectl(self, *arguments: str) -> str:
        layout = self.cluster.layout
        command = [str(layout.kubectl), "--kubeconfig", str(layout.kubeconfig), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@contextmanager
def inside(target: Target, folder: Path, say: Say) -> Iterator[Platform]:
    """Somebody's cluster: in a namespace of its own."""
    with namespace_platform.platform(target, folder, say) as (namespace, http):
        witness = Witness(target.kubeconfig, namespace)
        try:
            yield Platform(folder, http, namespace, witness)
        finally:
            witness.close()


@contextmanager
def beside(cluster: Cluster, account: Account) -> Iterator[OwnPlatform]:
    """Ours: on this machine, started with `updraft up`, ended with `updraft down`."""
    home = cluster.layout.platform
    control.down(Home(home, REPOSITORY))  # of a run that was killed
    shutil.rmtree(home, ignore_errors=True)
    for name in ("images", "envs"):  # what `make test` has built is used, what it lacks is built for both
        (PREPARED / name).mkdir(parents=True, exist_ok=True)
    data = home / "s3" / "datasets" / "digits"
    data.mkdir(parents=True)
    for name in ("images", "envs"):
        (home / name).symlink_to(PREPARED / name, target_is_directory=True)
    for file in (REPOSITORY / "jobs" / "data" / "digits").iterdir():
        shutil.copy(file, data / file.name)
    (tenants := home / TENANTS_FILE).write_text(ONE_TENANT)
    user = account.with_platform(home, {**SETTINGS, "UPDRAFT_TENANTS_FILE": str(tenants)})
    witness = Witness(cluster.layout.kubeconfig, NAMESPACE)
    try:
        user.shell(account_helpers.steps().up.replace(account_helpers.REGISTRY, ""), within_seconds=UP_SECONDS)
        with Client(load_config({"UPDRAFT_HOME": str(home)})) as http:
            yield OwnPlatform(home, http, NAMESPACE, witness, cluster, user)
    finally:
        witness.close()
        user.shell("updraft down", within_seconds=DOWN_SECONDS)
