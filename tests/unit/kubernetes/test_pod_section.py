"""What the section `pod` becomes in the pods of each role."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from updraft.controller.programs import command_of, program_of
from updraft.controller.records import planned_launch
from updraft.kubernetes.base_pod import base_pod_outside_a_task
from updraft.kubernetes.launch import LaunchSpec, objects_of
from updraft.kubernetes.pod_section import PodExtras, extras_of, with_extras
from updraft.lifecycle.workflow import EVALUATE_ROLE, EXPORT_ROLE, PREPARE_ROLE, TRAIN_ROLE
from updraft.manifest import parse
from updraft.settings import Settings
from updraft_learner import contract

SECTION: dict[str, Any] = {
    "node_selector": {"disk": "ssd"},
    "tolerations": ["dedicated=training:NoSchedule"],
    "volumes": [
        {"mount": "/scratch", "size": "20GiB"},
        {"mount": "/shared", "claim": "team"},
        {"mount": "/models", "claim": "team"},
    ],
    "service_account": "trainer",
    "labels": {"example.com/team": "vision"},
    "annotations": {"example.com/owner": "Ada"},
    "image_pull_secrets": ["registry"],
}
RAW: dict[str, Any] = {
    "name": "digits",
    "framework": {"name": "pytorch"},
    "command": "python train.py",
    "evaluate": {"command": "python evaluate.py"},
    "export": {"formats": ["onnx"]},
    "resources": {"gpus": 1, "gpu_type": "a100", "learners": 2},
    "pod": SECTION,
}


def settings() -> Settings:
    return Settings.model_validate(
        {"ledger_url": "sqlite://", "s3_endpoint": "http://s3", "mlflow_uri": "http://m", "credentials_file": "c"}
    )


def pods_of(role: str, raw: dict[str, Any] = RAW) -> list[dict[str, Any]]:
    manifest = parse(raw)
    launch = planned_launch(settings(), manifest, role, 1, "digits-1", "default")
    program = program_of(settings(), manifest, launch, str(command_of(manifest, role)))
    template = base_pod_outside_a_task(launch, program, "none")
    config = contract.PodConfig(
        job_id="digits-1", tenant="default", role=role, attempt=1, learner=1, learners=launch.membership.size,
        bucket="b", prefix="default", mlflow_run_id="", mlflow_experiment_id="",
    )  # fmt: skip
    return list(objects_of(LaunchSpec(launch, template, config, "updraft/sidecar:1", 30, 30)).pods)


@pytest.mark.parametrize("role", [TRAIN_ROLE, EVALUATE_ROLE])
def test_the_users_program_gets_all_of_the_section(role: str) -> None:
    for pod in pods_of(role):
        metadata, spec = pod["metadata"], pod["spec"]
        (main,) = spec["containers"]
        (sidecar,) = spec["initContainers"]
        assert spec["nodeSelector"] == {"disk": "ssd", "updraft.dev/gpu-type": "a100"}
        assert spec["tolerations"][0] == {
            "key": "dedicated", "operator": "Equal", "value": "training", "effect": "NoSchedule"
        }  # fmt: skip
        assert spec["serviceAccountName"] == "trainer"
        assert spec["automountServiceAccountToken"] is False
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert metadata["labels"]["example.com/team"] == "vision"
        assert metadata["labels"][contract.LABEL_ROLE] == role
        assert metadata["annotations"]["example.com/owner"] == "Ada"
        assert {"name": "volume-1", "emptyDir": {"sizeLimit": "20480Mi"}} in spec["volumes"]
        assert {"name": "volume-2", "persistentVolumeClaim": {"claimName": "team"}} in spec["volumes"]
        mounts = {mount["mountPath"]: mount["name"] for mount in main["volumeMounts"]}
        assert {path: mounts[path] for path in ("/scratch", "/shared", "/models")} == {
            "/scratch": "volume-1", "/shared": "volume-2", "/models": "volume-2"
        }  # fmt: skip
        assert not {"volume-1", "volume-2"} & {mount["name"] for mount in sidecar["volumeMounts"]}


@pytest.mark.parametrize("role", [PREPARE_ROLE, EXPORT_ROLE])
def test_the_platforms_programs_run_on_the_same_nodes_without_volumes_and_account(role: str) -> None:
    (pod,) = pods_of(role)
    spec = pod["spec"]
    assert spec["nodeSelector"]["disk"] == "ssd"
    assert spec["tolerations"][0]["key"] == "dedicated"
    assert pod["metadata"]["labels"]["example.com/team"] == "vision"
    assert "serviceAccountName" not in spec
    assert not [volume for volume in spec["volumes"] if volume["name"].startswith("volume-")]


@pytest.mark.parametrize("role", [TRAIN_ROLE, PREPARE_ROLE])
def test_an_empty_section_changes_nothing(role: str) -> None:
    assert pods_of(role, {**RAW, "pod": {}}) == pods_of(role, {**RAW, "pod": None})


def test_the_pod_that_is_given_stays_as_it_is() -> None:
    pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": contract.MAIN_CONTAINER}]}}
    before = copy.deepcopy(pod)
    made = with_extras(pod, extras_of(parse(RAW).pod, users_program=True))
    assert pod == before
    assert made["metadata"]["labels"] == {"a": "b", "example.com/team": "vision"}
    assert with_extras(pod, PodExtras()) == before
