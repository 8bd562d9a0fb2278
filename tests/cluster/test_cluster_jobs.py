"""Jobs on a real Kubernetes, from submission to verdict: examples, gangs, data on volumes, and real ways to fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import account_helpers
import pytest
import yaml
from cluster_helpers import pods_apart
from kubecluster.target import Target
from loss_helpers import ALL_A100
from platform_helpers import PROGRAMS, OwnPlatform, Platform, cpus_apart
from system_helpers import REPOSITORY, shell_job

from updraft.client.http import InvalidRequestError
from updraft.kubernetes import objects, rbac
from updraft.manifest import parse
from updraft_learner import contract

pytestmark = pytest.mark.cluster
JOBS = REPOSITORY / "jobs"
SMALL = {"learners": 1, "cpus": 0.25, "memory": "64MiB"}
EXAMPLES = ("digits-sklearn", "shell-hello")
HOG = "/usr/bin/perl -e '$x = \"x\" x 400_000_000; sleep 60'"
# Three times its disk. The kubelet measures and looks every ten seconds each.
FILLER = 'head -c 200000000 /dev/zero >"$RESULT_DIR/x"; sleep 120'
# Rights that the jobs of this file have no use for; tests/conformance/test_rights.py has.
NOT_OF_EVERY_JOB = {
    ("create", "policy", "poddisruptionbudgets"): "only with UPDRAFT_DISRUPTION_BUDGET",
    ("get", "", "serviceaccounts"): "a job whose manifest names one",
    ("get", "", "secrets"): "a job's own secrets, where its manifest names some",
    ("update", "", "secrets"): "`updraft secrets set` of one that is there",
    ("delete", "", "secrets"): "`updraft secrets rm`",
}
IMPOSSIBLE = {
    "no-gpu": shell_job("no-gpu", "true", resources={**SMALL, "gpus": 1, "gpu_type": "imaginary-x1"}),
    "no-claim": shell_job("no-claim", "true", data=[{"source": "pvc://nowhere/train"}]),
}
DIGITS = [{"source": "s3://datasets/digits/", "as": "training"}]


def manifest(name: str) -> dict[str, Any]:
    raw: dict[str, Any] = yaml.safe_load((JOBS / name / "manifest.yaml").read_text())
    return raw


def ffdl() -> dict[str, Any]:
    """FfDL's manifest as its users wrote it, but for a program that NumPy is enough for."""
    raw = manifest("ffdl-digits")
    framework = {"name": "sklearn", "version": "latest"}
    command = "python3 least_squares.py\n  --dataset ${DATA_DIR}/digits/digits.csv\n"
    return {**raw, "name": "ffdl", "framework": {**framework, "command": command}}


def gang(platform: Platform) -> dict[str, Any]:
    """Two learners that have to lie on two nodes, where that can be."""
    cpus = cpus_apart(platform.nodes) or 0.25
    fields = {"framework": {"name": "sklearn"}, "code": ".", "command": "python gang.py", "data": DIGITS}
    resources = {"learners": 2, "cpus": cpus, "memory": "512MiB"}
    return {"name": "gang", **fields, "env": {"OMP_NUM_THREADS": "1"}, "resources": resources}


def with_image(name: str, image: str, **fields: Any) -> dict[str, Any]:
    return {**shell_job(name, "true", **fields), "framework": None, "image": image}


@pytest.fixture(scope="module")
def crowded(target: Target, platform: Platform) -> Iterator[str]:
    """A job that fits by the platform's books and not on the cluster: another Updraft holds all GPUs that it could
    have."""
    if not isinstance(platform, OwnPlatform):
        yield ""
        return
    with pods_apart(target) as others:
        others.create("holder", "sleep 3600", **ALL_A100)
        others.in_phase("holder", "Running")
        resources = {**SMALL, "gpus": 1, "gpu_type": "nvidia-a100"}
        yield platform.submit(shell_job("crowded", "true", resources=resources, budget={"infra_attempts": 0}))


@pytest.fixture(scope="module")
def jobs(platform: Platform, crowded: str) -> dict[str, str]:
    """All of them at once, after the one that takes longest: they wait in the queue for two nodes."""
    last_words = "echo about to fail; echo no labels found >&2; exit 1"
    manifests: dict[str, tuple[dict[str, Any], Path | None]] = {
        **{name: (manifest(name), JOBS / name) for name in EXAMPLES},
        "gang": (gang(platform), PROGRAMS),
        "ffdl": (ffdl(), PROGRAMS),
        "looks": (shell_job("looks", "sh looks.sh", code="."), PROGRAMS),
        "private": (shell_job("private", 'umask 077; mkdir "$RESULT_DIR/own"; id >"$RESULT_DIR/own/who.txt"'), None),
        "exit-one": (shell_job("exit-one", last_words), None),
        "oom": (shell_job("oom", HOG, resources=SMALL), None),
        "disk": (shell_job("disk", FILLER, resources={**SMALL, "disk": "64MiB"}), None),
        "no-registry": (
            with_image("no-registry", "registry.updraft.example/team/trainer:1", budget={"infra_attempts": 1}),
            None,
        ),
    }
    return {name: platform.submit(raw, base=base) for name, (raw, base) in manifests.items()}


@pytest.fixture(scope="module")
def impossible(platform: Platform, jobs: dict[str, str]) -> dict[str, str]:
    """Jobs that `submit` refuses, started the way Airflow's form does."""
    ids = {name: f"{name}-{datetime.now():%H%M%S}" for name in IMPOSSIBLE}
    for name, raw in IMPOSSIBLE.items():
        platform.client.trigger(ids[name], {"manifest": parse(raw).canonical()})
    return ids


# --- jobs that end well -------------------------------------------------------------------------------------------


def test_autolog_lands_in_the_jobs_own_run(platform: Platform, jobs: dict[str, str]) -> None:
    detail = platform.completed(jobs["digits-sklearn"])
    assert any(name.startswith("training_") for name in detail.metrics), detail.metrics
    assert "val_accuracy" in detail.metrics
    platform.nothing_is_left(jobs["digits-sklearn"])


def test_a_program_in_an_image_without_python_has_metrics_checkpoints_and_results(
    platform: Platform, jobs: dict[str, str], tmp_path: Path
) -> None:
    detail = platform.completed(jobs["shell-hello"])
    assert "samples" in detail.metrics
    assert platform.client.checkpoints(jobs["shell-hello"]).checkpoints
    (counts,) = platform.client.download(jobs["shell-hello"], "results", tmp_path)
    assert len(counts.read_text().splitlines()) == 10
    (pod,) = platform.witness.pods(jobs["shell-hello"])
    ((name, image),) = [(c["name"], c["image"]) for c in pod["spec"]["containers"]]
    assert (name, image.rpartition("/")[2]) == ("base", "shell:1")


def test_results_that_only_their_owner_may_read_are_stored(
    platform: Platform, jobs: dict[str, str], tmp_path: Path
) -> None:
    platform.completed(jobs["private"])
    (who,) = platform.client.download(jobs["private"], "results", tmp_path)
    assert who.read_text().startswith("uid=10001")


def test_an_ffdl_manifest_trains(platform: Platform, jobs: dict[str, str], tmp_path: Path) -> None:
    platform.completed(jobs["ffdl"])
    assert "accuracy 0.9" in platform.log(jobs["ffdl"])
    files = platform.client.download(jobs["ffdl"], "results", tmp_path)
    assert [file.name for file in files] == ["weights.npy"]


def test_two_learners_on_two_nodes_meet_by_the_names_of_their_service(
    platform: Platform, jobs: dict[str, str], tmp_path: Path
) -> None:
    platform.completed(jobs["gang"])
    nodes = platform.witness.nodes(jobs["gang"])
    assert len(set(nodes)) == 2 or cpus_apart(platform.nodes) is None, nodes
    assert "service" in platform.witness.kinds(jobs["gang"])
    files = platform.client.download(jobs["gang"], "results", tmp_path)
    first, second = sorted((json.loads(f.read_text()) for f in files if f.name == "met.json"), key=lambda m: m["rank"])
    addresses = [pod["status"]["podIP"] for pod in platform.witness.pods(jobs["gang"])]
    for own, peer, address in ((first, second, addresses[1]), (second, first, addresses[0])):
        assert own["peer_name"].partition(".")[0] == peer["host"]
        assert own["peer_by_name"] == own["peer_address"] == peer["own_address"] == address
    assert first["digest"] == second["digest"]
    assert first["loss"] < 0.09  # of one in ten, before the first step
    platform.nothing_is_left(jobs["gang"])


# --- jobs that fail, each for a real cause ------------------------------------------------------------------------


def test_a_failing_programs_last_words_are_the_reason(platform: Platform, jobs: dict[str, str]) -> None:
    job_id = jobs["exit-one"]
    assert platform.ended(job_id) == ("program", "program.exit", ["program.exit"]), platform.explained(job_id)
    reason = str(platform.client.job(job_id).reason)
    assert "exited with 1" in reason
    assert "no labels found" in reason
    platform.nothing_is_left(job_id)


@pytest.mark.fault("learner_oom")
def test_the_kernels_kill_for_memory_names_the_limit_and_the_field(platform: Platform, jobs: dict[str, str]) -> None:
    job_id, label = jobs["oom"], "program.out_of_memory"
    assert platform.ended(job_id) == ("program", label, [label]), platform.explained(job_id)
    reason = str(platform.client.job(job_id).reason)
    assert "64 MiB" in reason
    assert "resources.memory" in reason
    (pod,) = platform.witness.pods(job_id)
    (state,) = [s["state"] for s in pod["status"]["containerStatuses"] if s["name"] == "base"]
    assert state["terminated"]["reason"] == "OOMKilled"


@pytest.mark.fault("disk_limit")
def test_who_writes_more_than_its_disk_is_told_the_limit_and_the_field(
    platform: Platform, jobs: dict[str, str]
) -> None:
    job_id, label = jobs["disk"], "pod.disk_limit"
    assert platform.ended(job_id) == ("program", label, [label]), platform.explained(job_id)
    reason = str(platform.client.job(job_id).reason)
    assert "64Mi" in reason
    assert "resources.disk" in reason
    (pod,) = platform.witness.pods(job_id)
    (program,) = pod["spec"]["containers"]
    assert program["resources"]["requests"]["ephemeral-storage"] == "64Mi"


@pytest.mark.fault("registry_away")
def test_a_registry_that_is_not_found_is_tried_again_within_the_budget(
    platform: Platform, jobs: dict[str, str]
) -> None:
    job_id, label = jobs["no-registry"], "image.registry_unknown"
    assert platform.ended(job_id) == ("infrastructure", label, [label, label]), platform.explained(job_id)
    assert "registry.updraft.example" in str(platform.client.job(job_id).reason)
    platform.nothing_is_left(job_id)


@pytest.mark.parametrize(
    ("name", "field", "words"),
    [
        ("no-gpu", "resources", "no node has imaginary-x1"),
        ("no-claim", "data[0].source", "claim 'nowhere' does not exist"),
    ],
)
def test_what_no_node_or_claim_can_give_is_refused_by_submit_and_told_by_admission(
    platform: Platform, impossible: dict[str, str], name: str, field: str, words: str
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        platform.submit(IMPOSSIBLE[name])
    ((named, message),) = refused.value.fields
    assert (named, words in message) == (field, True), message
    assert platform.ended(impossible[name]) == ("configuration", None, [])
    reason = str(platform.client.job(impossible[name]).reason)
    assert words in reason
    if name == "no-gpu" and isinstance(platform, OwnPlatform):
        assert "nvidia-a100, nvidia-h100" in reason
    assert platform.witness.kinds(impossible[name]) == set()


@pytest.mark.fault("no_room")
def test_a_job_that_the_cluster_never_has_room_for_ends_with_the_schedulers_words(
    own_platform: OwnPlatform, crowded: str
) -> None:
    label = "pod.no_room"
    *verdict, attempts = own_platform.ended(crowded)
    assert verdict == ["infrastructure", label], own_platform.explained(crowded)
    assert set(attempts) == {label}  # it is tried again while other jobs run, which may leave
    assert "Insufficient nvidia.com/gpu" in str(own_platform.client.job(crowded).reason)
    own_platform.nothing_is_left(crowded)


# --- who may do what ----------------------------------------------------------------------------------------------


def test_a_learner_finds_no_token_no_credential_and_no_privilege(platform: Platform, jobs: dict[str, str]) -> None:
    platform.completed(jobs["looks"])
    assert platform.log(jobs["looks"]).splitlines() == ["looked as 10001"]


def test_learners_run_under_the_restricted_profile_without_an_account(platform: Platform, jobs: dict[str, str]) -> None:
    namespace = platform.witness.core.read_namespace(platform.namespace)
    assert namespace.metadata.labels["pod-security.kubernetes.io/enforce"] == "restricted"
    for name in (*EXAMPLES, "gang", "looks"):
        platform.end(jobs[name])
        for pod in platform.witness.pods(jobs[name]):
            assert pod["spec"]["automountServiceAccountToken"] is False
            sources = {kind for volume in pod["spec"]["volumes"] for kind in volume if kind != "name"}
            assert sources == {"emptyDir", "secret"}
            (program,) = pod["spec"]["containers"]
            mounted = [contract.JOB_VOLUME, objects.SHARED_MEMORY_VOLUME]
            assert [mount["name"] for mount in program["volumeMounts"]] == mounted


def test_the_platform_uses_the_rights_of_deploy_kustomize_and_no_other(
    own_platform: OwnPlatform, jobs: dict[str, str]
) -> None:
    """As the API server's audit log has it: everything that made a job's objects, and everything that was asked."""
    since = min(own_platform.end(job_id).created_at for job_id in jobs.values())
    lines = own_platform.cluster.layout.audit_log.read_text().splitlines()
    events = [event for event in map(json.loads, lines) if "objectRef" in event]
    ours = [e for e in events if e["user"]["username"] == account_helpers.NAME]
    asked = {(e["verb"], e["objectRef"].get("apiGroup", ""), _resource(e["objectRef"])) for e in ours}
    allowed = {*rbac.each(rbac.NAMESPACED), *rbac.each(rbac.CLUSTER), *rbac.OF_EVERYBODY}
    assert asked <= allowed
    granted = {*rbac.each(rbac.NAMESPACED), *rbac.each(rbac.CLUSTER)}
    assert granted - asked <= NOT_OF_EVERY_JOB.keys(), "take these out of the Role, or say here what they are for"
    # Those of tests before are left out: of a quota, and of an API server that has not read its own rules yet.
    here = [e for e in ours if datetime.fromisoformat(e["requestReceivedTimestamp"]) >= since]
    assert [e for e in here if e.get("responseStatus", {}).get("code") == 403] == []
    names = tuple(jobs.values())
    made = {
        (_resource(e["objectRef"]), e["user"]["username"])
        for e in events
        if e["verb"] == "create" and e["objectRef"].get("name", "").startswith(names)
    }
    objects = ("pods", "secrets", "services", "networkpolicies")
    assert {(kind, who) for kind, who in made if kind in objects} == {(kind, account_helpers.NAME) for kind in objects}


def _resource(ref: dict[str, str]) -> str:
    return f"{ref['resource']}/{ref['subresource']}" if "subresource" in ref else ref["resource"]


def test_nothing_of_any_job_is_left_in_the_namespace(platform: Platform, jobs: dict[str, str]) -> None:
    for name, job_id in jobs.items():
        platform.end(job_id)
        platform.nothing_is_left(job_id)
        if platform.witness.kinds(job_id):  # it was launched
            assert platform.witness.kinds(job_id) - {"service"} == {"pod", "secret", "networkpolicy"}, name
