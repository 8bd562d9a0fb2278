"""What `validate --pods` prints is what a job creates."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from unit.operators.airflow_fakes import Platform

from updraft.guardian import pods
from updraft.guardian.planned import HIDDEN, planned_objects
from updraft.guardian.records import manifest_of
from updraft.kubernetes import gang, secrets
from updraft.kubernetes.base_pod import base_pod_outside_a_task
from updraft.kubernetes.clients import api_server_addresses
from updraft.kubernetes.launch import LaunchObjects
from updraft.kubernetes.objects import Launch
from updraft.lifecycle.workflow import EVALUATE_ROLE, EXPORT_ROLE, TRAIN_ROLE
from updraft.settings import settings

Make = Callable[..., Platform]


def plain(made: dict[str, Any], known: dict[str, str]) -> dict[str, Any]:
    """With the ids that only a launch knows; without the secret's content and Airflow's labels of the task."""
    text = json.dumps(made)
    for placeholder, value in known.items():
        text = text.replace(placeholder, value)
    found: dict[str, Any] = json.loads(text)
    labels = found["metadata"].get("labels") or {}
    found["metadata"]["labels"] = {name: value for name, value in labels.items() if name.startswith("updraft.dev/")}
    if found["kind"] == "Secret":
        found["stringData"] = dict.fromkeys(found["stringData"], HIDDEN)
    return found


def test_what_is_planned_is_what_is_created(make_platform: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    platform = make_platform()
    created: dict[str, LaunchObjects] = {}
    create = gang.create

    def noted(core: Any, launch: Launch, made: LaunchObjects) -> None:
        created[launch.role] = made
        create(core, launch, made)

    monkeypatch.setattr(pods.gang, "create", noted)
    platform.run_all()
    job = platform.job

    def base(launch: Launch) -> dict[str, Any]:
        return base_pod_outside_a_task(launch, settings().kubernetes_conn_id)

    planned = planned_objects(manifest_of(job), settings(), base, api_server_addresses(secrets.core_api(settings())))
    known = {"<job>": job.id, "<mlflow-run>": str(job.mlflow_run_id), "<code>": str(job.code_tree)}
    known |= {"<mlflow-experiment>": str(job.mlflow_experiment_id)}
    known |= {f"<data-{n}>": str(d["tree"]) for n, d in enumerate(job.data or ())}
    for role in (TRAIN_ROLE, EVALUATE_ROLE, EXPORT_ROLE):
        made = [plain(each, {}) for each in created[role].in_order()]
        assert [plain(each, known) for each in planned[role]] == made, role
    assert list(planned) == ["prepare", TRAIN_ROLE, EVALUATE_ROLE, EXPORT_ROLE]


def test_no_secret_is_planned(make_platform: Make) -> None:
    platform = make_platform()
    platform.run("admit")

    def base(launch: Launch) -> dict[str, Any]:
        return base_pod_outside_a_task(launch, settings().kubernetes_conn_id)

    planned = planned_objects(manifest_of(platform.job), settings(), base, [])
    login = settings().credentials()
    text = json.dumps(planned)
    for secret in (login.s3.secret_key, login.mlflow.password):
        assert secret.get_secret_value() not in text
