"""What a manifest with several processes per learner becomes: program, pod and configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from updraft.controller.processes import placement_of
from updraft.controller.programs import program_of
from updraft.controller.specs import JobFacts, spec_of
from updraft.kubernetes.launch import LaunchSpec, Program, objects_of
from updraft.kubernetes.objects import Launch, Manifest
from updraft.lifecycle.membership import Membership
from updraft.manifest import parse
from updraft.settings import Settings
from updraft_learner import contract

GPUS = "nvidia.com/gpu"


def settings(**given: Any) -> Settings:
    always = {"ledger_url": "sqlite://", "s3_endpoint": "http://s3", "mlflow_uri": "http://mlflow"}
    return Settings.model_validate({**always, "credentials_file": Path("none"), **given})


def manifest(**resources: Any) -> Any:
    raw = {"name": "digits", "framework": {"name": "pytorch"}, "command": "python train.py"}
    return parse({**raw, "resources": resources})


def launch(learners: int, role: str = "train") -> Launch:
    return Launch("updraft-default", "default", "digits-1", role, 1, Membership.first(learners))


def program(site: Settings, role: str = "train", **resources: Any) -> Program:
    wanted = manifest(**resources)
    return program_of(site, wanted, launch(resources.get("learners", 1), role), "python train.py")


def environment(made: Program) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in made.environment if "value" in entry}


def spec(site: Settings, **resources: Any) -> LaunchSpec:
    made = program(site, **resources)
    container: Manifest = {
        "name": contract.MAIN_CONTAINER,
        "args": [made.command],
        "env": [dict(entry) for entry in made.environment],
        "resources": {"limits": dict(made.limits)},
    }
    template: Manifest = {"metadata": {}, "spec": {"containers": [container]}}
    started = launch(resources.get("learners", 1))
    return spec_of(
        site, manifest(**resources), started, template, JobFacts("run", "1"), api_server=(), grace_seconds=60
    )


def test_without_the_field_the_pod_starts_the_command_itself() -> None:
    made = program(settings(), gpus=2)
    assert made.command == "python train.py"
    assert environment(made)["PET_NPROC_PER_NODE"] == "2"
    assert not spec(settings(), gpus=2).config.launcher


def test_with_it_the_launcher_starts_the_command_and_the_processes_share_the_cpus() -> None:
    made = program(settings(), learners=2, cpus=4, processes_per_learner=2)
    assert f"{contract.LAUNCHER_FILE} --processes 2 --cpus 4 " in made.command
    assert "'python train.py' &" in made.command
    seen = environment(made)
    assert {name: seen[name] for name in ("OMP_NUM_THREADS", "NUM_LEARNERS", "NODE_RANK", "PET_NPROC_PER_NODE")} == {
        "OMP_NUM_THREADS": "2",
        "NUM_LEARNERS": "2",
        "NODE_RANK": "0",
        "PET_NPROC_PER_NODE": "2",
    }
    assert seen["TRAINING_COMMAND"] == "python train.py"
    assert spec(settings(), processes_per_learner=2).config.launcher


def test_learners_that_share_memory_are_started_by_the_program_and_know_their_number_and_memory() -> None:
    raw = {"name": "digits", "framework": {"name": "pytorch"}, "command": "python train.py"}
    sharing = parse({**raw, "strategy": "shared_memory", "resources": {"cpus": 4, "processes_per_learner": 2}})
    made = program_of(settings(), sharing, launch(1), "python train.py")
    assert made.command == "python train.py"
    names = ("UPDRAFT_SHARED_LEARNERS", "UPDRAFT_MEMORY_BYTES", "OMP_NUM_THREADS", "WORLD_SIZE")
    assert [environment(made)[name] for name in names] == ["2", str(2 * 1024**3), "2", "1"]
    evaluating = program_of(settings(), sharing, launch(1, "evaluate"), "python evaluate.py")
    assert "UPDRAFT_SHARED_LEARNERS" not in environment(evaluating)


def test_the_other_roles_run_their_command_once() -> None:
    assert program(settings(), "evaluate", processes_per_learner=2).command == "python train.py"


def test_every_learner_knows_its_place_for_torchrun() -> None:
    pods = objects_of(spec(settings(), learners=2, processes_per_learner=2)).pods
    places = []
    for pod in pods:
        (main,) = pod["spec"]["containers"]
        seen = {entry["name"]: entry.get("value") for entry in main["env"]}
        places.append([seen[n] for n in ("NODE_RANK", "PET_NODE_RANK", "PET_NNODES", "PET_MASTER_ADDR")])
    assert places == [[str(n), str(n), "2", "digits-1-t1-0.digits-1-t1"] for n in range(2)]


def test_the_size_of_shared_memory_is_that_of_the_manifest() -> None:
    (pod,) = objects_of(spec(settings(), shm="1GiB")).pods
    (volume,) = [v for v in pod["spec"]["volumes"] if v["name"] == "shm"]
    assert volume == {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1024Mi"}}
    (pod,) = objects_of(spec(settings())).pods
    assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in pod["spec"]["volumes"]


def test_a_sites_network_is_for_programs_with_gpus_on_several_nodes() -> None:
    site = settings(nccl_env="NCCL_IB_HCA=mlx5_0,mlx5_1", rdma_resource="rdma/hca=1")
    several = program(site, learners=2, gpus=2)
    assert several.requests["rdma/hca"] == several.limits["rdma/hca"] == "1"
    assert environment(several)["NCCL_IB_HCA"] == "mlx5_0,mlx5_1"
    assert "rdma/hca" not in program(site, gpus=2).limits
    assert "NCCL_IB_HCA" not in environment(program(site, learners=2))
    assert "rdma/hca" not in program(site, "evaluate", learners=2, gpus=2).limits


def test_learners_prefer_nodes_near_each_other() -> None:
    site = settings(topology_labels="example.org/rack,topology.kubernetes.io/zone")
    first, second = objects_of(spec(site, learners=2)).pods
    assert first["spec"]["affinity"] == second["spec"]["affinity"]
    terms = first["spec"]["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [(t["weight"], t["podAffinityTerm"]["topologyKey"]) for t in terms[1:]] == [
        (100, "example.org/rack"),
        (50, "topology.kubernetes.io/zone"),
    ]
    assert terms[1]["podAffinityTerm"]["labelSelector"]["matchLabels"] == launch(2).labels()
    (alone,) = objects_of(spec(site)).pods
    assert len(alone["spec"]["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]) == 1


@pytest.mark.parametrize(("policy", "kind"), [("pack", "podAffinity"), ("spread", "podAntiAffinity")])
def test_learners_of_all_tenants_share_nodes_or_do_not(policy: str, kind: str) -> None:
    (pod,) = objects_of(spec(settings(placement=policy))).pods
    ((name, preferences),) = pod["spec"]["affinity"].items()
    assert name == kind
    [preference] = preferences["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preference["podAffinityTerm"] == {
        "labelSelector": {"matchLabels": {"updraft.dev/role": "train"}},
        "namespaceSelector": {},
        "topologyKey": "kubernetes.io/hostname",
    }
    assert placement_of(settings(placement=policy), manifest(), launch(1, "evaluate")).beside_learners is None
    assert placement_of(settings(placement=policy), manifest(), launch(1), ("node-a",)).beside_learners is None
