"""What `validate --pods` prints is what a job creates."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.policies import make_plugin_from_local_settings
from airflow.settings import get_policy_plugin_manager
from kubernetes.client import V1EnvVar, V1Pod
from unit.operators.airflow_fakes import Platform
from unit.operators.platform_fakes import CODE_SHA
from unit.operators.test_prepare_pod import ELSEWHERE, keep_secret

from updraft.controller import pods
from updraft.controller.idempotency import FAILURE
from updraft.controller.planned import HIDDEN, planned_objects
from updraft.controller.records import manifest_of
from updraft.exceptions import LimitError, RefusedError
from updraft.kubernetes import gang
from updraft.kubernetes.base_pod import base_pod_outside_a_task
from updraft.kubernetes.clients import api_server_addresses
from updraft.kubernetes.launch import LaunchObjects, Program
from updraft.kubernetes.objects import Launch
from updraft.lifecycle import State
from updraft.lifecycle.workflow import EVALUATE_ROLE, EXPORT_ROLE, PREPARE_ROLE, TRAIN_ROLE
from updraft.manifest import Manifest

ROLES = [PREPARE_ROLE, TRAIN_ROLE, EVALUATE_ROLE, EXPORT_ROLE]
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


def planned(platform: Platform, manifest: Manifest | None = None) -> dict[str, list[dict[str, Any]]]:
    """Of the platform's job, or of another manifest."""
    settings = platform.services.settings

    def template(launch: Launch, program: Program) -> dict[str, Any]:
        return base_pod_outside_a_task(launch, program, settings.kubernetes_conn_id)

    api_server = api_server_addresses(platform.services.core)
    of = manifest or manifest_of(platform.job)
    return planned_objects(settings, of, template, api_server=api_server, proxies={})


def noted(monkeypatch: pytest.MonkeyPatch) -> dict[str, LaunchObjects]:
    """Fills with what is created for each role."""
    created: dict[str, LaunchObjects] = {}
    create = gang.create

    def note(core: Any, launch: Launch, made: LaunchObjects) -> None:
        created[launch.role] = made
        create(core, launch, made)

    monkeypatch.setattr(pods.gang, "create", note)
    return created


def hold_to_what_is_created(platform: Platform, created: dict[str, LaunchObjects]) -> dict[str, list[dict[str, Any]]]:
    """Run the job, and compare each object of each role with what was created; what was planned."""
    keep_secret(platform, "bucket", **ELSEWHERE)
    platform.run_all()
    job = platform.job
    assert job.state is State.COMPLETED, platform.errors
    found = planned(platform)
    known = {"<job>": job.id, "<mlflow-run>": str(job.mlflow_run_id), "<code>": str(job.code_tree)}
    known |= {"<mlflow-experiment>": str(job.mlflow_experiment_id)}
    known |= {f"<data-{n}>": str(d["tree"]) for n, d in enumerate(job.data or ())}
    for role in ROLES:
        made = [plain(each, {}) for each in created[role].in_order()]
        assert [plain(each, known) for each in found[role]] == made, role
    assert list(found) == ROLES
    return found


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
    hold_to_what_is_created(platform, created)


def test_no_secret_is_planned(make_platform: Make) -> None:
    platform = make_platform()
    platform.run("admit")
    login = platform.services.settings.credentials()
    text = json.dumps(planned(platform))
    for secret in (login.s3.secret_key, login.mlflow.password):
        assert secret.get_secret_value() not in text


@pytest.fixture
def site_hook() -> Iterator[Callable[[Callable[[Any], None]], None]]:
    """Makes a function the `pod_mutation_hook` of Airflow's local settings, as Airflow loads them."""
    plugins = get_policy_plugin_manager()
    before = set(plugins.get_plugins())

    def install(hook: Callable[[Any], None]) -> None:
        make_plugin_from_local_settings(plugins, SimpleNamespace(pod_mutation_hook=hook), {"pod_mutation_hook"})

    yield install
    for plugin in set(plugins.get_plugins()) - before:
        plugins.unregister(plugin)


def test_what_a_sites_hook_changes_is_created_and_planned(
    make_platform: Make, monkeypatch: pytest.MonkeyPatch, site_hook: Callable[[Callable[[Any], None]], None]
) -> None:
    """Of every role and learner, beside what the manifest asks for."""
    seen: list[tuple[str, str | None, dict[str, str]]] = []

    def hook(pod: V1Pod) -> None:
        (main,) = pod.spec.containers
        seen.append((main.image, main.resources.limits.get("nvidia.com/gpu"), dict(pod.spec.node_selector or {})))
        main.image = f"mirror.example/{main.image}"
        main.command = ["/site/wrap", *main.command]
        main.resources.limits["cpu"] = "7"
        main.env.append(V1EnvVar(name="SITE", value="north"))
        pod.spec.node_selector = {**(pod.spec.node_selector or {}), "pool": "training"}
        pod.spec.priority_class_name = "jobs"
        pod.metadata.annotations["site.example/team"] = "vision"

    site_hook(hook)
    created = noted(monkeypatch)
    resources = {"learners": 2, "gpus": 1, "gpu_type": "a100"}
    platform = make_platform(judged=False, resources=resources)
    platform.cluster.gpus = "8"
    platform.cluster.node_labels["updraft.dev/gpu-type"] = "a100"
    found = hold_to_what_is_created(platform, created)
    gpu = {"updraft.dev/gpu-type": "a100"}
    assert [image for image, *_ in seen[:4]] == [image for image, *_ in seen[4:]]
    assert [rest for _, *rest in seen] == 2 * [[None, {}], ["1", gpu], ["1", gpu], ["1", gpu]]
    for role in ROLES:
        pods = [made for made in found[role] if made["kind"] == "Pod"]
        assert len(pods) == (2 if role == TRAIN_ROLE else 1)
        for pod in pods:
            (main,) = pod["spec"]["containers"]
            assert main["image"].startswith("mirror.example/updraft/")
            assert main["command"] == ["/site/wrap", "/bin/sh", "-c"]
            assert main["resources"]["limits"]["cpu"] == "7"
            assert {"name": "SITE", "value": "north"} in main["env"]
            assert pod["spec"]["nodeSelector"] == {"pool": "training", **(gpu if role != PREPARE_ROLE else {})}
            assert pod["spec"]["priorityClassName"] == "jobs"
            assert pod["metadata"]["annotations"] == {"site.example/team": "vision"}


def test_a_hook_that_leaves_no_program_is_told(
    make_platform: Make, site_hook: Callable[[Callable[[Any], None]], None]
) -> None:
    def hook(pod: V1Pod) -> None:
        pod.spec.containers[0].args = ["site-wrapper", *pod.spec.containers[0].args]

    site_hook(hook)
    platform = make_platform()
    platform.run_all()
    assert platform.job.state is State.FAILED
    failure = platform.ledger.idempotency.get(platform.job.id, FAILURE)
    assert failure is not None
    assert failure.reason.startswith("the site's pod_mutation_hook must leave one container 'base'")
    assert not platform.cluster.pods
    with pytest.raises(RefusedError, match="pod_mutation_hook"):
        planned(platform)


def test_objects_beyond_all_measure_are_refused(make_platform: Make) -> None:
    """500 kB of environment, which each of 256 learners repeats, were 130 MB."""
    env = {f"V{n}": "x" * 5_000 for n in range(100)}
    platform = make_platform(env=env, resources={"learners": 24})
    platform.run("admit")
    assert len(planned(platform)[TRAIN_ROLE]) == 24 + 3
    manifest = manifest_of(platform.job)
    wide = manifest.model_copy(update={"resources": manifest.resources.model_copy(update={"learners": 256})})
    with pytest.raises(LimitError, match="16 MB"):
        planned(platform, wide)
