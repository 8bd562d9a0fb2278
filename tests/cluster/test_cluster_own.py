"""The steps of docs/howto/cluster.md for a cluster of one's own: its commands, as they stand there."""

from __future__ import annotations

import json
import re

import account_helpers
import pytest
from account_helpers import Account
from platform_helpers import END_SECONDS, OwnPlatform

pytestmark = pytest.mark.cluster
NAMES = ("kubeconfig", "cluster", "Kubernetes version", "cluster's log-in", "namespace updraft-default")
CHECKS = {*NAMES, "rights in updraft-default", "nodes", "GPUs"}


def test_an_account_with_these_rights_passes_the_doctor(account: Account) -> None:
    doctor = account_helpers.steps().doctor
    # What it finds wrong with this machine, such as its disk, is no matter here.
    account.shell(f"{doctor.strip()} --json > found.json", check=False)
    found = json.loads((account.folder / "found.json").read_text())["checks"]
    about_cluster = {check["name"]: (check["ok"], check["detail"]) for check in found if check["name"] in CHECKS}
    assert set(about_cluster) == CHECKS
    assert [name for name, (ok, _) in about_cluster.items() if not ok] == [], about_cluster


def test_the_kubeconfig_holds_the_accounts_credentials_and_nobody_elses(account: Account) -> None:
    view = json.loads(account.shell("kubectl --kubeconfig updraft.kubeconfig config view --output json"))
    assert [user["name"] for user in view["users"]] == ["updraft"]


def test_the_last_step_trains_in_a_pod_of_the_cluster_and_names_the_pages(own_platform: OwnPlatform) -> None:
    """The step before it, `updraft up`, has started this platform."""
    submit = account_helpers.steps().submit.replace(".updraft/", f"{own_platform.home}/")
    said = own_platform.user.shell(submit, within_seconds=END_SECONDS)
    job_id = re.findall(r"^(\S+) submitted$", said, re.MULTILINE)[0]
    assert own_platform.completed(job_id).metrics["val_accuracy"] > 0.9
    (mlflow,) = re.findall(r"^MLflow +(http\S+)$", said, re.MULTILINE)
    assert mlflow
