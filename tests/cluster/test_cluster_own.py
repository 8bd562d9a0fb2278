"""The steps of docs/howto/cluster.md for a cluster of one's own: its commands, as they stand there."""

from __future__ import annotations

import json

import account_helpers
import pytest
from account_helpers import Account

pytestmark = pytest.mark.cluster
NAMES = ("kubeconfig", "cluster", "Kubernetes version", "cluster's log-in", "namespace updraft-default")
CHECKS = {*NAMES, "rights in updraft-default", "nodes", "GPUs"}


def test_an_account_with_these_rights_passes_the_doctor(account: Account) -> None:
    doctor = account_helpers.commands()[2]
    account.shell(f"{doctor.strip()} --json > found.json")
    found = json.loads((account.folder / "found.json").read_text())["checks"]
    about_cluster = {check["name"]: (check["ok"], check["detail"]) for check in found if check["name"] in CHECKS}
    assert set(about_cluster) == CHECKS
    assert [name for name, (ok, _) in about_cluster.items() if not ok] == [], about_cluster


def test_the_kubeconfig_holds_the_accounts_credentials_and_nobody_elses(account: Account) -> None:
    view = json.loads(account.shell("kubectl --kubeconfig updraft.kubeconfig config view --output json"))
    assert [user["name"] for user in view["users"]] == ["updraft"]
