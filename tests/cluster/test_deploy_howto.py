"""The commands of docs/howto/deploy.md that are marked so, in their order, on a real Kubernetes.

The API server takes every object and Pod Security lets every pod in; the images are not there, so none of them runs.
What the chart would make of our values is tried as far as it can be without it: one pod with the volumes, the account
and the restrictions that they ask for, which starts as the image's entry point does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import deploy_page
import pytest
import yaml
from account_helpers import Account
from cluster_helpers import eventually
from kubecluster.layout import REPOSITORY
from kubecluster.target import Target
from kubernetes import client, config

pytestmark = pytest.mark.cluster
MLFLOW, AIRFLOW = "updraft-mlflow", "updraft-system"
NODE = "node-a"
PATIENCE_SECONDS = 300.0
# As a part of Airflow: the account's token leads to the cluster, secrets arrive, and nothing else can be written.
PROGRAM = """
import json, os, ssl, urllib.request
account = "/var/run/secrets/kubernetes.io/serviceaccount"
trust = ssl.create_default_context(cafile=f"{account}/ca.crt")
host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
bearer = {"Authorization": "Bearer " + open(f"{account}/token").read()}
asked = urllib.request.Request(f"https://{host}:{port}/api/v1/nodes", headers=bearer)
nodes = json.load(urllib.request.urlopen(asked, context=trust))["items"]
credentials = json.load(open(os.environ["UPDRAFT_CREDENTIALS_FILE"]))
private = os.environ["PGPASSFILE"]
open("/tmp/x", "w"), open(os.environ["TMPDIR"] + "/x", "w")
try:
    open("/opt/x", "w")
    written = True
except OSError:
    written = False
print(json.dumps({
    "nodes": len(nodes), "namespace": open(f"{account}/namespace").read(), "key": credentials["s3"]["access_key"],
    "pgpass": [oct(os.stat(private).st_mode & 0o777), open(private).read().split(":")[0]], "written": written,
}))
"""


@pytest.fixture
def site(account: Account, target: Target) -> Iterator[Account]:
    (account.folder / "scripts").symlink_to(REPOSITORY / "scripts")
    settings = {"S3_ACCESS_KEY": "site-access", "S3_SECRET_KEY": "site-secret"}
    api_client = config.new_client_from_config(str(target.kubeconfig))
    core = client.CoreV1Api(api_client)
    try:
        yield Account(account.folder, {**account.environment, **settings})
    finally:
        if MLFLOW in names(core):
            core.delete_namespace(MLFLOW)
        eventually(lambda: MLFLOW not in names(core), within_seconds=PATIENCE_SECONDS)


def names(core: Any) -> set[str]:
    """Of the namespaces that there are."""
    return {found.metadata.name for found in core.list_namespace().items}


def pod_of(image: str) -> dict[str, Any]:
    """A pod with what the values give to the scheduler's, around a program of ours."""
    values = yaml.safe_load((REPOSITORY / "deploy" / "helm" / "airflow-values.yaml").read_text())
    scheduler = values["scheduler"]
    entrypoint = (REPOSITORY / "images" / "common" / "entrypoint.sh").read_text()
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "like-airflow", "namespace": AIRFLOW},
        "spec": {
            "restartPolicy": "Never",
            "serviceAccountName": scheduler["serviceAccount"]["name"],
            "securityContext": values["securityContexts"]["pod"],
            "volumes": values["volumes"] + scheduler["extraVolumes"],
            "containers": [
                {
                    "name": "base",
                    "image": image,
                    "command": ["sh", "-c", entrypoint, "entrypoint.sh", "python3", "-c", PROGRAM],
                    "env": values["env"],
                    "securityContext": values["securityContexts"]["containers"],
                    "volumeMounts": values["volumeMounts"] + scheduler["extraVolumeMounts"],
                }
            ],
        },
    }


def test_each_command_of_the_page_works_and_its_pods_are_let_in(site: Account, target: Target) -> None:
    commands = "\n".join(deploy_page.marked(deploy_page.CLUSTER)).replace("NODE", NODE)
    said = site.shell(f"exec 2>&1\n{commands}")
    assert "would violate PodSecurity" not in said
    core = client.CoreV1Api(config.new_client_from_config(str(target.kubeconfig)))

    def apps() -> set[str]:
        return {pod.metadata.labels["app"] for pod in core.list_namespaced_pod(MLFLOW).items}

    eventually(lambda: apps() == {"mlflow", "mlflow-user"}, within_seconds=PATIENCE_SECONDS)
    assert secrets(core, AIRFLOW) == {
        "updraft-airflow": {"fernet-key", "api-secret-key", "jwt-secret", "connection"},
        "updraft-credentials": {"credentials.json"},
        "updraft-files": {"pgpass_airflow"},
    }
    assert set(secrets(core, MLFLOW)) == {"mlflow", "mlflow-user"}

    pod = pod_of(target.python_image)
    core.create_namespaced_pod(AIRFLOW, pod)
    name = pod["metadata"]["name"]
    ended = ("Succeeded", "Failed")
    eventually(lambda: core.read_namespaced_pod(name, AIRFLOW).status.phase in ended, within_seconds=PATIENCE_SECONDS)
    log = core.read_namespaced_pod_log(name, AIRFLOW, _preload_content=False).data  # the client would make a repr of it
    assert json.loads(log) == {
        "nodes": 2,
        "namespace": AIRFLOW,
        "key": "site-access",
        "pgpass": ["0o600", "postgres.example.org"],
        "written": False,
    }


def secrets(core: Any, namespace: str) -> dict[str, set[str]]:
    """Names of the guide's secrets, with their keys."""
    found = core.list_namespaced_secret(namespace).items
    return {secret.metadata.name: set(secret.data or {}) for secret in found if secret.type == "Opaque"}
