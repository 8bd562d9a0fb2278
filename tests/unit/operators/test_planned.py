"""What `validate --pods` prints is what a job creates."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from unit.operators.airflow_fakes import Platform
from unit.operators.platform_fakes import CODE_SHA
from unit.operators.test_prepare_pod import ELSEWHERE, keep_secret

from updraft.guardian import pods
from updraft.guardian.planned import HIDDEN, planned_objects
from updraft.guardian.records import manifest_of
from updraft.kubernetes import gang
from updraft.kubernetes.base_pod import base_pod_outside_a_task
from updraft.kubernetes.clients import api_server_addresses
from updraft.kubernetes.launch import LaunchObjects, Program
from updraft.kubernetes.objects import Launch
from updraft.lifecycle import State
from updraft.lifecycle.workflow import EVALUATE_ROLE, EXPORT_ROLE, PREPARE_ROLE, TRAIN_ROLE

Make = Callable[..., Platform]
# Airflow's own: of the task that launches, and of where Airflow runs.
TASK_LABELS = {
    "dag_id",
    "task_id",
    "run_id",
    "try_number",
    "map_index",
    "airflow_kpo_in_cluster",
    "kubernetes_pod_operator",
}
REPOSITORY = f"git+https://host.example/repo@{CODE_SHA}"
ARCHIVE = {"source": "s3://bucket/all.zip", "secret": "bucket"}


def plain(made: dict[str, Any], known: dict[str, str]) -> dict[str, Any]:
    """With the ids that only a launch knows; without the secret's content and Airflow's labels of the task."""
    text = json.dumps(made)
    for placeholder, value in known.items():
        text = text.replace(placeholder, value)
    found: dict[str, Any] = json.loads(text)
    labels = found["metadata"].get("labels") or {}
    found["metadata"]["labels"] = {name: value for name, value in labels.items() if name not in TASK_LABELS}
    if found["kind"] == "Secret":
        found["stringData"] = dict.fromkeys(found["stringData"], HIDDEN)
    return found


def planned(platform: Platform) -> dict[str, list[dict[str, Any]]]:
    settings = platform.services.settings

    def template(launch: Launch, program: Program) -> dict[str, Any]:
        return base_pod_outside_a_task(launch, program, settings.kubernetes_conn_id)

    api_server = api_server_addresses(platform.services.core)
    return planned_objects(settings, manifest_of(platform.job), template, api_server=api_server, proxies={})


def noted(monkeypatch: pytest.MonkeyPatch) -> dict[str, LaunchObjects]:
    """Fills with what is created for each role."""
    created: dict[str, LaunchObjects] = {}
    create = gang.create

    def note(core: Any, launch: Launch, made: LaunchObjects) -> None:
        created[launch.role] = made
        create(core, launch, made)

    monkeypatch.setattr(pods.gang, "create", note)
    return created


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"code": REPOSITORY, "data": [ARCHIVE], "resources": {"learners": 1}},
        {"resources": {"learners": 2, "gpus": 1}, "env": {"SEED": "$HOME"}},
    ],
    ids=["trees", "made-sources", "gpus"],
)
def test_what_is_planned_is_what_is_created(
    make_platform: Make, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    created = noted(monkeypatch)
    platform = make_platform(judged=False, **changes)
    platform.cluster.gpus = "8"
    keep_secret(platform, "bucket", **ELSEWHERE)
    platform.run_all()
    job = platform.job
    assert job.state is State.COMPLETED, platform.errors
    found = planned(platform)
    known = {"<job>": job.id, "<mlflow-run>": str(job.mlflow_run_id), "<code>": str(job.code_tree)}
    known |= {"<mlflow-experiment>": str(job.mlflow_experiment_id)}
    known |= {f"<data-{n}>": str(d["tree"]) for n, d in enumerate(job.data or ())}
    for role in (PREPARE_ROLE, TRAIN_ROLE, EVALUATE_ROLE, EXPORT_ROLE):
        made = [plain(each, {}) for each in created[role].in_order()]
        assert [plain(each, known) for each in found[role]] == made, role
    assert list(found) == [PREPARE_ROLE, TRAIN_ROLE, EVALUATE_ROLE, EXPORT_ROLE]


def test_no_secret_is_planned(make_platform: Make) -> None:
    platform = make_platform()
    platform.run("admit")
    login = platform.services.settings.credentials()
    text = json.dumps(planned(platform))
    for secret in (login.s3.secret_key, login.mlflow.password):
        assert secret.get_secret_value() not in text


def test_what_a_sites_hook_changes_stands_and_is_planned(make_platform: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pod_mutation_hook` of Airflow's local settings, as KubernetesPodOperator calls it."""
    from kubernetes.client import V1EnvVar, V1Pod

    seen: list[str] = []

    def hook(pod: V1Pod) -> None:
        main = pod.spec.containers[0]
        seen.append(main.image)
        main.image = f"mirror.example/{main.image}"
        main.command = ["/bin/bash", "-c"]
        main.resources.limits = {**main.resources.limits, "cpu": "7"}
        main.env = [*main.env, V1EnvVar(name="SITE", value="north")]
        pod.spec.node_selector = {**(pod.spec.node_selector or {}), "pool": "training"}

    monkeypatch.setattr("airflow.providers.cncf.kubernetes.operators.pod.pod_mutation_hook", hook)
    created = noted(monkeypatch)
    platform = make_platform()
    platform.run_all()
    assert platform.job.state is State.COMPLETED, platform.errors
    assert all(seen), "the hook sees the image"
    for pod in (*created[TRAIN_ROLE].pods, next(o for o in planned(platform)[TRAIN_ROLE] if o["kind"] == "Pod")):
        main = next(c for c in pod["spec"]["containers"] if c["name"] == "base")
        assert main["image"].startswith("mirror.example/updraft/")
        assert main["resources"]["limits"]["cpu"] == "7"
        assert {"name": "SITE", "value": "north"} in main["env"]
        assert pod["spec"]["nodeSelector"]["pool"] == "training"
