"""The steps of docs/howto/cluster.md for a cluster of one's own: its commands, as they stand there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubecluster.layout import REPOSITORY
from kubecluster.running import Cluster
from kubecluster.target import Target
from kubernetes import client, config

pytestmark = pytest.mark.cluster
PAGE = REPOSITORY / "docs" / "howto" / "cluster.md"
NAMES = ("kubeconfig", "cluster", "Kubernetes version", "cluster's log-in", "namespace updraft-default")
CHECKS = {*NAMES, "rights in updraft-default", "nodes", "GPUs"}


def blocks() -> list[str]:
    section = PAGE.read_text().partition("## Your own cluster")[2].partition("\n### ")[0]
    return re.findall(r"^```\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)


@pytest.fixture
def shell(own_cluster: Cluster, target: Target, tmp_path: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder with the checkout's deploy/, and an administrator's environment. What the page makes is removed."""
    (tmp_path / "deploy").symlink_to(REPOSITORY / "deploy")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "kubectl").symlink_to(Path(target.kubeconfig).parent / "kubectl")
    path = f"{programs}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {"KUBECONFIG": str(target.kubeconfig), "PATH": path, "UPDRAFT_HOME": str(tmp_path / "home")}
    yield tmp_path, {**os.environ, **settings}
    api_client = config.new_client_from_config(str(target.kubeconfig))
    core, rights = client.CoreV1Api(api_client), client.RbacAuthorizationV1Api(api_client)
    core.delete_namespaced_resource_quota("updraft", "updraft-default")
    rights.delete_namespaced_role_binding("updraft", "updraft-default")
    rights.delete_namespaced_role("updraft", "updraft-default")
    rights.delete_cluster_role_binding("updraft-nodes")
    rights.delete_cluster_role("updraft-nodes")
    core.delete_namespace("updraft-system")


def test_an_account_with_these_rights_passes_the_doctor(shell: tuple[Path, dict[str, str]]) -> None:
    folder, environment = shell
    account, kubeconfig, doctor = blocks()[:3]
    assert "kubectl apply -k" in account
    assert "create token" in kubeconfig
    user = '$(kubectl config view --minify --output jsonpath="{.contexts[0].context.user}")'
    delete = f'kubectl --kubeconfig updraft.kubeconfig config delete-user "{user}"'
    assert "config delete-user NAME" in PAGE.read_text()
    script = f"set -e\n{account}{kubeconfig}{delete}\n{doctor.strip()} --json > found.json || true"
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((folder / "found.json").read_text())["checks"]
    about_cluster = {check["name"]: (check["ok"], check["detail"]) for check in found if check["name"] in CHECKS}
    assert set(about_cluster) == CHECKS
    assert [name for name, (ok, _) in about_cluster.items() if not ok] == [], about_cluster
    # It holds the account's credentials, and nobody else's.
    assert [user["name"] for user in json_of(folder, environment)["users"]] == ["updraft"]


def json_of(folder: Path, environment: dict[str, str]) -> dict[str, list[dict[str, str]]]:
    command = ["kubectl", "--kubeconfig", "updraft.kubeconfig", "config", "view", "--output", "json"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    view: dict[str, list[dict[str, str]]] = json.loads(done.stdout)
    return view
