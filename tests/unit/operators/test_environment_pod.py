"""The pod that builds a job's packages: when there is one, what it may do, and what the programs get."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from unit.operators.airflow_fakes import Platform, until
from unit.operators.platform_fakes import role_of, store_done
from unit.operators.test_prepare_pod import failure, keep_secret

from updraft.controller import environments
from updraft.lifecycle import State
from updraft_learner import contract
from updraft_learner.contract import Keys

Make = Callable[..., Platform]
SECTION = {"requirements": ["einops>=0.8"], "index": {"url": "https://packages.example/simple", "secret": "packages"}}
TREE, LOCK = "a" * 64, "einops==0.8.1 \\\n    --hash=sha256:00\n"
BUILT = {"tree": TREE, "key": "b" * 64, "lock": LOCK, "reused": False}


def with_packages(make_platform: Make, answer: dict[str, Any], pods: dict[str, Any], code: int = 0) -> Platform:
    """A platform whose pod of the role `build` leaves this answer; `pods` fills with the newest pod of each role."""

    def look(platform: Platform, job_id: str) -> dict[str, Any]:
        for name, pod in platform.cluster.pods.items():
            role, attempt, learner = role_of(pod)
            pods[role] = pod
            if role == "build":
                key = Keys("default").environment_built(job_id, attempt)
                platform.store.put_bytes(key, json.dumps(answer).encode())
                if code:
                    platform.cluster.set_status(name, exit_code=code)
                    store_done(platform.store, job_id, role, attempt, learner)
                    return {"kind": "failed", "reason": "learner 1 failed", "tails": {"1": ["no"]}}
        return Platform.pods_succeed(platform, job_id)

    platform = make_platform(environment=SECTION)
    keep_secret(platform, "packages", username="me", password="swordfish")
    platform.pods_end = look
    return platform


def config_of(pod: dict[str, Any]) -> dict[str, Any]:
    (sidecar,) = pod["spec"]["initContainers"]
    return json.loads(next(e["value"] for e in sidecar["env"] if e["name"] == contract.CONFIG_ENV).replace("$$", "$"))


def test_packages_are_built_once_and_given_to_each_program(make_platform: Make) -> None:
    pods: dict[str, Any] = {}
    platform = with_packages(make_platform, {"built": BUILT, "error": None}, pods)
    platform.run_all()
    assert platform.job.state is State.COMPLETED, platform.errors
    assert platform.watched == [("build", 1), ("train", 1), ("evaluate", 2), ("export", 3)]
    for role in ("train", "evaluate"):
        (main,) = pods[role]["spec"]["containers"]
        assert config_of(pods[role])["environment_tree"] == TREE
        assert {"name": "PYTHONPATH", "value": contract.ENVIRONMENT_DIR} in main["env"]
        assert f'PATH="{contract.ENVIRONMENT_DIR}/bin:$$PATH"' in main["args"][-1]
    assert config_of(pods["export"])["environment_tree"] is None


def test_the_lock_is_lineage(make_platform: Make) -> None:
    platform = with_packages(make_platform, {"built": BUILT, "error": None}, {})
    until(platform, "train")
    found = environments.recorded(platform.services, platform.job.id)
    assert found is not None
    assert (found.tree, found.packages) == (TREE, ("einops==0.8.1",))
    (run,) = platform.mlflow.runs.values()
    assert run.data.tags["updraft.environment_tree"] == TREE
    assert run.data.tags["updraft.environment_lock"] == found.lock_sha256


def resolved(platform: Platform) -> tuple[str, bytes]:
    (item,) = list(platform.store.list("default/resolved/"))
    return item.key, platform.store.get_bytes(item.key)


def second(make_platform: Make, key: str, text: bytes, pods: dict[str, Any], **changes: Any) -> Platform:
    """Another job of the tenant, which finds what an earlier one had built."""
    platform = with_packages(make_platform, {"built": {**BUILT, "tree": "c" * 64}, "error": None}, pods, **changes)
    platform.store.put_bytes(key, text)
    platform.store.put_bytes(f"default/trees/{TREE}.json", b"{}")
    return platform


def test_a_second_job_gets_the_same_packages_without_a_pod(make_platform: Make) -> None:
    first = with_packages(make_platform, {"built": BUILT, "error": None}, {})
    until(first, "train")
    key, text = resolved(first)
    pods: dict[str, Any] = {}
    platform = second(make_platform, key, text, pods)
    until(platform, "evaluate")
    assert platform.watched == [("train", 1)]
    assert config_of(pods["train"])["environment_tree"] == TREE
    found = environments.recorded(platform.services, platform.job.id)
    assert found is not None
    assert (found.reused, found.packages) == (True, ("einops==0.8.1",))
    (run,) = platform.mlflow.runs.values()
    assert run.data.tags["updraft.environment_lock"] == found.lock_sha256
    assert resolved(platform) == (key, text)  # its age counts from when it was resolved


@pytest.mark.parametrize("change", ["old", "gone", "garbage", "other", "never"])
def test_what_was_resolved_for_something_else_or_too_long_ago_is_not_reused(
    make_platform: Make, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    first = with_packages(make_platform, {"built": BUILT, "error": None}, {})
    until(first, "train")
    key, text = resolved(first)
    if change == "old":
        document = json.loads(text)
        text = json.dumps({**document, "at": "2020-01-01T00:00:00Z"}).encode()
    elif change == "garbage":
        text = b"[]"
    elif change == "other":
        monkeypatch.setitem(SECTION, "requirements", ["einops>=0.7"])
    elif change == "never":
        monkeypatch.setenv("UPDRAFT_ENVIRONMENT_REUSE_SECONDS", "0")
    platform = second(make_platform, key, text, {})
    if change == "gone":
        platform.store.delete(f"default/trees/{TREE}.json")
    until(platform, "train")
    assert platform.watched == [("build", 1)]


def test_the_build_runs_in_the_jobs_image_with_log_ins_by_reference(make_platform: Make) -> None:
    pods: dict[str, Any] = {}
    platform = with_packages(make_platform, {"built": BUILT, "error": None}, pods)
    platform.run_all()
    (main,) = pods["build"]["spec"]["containers"]
    (learner,) = pods["train"]["spec"]["containers"]
    assert main["image"] == learner["image"]
    assert main["args"][-1] == environments.BUILD_COMMAND
    referred = {e["name"]: e["valueFrom"]["secretKeyRef"] for e in main["env"] if "valueFrom" in e}
    assert referred["UPDRAFT_INDEX_0_PASSWORD"]["key"] == "password"
    assert "swordfish" not in json.dumps(pods["build"])
    assert config_of(pods["build"])["data"] == []
    key = Keys("default").environment_request(platform.job.id, 1)
    request = json.loads(platform.store.get_bytes(key))
    assert request["indexes"] == ["https://packages.example/simple"]
    assert "swordfish" not in json.dumps(request)


@pytest.mark.parametrize("kind", ["refused", "limit"])
def test_the_builders_own_words_are_the_jobs_reason(make_platform: Make, kind: str) -> None:
    error = {"kind": kind, "message": "environment.requirements: they need numpy 1.26, and the image has 2.4"}
    platform = with_packages(make_platform, {"built": None, "error": error}, {}, code=64)
    platform.run_all()
    assert platform.job.state is State.FAILED
    assert "they need numpy 1.26" in failure(platform)["reason"]
    assert [role for role, _ in platform.watched] == ["build"]


def test_a_job_without_the_section_builds_nothing(make_platform: Make) -> None:
    platform = make_platform()
    until(platform, "train")
    assert environments.recorded(platform.services, platform.job.id) is None
