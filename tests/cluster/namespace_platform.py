"""A whole platform inside one namespace of a cluster that is not ours: Airflow, MLflow, their database and an object
store as one pod, learners beside it.

Nothing goes beyond the namespace but a ClusterRole and its binding, which let the platform's account list nodes. All of
it is gone afterwards. Images are those that UPDRAFT_TEST_IMAGE_PREFIX names. Called by fixtures of the cluster tests.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import compose_pod
from cluster_helpers import eventually
from containers import recipes
from containers.places import REPOSITORY
from kubecluster.objects import RESTRICTED
from kubecluster.target import PREFIX_VARIABLE, Target
from kubernetes import client, config

from updraft.client import Client, Connection
from updraft.exceptions import UpdraftError
from updraft.kubernetes import calls, rbac

GONE_SECONDS = 120.0
READY_SECONDS = 900.0  # first start: the images have to arrive, and databases to be made
LEARNERS = (recipes.SIDECAR, recipes.DATA, recipes.SHELL, recipes.SKLEARN)
IMAGES = (*LEARNERS, recipes.AIRFLOW, recipes.MLFLOW, recipes.POSTGRES, recipes.S3)
PORTS = {"s3": 9000, "mlflow": 5000}  # what learners reach
AIRFLOW_PORT = 8080
Say = Callable[[str], None]


def prefix() -> str:
    """Where the cluster's nodes find our images; empty when nobody said."""
    return os.environ.get(PREFIX_VARIABLE, "").rstrip("/")


def why_not() -> str | None:
    """Why no platform can be put into a cluster from here, in one line; None where it can."""
    if not prefix():
        names = ", ".join(f"PREFIX/{image.name.partition('/')[2]}" for image in IMAGES)
        return f"{PREFIX_VARIABLE} is not set: it says where the cluster pulls {names} (`make images` builds them)"
    if shutil.which("kubectl") is None:
        return "kubectl is not on the PATH: the tests reach the platform inside the cluster through it"
    return None


def image_names() -> dict[str, str]:
    """Of each of our images, what the cluster calls it."""
    return {image.name: f"{prefix()}/{image.name.partition('/')[2]}" for image in IMAGES}


@contextmanager
def platform(target: Target, folder: Path, say: Say) -> Iterator[tuple[str, Client]]:
    """The namespace, and a client of the platform in it. `folder` holds its secrets meanwhile."""
    before = f"updraft-test-{uuid.uuid4().hex[:8]}-"
    namespace = f"{before}default"
    api_client = config.new_client_from_config(str(target.kubeconfig))
    core, rights = client.CoreV1Api(api_client), client.RbacAuthorizationV1Api(api_client)
    objects = compose_pod.composed(_variables(namespace), image_names(), PORTS)
    for container in (*objects.pod["spec"]["initContainers"], *objects.pod["spec"]["containers"]):
        container["env"] += [{"name": n, "value": v} for n, v in _settings(before).items()]
    secrets = folder / "secrets"
    try:
        made = [sys.executable, str(REPOSITORY / "scripts" / "compose_secrets.py"), str(secrets)]
        subprocess.run(made, check=True, capture_output=True)
        core.create_namespace({"metadata": {"name": namespace, "labels": RESTRICTED}})
        _make_account(core, rights, namespace)
        content = {name: (secrets / name).read_text() for name in objects.secrets}
        core.create_namespaced_secret(namespace, {"metadata": {"name": compose_pod.SECRET}, "stringData": content})
        core.create_namespaced_config_map(namespace, objects.files)
        for service in objects.services:
            core.create_namespaced_service(namespace, service)
        core.create_namespaced_pod(namespace, objects.pod)
        _wait_ready(core, namespace, say)
        password = json.loads((secrets / "airflow_passwords.json").read_text())["admin"]
        with _forwarded(target, namespace, folder) as address, Client(Connection(address, "admin", password)) as http:
            yield namespace, http
    finally:
        shutil.rmtree(secrets, ignore_errors=True)
        _remove(core, rights, namespace)


def _variables(namespace: str) -> dict[str, str]:
    """Compose's: where learners find the store and MLflow."""
    hosts = {name: f"{name}.{namespace}.svc" for name in PORTS}
    return {
        "UPDRAFT_S3_ENDPOINT": f"http://{hosts['s3']}:{PORTS['s3']}",
        "UPDRAFT_MLFLOW_URI": f"http://{hosts['mlflow']}:{PORTS['mlflow']}",
        "UPDRAFT_MLFLOW_HOSTS": f"{hosts['mlflow']}:{PORTS['mlflow']}",
    }


def _settings(before: str) -> dict[str, str]:
    images = image_names()
    frameworks = {"sklearn": images[recipes.SKLEARN.name], "shell": images[recipes.SHELL.name]}
    return {
        "UPDRAFT_NAMESPACE_PREFIX": before,
        "UPDRAFT_SIDECAR_IMAGE": images[recipes.SIDECAR.name],
        "UPDRAFT_DATA_IMAGE": images[recipes.DATA.name],
        "UPDRAFT_FRAMEWORK_IMAGES": json.dumps(frameworks),
    }


def _make_account(core: Any, rights: Any, namespace: str) -> None:
    """As deploy/kustomize has it, under names of this namespace's own."""
    name, nodes = compose_pod.ACCOUNT, f"{namespace}-nodes"
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": namespace}]
    group = "rbac.authorization.k8s.io"
    core.create_namespaced_service_account(
        namespace, {"metadata": {"name": name}, "automountServiceAccountToken": False}
    )
    rights.create_namespaced_role(namespace, {"metadata": {"name": name}, "rules": rbac.rules(rbac.NAMESPACED)})
    role = {"apiGroup": group, "kind": "Role", "name": name}
    rights.create_namespaced_role_binding(
        namespace, {"metadata": {"name": name}, "roleRef": role, "subjects": subjects}
    )
    rights.create_cluster_role({"metadata": {"name": nodes}, "rules": rbac.rules(rbac.CLUSTER)})
    role = {"apiGroup": group, "kind": "ClusterRole", "name": nodes}
    rights.create_cluster_role_binding({"metadata": {"name": nodes}, "roleRef": role, "subjects": subjects})


def _wait_ready(core: Any, namespace: str, say: Say) -> None:
    told = ""

    def ready() -> bool:
        nonlocal told
        pod = core.read_namespaced_pod(compose_pod.NAME, namespace)
        statuses = [*(pod.status.init_container_statuses or ()), *(pod.status.container_statuses or ())]
        for status in statuses:
            ended, waiting = status.state.terminated, status.state.waiting
            last = ended or (status.last_state.terminated if status.last_state else None)
            if last is not None and last.exit_code != 0 and status.restart_count > 2:
                log = core.read_namespaced_pod_log(compose_pod.NAME, namespace, container=status.name, tail_lines=30)
                raise AssertionError(f"{status.name} of the platform always ends with {last.exit_code}:\n{log}")
            if waiting is not None and waiting.reason in ("ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"):
                raise AssertionError(f"{status.name} of the platform: {status.image}: {waiting.message}")
        now = ", ".join(s.name for s in statuses if s.state.running is not None and not s.started)
        if now != told:
            told = now
            say(f"the platform in {namespace} starts: {now or 'the next part'}")
        return any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions or ())

    eventually(ready, within_seconds=READY_SECONDS)


@contextmanager
def _forwarded(target: Target, namespace: str, folder: Path) -> Iterator[str]:
    """Airflow's address on this machine's loopback, as long as this lasts."""
    command = ["kubectl", "--kubeconfig", str(target.kubeconfig), "--namespace", namespace, "port-forward"]
    command += [f"pod/{compose_pod.NAME}", f":{AIRFLOW_PORT}", "--address", "127.0.0.1"]
    said = folder / "port-forward.log"  # a line per connection: a pipe that nobody reads would stop it
    with said.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        found = eventually(lambda: re.search(r"127\.0\.0\.1:(\d+)", said.read_text()))
        yield f"http://127.0.0.1:{found[1]}"
    finally:
        process.kill()
        process.wait()


def _remove(core: Any, rights: Any, namespace: str) -> None:
    """All of it, whatever of it fails; the namespace first, which holds secrets and a running Airflow."""
    nodes = f"{namespace}-nodes"
    left: list[UpdraftError] = []
    for what, delete, name in (
        ("namespace", core.delete_namespace, namespace),
        ("cluster role binding", rights.delete_cluster_role_binding, nodes),
        ("cluster role", rights.delete_cluster_role, nodes),
    ):
        try:
            calls.call(f"delete the {what} {name}", delete, name, ok=calls.GONE)
        except UpdraftError as exc:
            left.append(exc)
    if left:
        raise ExceptionGroup(f"remove by hand what is named {namespace}", left)
    eventually(
        lambda: calls.call("look for the namespace", core.read_namespace, namespace, ok=calls.GONE) is None,
        within_seconds=GONE_SECONDS,
    )
