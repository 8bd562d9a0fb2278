"""A model waits for a person in Airflow, as docs/howto/models.md says: who may answer, what an answer does, a cancel
meanwhile; and a roll-back.

The users are those of `system_helpers.USERS`; UPDRAFT_APPROVERS names one of them.
"""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path
from typing import Any

import httpx
import pages
import pytest
import yaml
from system_helpers import APPROVER, Stack, pretty

from updraft.client import load_config

pytestmark = [pytest.mark.system, pytest.mark.turn(2), pytest.mark.timeout(900)]
PAGE = "docs/howto/models.md"
WAIT_SECONDS = 240.0
PROGRAM = """
import mlflow.sklearn, os, sys
from sklearn.dummy import DummyClassifier
import updraft_learner as updraft
updraft.log_metrics({"accuracy": updraft.params()["accuracy"]}, step=1)
mlflow.sklearn.save_model(DummyClassifier().fit([[0], [1]], [0, 1]), os.path.join(os.environ["RESULT_DIR"], "model"))
"""


def manifest(accuracy: float) -> dict[str, Any]:
    """That of the page, with a model without a check, under names of this test's own."""
    (text,) = [block.text for block in pages.blocks(PAGE) if "approval: required" in block.text]
    found: dict[str, Any] = yaml.safe_load(text)
    found |= {"name": "approved", "params": {"accuracy": accuracy}}
    found["resources"] = {"learners": 1, "cpus": 0.5, "memory": "512MiB"}
    found["export"] |= {"register_as": "approved-model", "formats": ["mlflow"], "trust_code": True}
    return found


class Airflow:
    """Airflow's REST API for one of its users."""

    def __init__(self, stack: Stack, user: str) -> None:
        base = load_config({"UPDRAFT_HOME": str(stack.home)}).airflow_url
        password = json.loads((stack.home / "airflow" / "passwords.json").read_text())[user]
        token = httpx.post(f"{base}/auth/token", json={"username": user, "password": password}, timeout=60)
        self._http = httpx.Client(
            base_url=base, headers={"Authorization": f"Bearer {token.json()['access_token']}"}, timeout=60
        )

    def answer(self, job: Any, option: str, reason: str) -> httpx.Response:
        path = f"/api/v2/dags/{job.dag_id}/dagRuns/{job.run_id}/taskInstances/promote/-1/hitlDetails"
        return self._http.patch(path, json={"chosen_options": [option], "params_input": {"reason": reason}})


def submitted(stack: Stack, accuracy: float, code: Path) -> Any:
    """A job whose model waits for approval."""
    (code / "train.py").write_text(PROGRAM)
    job_id = stack.submit(manifest(accuracy), base=code)
    deadline = time.monotonic() + WAIT_SECONDS
    while (detail := stack.client.job(job_id)).approval is None:
        assert not detail.ended, pretty(detail)
        assert time.monotonic() < deadline, pretty(detail)
        time.sleep(1)
    return detail


def test_approval_rejection_cancel_and_roll_back(stack: Stack, code: Path) -> None:
    first = submitted(stack, 0.8, code)
    assert first.reason == f"approved-model version 1 waits for approval by {APPROVER}"
    assert Airflow(stack, "vic").answer(first, "Approve", "mine").status_code == 403  # a viewer
    assert Airflow(stack, "eve").answer(first, "Approve", "mine").status_code == 403  # may answer, but not this
    assert stack.client.job(first.id).approval is not None
    assert Airflow(stack, APPROVER).answer(first, "Approve", "measured on last week's data").status_code == 200
    detail = stack.end(first.id)
    assert detail.state == "COMPLETED", pretty(detail)
    assert detail.model.alias == "champion"

    second = submitted(stack, 0.9, code)
    assert Airflow(stack, APPROVER).answer(second, "Reject", "biased").status_code == 200
    detail = stack.end(second.id)
    assert detail.state == "COMPLETED", pretty(detail)
    assert f"not promoted: rejected by {APPROVER}: biased" in detail.reason

    third = submitted(stack, 0.95, code)
    stack.client.cancel(third.id, wait=True, timeout_seconds=120)
    assert stack.client.job(third.id).state == "CANCELLED"

    fourth = submitted(stack, 0.97, code)
    assert Airflow(stack, APPROVER).answer(fourth, "Approve", "").status_code == 200
    assert stack.end(fourth.id).model.alias == "champion"
    series = stack.client.series_of("approved")
    assert (series.champion, series.previous) == ("4", "1")
    outcomes = [(run.version, run.outcome) for run in reversed(series.runs)]
    assert outcomes == [("1", "promoted"), ("2", "rejected"), ("3", None), ("4", "promoted")]

    (command,) = [block.text for block in pages.blocks(PAGE) if block.is_commands]
    done = stack.run(*shlex.split(command.replace("digits", "approved"))[1:])
    assert done.stdout == "Version 1 of approved-model is the champion, in place of version 4.\n", done.stderr
    assert stack.client.series_of("approved").champion == "1"
    login = json.loads((stack.home / "credentials.json").read_text())["mlflow"]
    asked = httpx.get(
        f"{stack.client.job(first.id).links.mlflow_run.split('/#/')[0]}/api/2.0/mlflow/registered-models/alias",
        params={"name": "approved-model", "alias": "champion"},
        auth=(login["username"], login["password"]),
        timeout=60,
    )
    assert asked.json()["model_version"]["version"] == "1"
