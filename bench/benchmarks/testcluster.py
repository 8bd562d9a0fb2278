"""The Kubernetes of `make cluster` for figures that need a real one, and a home whose platform uses it.

Called by the figures. A cluster that runs is used and left as it is; one that is started for a figure ends with it.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import account_helpers
from account_helpers import NAMESPACE, Account
from kubecluster.layout import find_layout
from kubecluster.running import Cluster
from kubecluster.target import own_target, why_not

from benchmarks.machine import REPOSITORY
from benchmarks.stack import DAGS, PREPARED, BenchmarkError, down, fresh_home
from updraft.kubernetes.kubeconfig import choose
from updraft.stack import control
from updraft.stack.layout import Home
from updraft.stack.parts import Part
from updraft.stack.probes import not_ready_because
from updraft.stack.processes import Identity, spawn

USER = account_helpers.NAME  # the platform, as the audit log calls it
# What stock triggers ask for; the platform's account may do less.
STOCK_ROLE = "updraft-bench-stock"
STOCK_RIGHTS = ("--verb=get,list,watch", "--resource=pods,pods/log,events")


def say(text: str) -> None:
    print(text, flush=True)


@contextmanager
def cluster_and_account() -> Iterator[tuple[Cluster, Account]]:
    """Give the cluster with the account of deploy/kustomize, what stock triggers need, and no quota, which is a site's
    choice."""
    reason = why_not(find_layout())
    if reason:
        raise BenchmarkError(reason)
    with own_target(say) as target, tempfile.TemporaryDirectory(prefix="updraft-bench-") as folder:
        assert target.own is not None
        with account_helpers.made(target, Path(folder)) as account:
            kubectl(target.own, "delete", "resourcequota", "--all", "-n", NAMESPACE)
            role = ["-n", NAMESPACE, STOCK_ROLE]
            kubectl(target.own, "create", "role", *role, *STOCK_RIGHTS)
            service_account = USER.removeprefix("system:serviceaccount:")
            account_option = f"--serviceaccount={service_account}"
            kubectl(target.own, "create", "rolebinding", *role, f"--role={STOCK_ROLE}", account_option)
            try:
                yield target.own, account
            finally:
                kubectl(target.own, "delete", "role,rolebinding", "--ignore-not-found", *role)


def kubectl(cluster: Cluster, *arguments: str, standard_input: str | None = None) -> str:
    """Run kubectl as administrator."""
    done = subprocess.run(
        [str(cluster.layout.kubectl), *arguments], input=standard_input, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BenchmarkError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True)
class PartHome:
    """A home of which only some parts run, started one by one."""

    home: Home
    parts: dict[str, Part]

    def run(self, name: str) -> None:
        """Run a part that ends by itself."""
        part = self.parts[name]
        with part.log.open("ab") as log:
            done = subprocess.run(
                part.argv, cwd=part.cwd, env=dict(part.environment), stdout=log, stderr=log, check=False
            )
        if done.returncode != 0:
            raise BenchmarkError(f"{part.title} failed; see {part.log}")

    def serve(self, name: str) -> Identity:
        """Start a part that keeps running; it counts as ready if it answers without the rest of the stack."""
        part = self.parts[name]
        process, identity = spawn(part.argv, environment=part.environment, cwd=part.cwd, log=part.log)
        if part.probe is None or part.probe.component is not None:
            return identity
        deadline = time.monotonic() + part.ready_within_seconds
        while (reason := not_ready_because(part.probe)) is not None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkError(f"{part.title} did not start: {reason}; see {part.log}")
            time.sleep(0.2)
        return identity


@contextmanager
def part_home(name: str, cluster: Cluster, account: Account) -> Iterator[PartHome]:
    """Create a fresh home on the cluster with databases, object store and MLflow; the caller starts Airflow's
    daemons."""
    home = fresh_home(name, environments=False)
    control.build_needed(Home(root=PREPARED, repository=REPOSITORY), say)
    for folder in (home.images, home.environments):
        folder.symlink_to(PREPARED / folder.name, target_is_directory=True)
    (home.root / "dags").symlink_to(DAGS, target_is_directory=True)
    chosen = choose(account.kubeconfig)
    where = {"kubeconfig": str(chosen.path), "context": chosen.context, "address": cluster.network.host}
    control.initialise(home, cluster=where)
    made = PartHome(home, {part.name: part for part in control.parts_of(home)})
    try:
        for part in ("ledger", "airflow-db"):
            made.run(part)
        for part in ("s3", "mlflow"):
            made.serve(part)
        made.run("mlflow-user")
        yield made
    finally:
        down(home)
