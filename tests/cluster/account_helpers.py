"""The account of deploy/kustomize on the test cluster, made by the commands of docs/howto/cluster.md.

Called by the fixtures of the cluster tests: whatever uses the account has no other rights than a user of ours gets.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster_helpers import eventually
from kubecluster.layout import REPOSITORY
from kubecluster.target import Target
from kubernetes import client, config

PAGE = REPOSITORY / "docs" / "howto" / "cluster.md"
SECTION = "## Your own cluster"
REGISTRY = "registry.example.org/"  # of the page; the nodes of ours have the images without one
NAME = "system:serviceaccount:updraft-system:updraft"  # as the API server calls it
NAMESPACE = "updraft-default"


@dataclass(frozen=True)
class Account:
    """`folder` holds updraft.kubeconfig; `environment` is that of an administrator's shell."""

    folder: Path
    environment: dict[str, str]

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "updraft.kubeconfig"

    def with_platform(self, home: Path, settings: Mapping[str, str]) -> Account:
        """A user of a platform with this home, who is no administrator of the cluster."""
        environment = {name: value for name, value in self.environment.items() if name != "KUBECONFIG"}
        return Account(self.folder, {**environment, "UPDRAFT_HOME": str(home), "NO_COLOR": "1", **settings})

    def shell(self, script: str, *, check: bool = True, within_seconds: float | None = None) -> str:
        """Run commands as somebody at a terminal does; what they print."""
        done = subprocess.run(
            ["bash", "-c", f"set -e\n{script}"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=within_seconds,
            check=False,
        )
        assert done.returncode == 0 or not check, done.stdout + done.stderr
        return done.stdout


@dataclass(frozen=True)
class Steps:
    """The blocks of the page's section about a cluster of one's own, each as it stands there, in their order."""

    apply: str
    kubeconfig: str
    doctor: str
    up: str
    submit: str


def steps() -> Steps:
    """TypeError where the page has another number: then a test has to run what is new."""
    section = PAGE.read_text().partition(SECTION)[2].partition("\n### ")[0]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return Steps(*(text for language, text in blocks if not language))


@contextmanager
def made(target: Target, folder: Path) -> Iterator[Account]:
    """The account, and a kubeconfig with its token and nobody else's. Afterwards what the page made is gone."""
    for name in ("deploy", "jobs"):
        (folder / name).symlink_to(REPOSITORY / name)
    programs = folder / "bin"
    programs.mkdir()
    (programs / "kubectl").symlink_to(Path(target.kubeconfig).parent / "kubectl")
    path = f"{programs}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {"KUBECONFIG": str(target.kubeconfig), "PATH": path, "UPDRAFT_HOME": str(folder / "home")}
    account = Account(folder, {**os.environ, **settings})
    page = steps()
    assert "config delete-user NAME" in PAGE.read_text()
    user = '$(kubectl config view --minify --output jsonpath="{.contexts[0].context.user}")'
    try:
        account.shell(
            f'{page.apply}{page.kubeconfig}kubectl --kubeconfig updraft.kubeconfig config delete-user "{user}"'
        )
        yield account
    finally:
        _remove(target)


def _remove(target: Target) -> None:
    """But for the namespace of jobs, which the cluster begins with."""
    api_client = config.new_client_from_config(str(target.kubeconfig))
    core, rights = client.CoreV1Api(api_client), client.RbacAuthorizationV1Api(api_client)
    for delete, *names in (
        (core.delete_namespaced_resource_quota, "updraft", NAMESPACE),
        (rights.delete_namespaced_role_binding, "updraft", NAMESPACE),
        (rights.delete_namespaced_role, "updraft", NAMESPACE),
        (rights.delete_cluster_role_binding, "updraft-nodes"),
        (rights.delete_cluster_role, "updraft-nodes"),
        (core.delete_namespace, "updraft-system"),
    ):
        try:
            delete(*names)
        except client.ApiException as exc:  # the page's commands ended before they made it
            if exc.status != 404:
                raise
    # A namespace that is on its way out would take nothing of the next run.
    eventually(lambda: "updraft-system" not in {found.metadata.name for found in core.list_namespace().items})
