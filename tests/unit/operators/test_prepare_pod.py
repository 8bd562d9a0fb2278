"""The pod that prepares code and data: when there is one, what it may do, and how its failures are told."""

from __future__ import annotations

import base64
import copy
import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from unit.operators.airflow_fakes import Platform, until
from unit.operators.platform_fakes import CODE_SHA, JUDGED, api_error, role_of, store_done

from updraft.controller.idempotency import FAILURE
from updraft.controller.pods import grace_of, grace_seconds
from updraft.kubernetes.secrets import LABEL_KIND
from updraft.lifecycle import State
from updraft.settings import settings
from updraft_data.suite import suite_digest
from updraft_learner.contract import LABEL_TENANT, Keys

Make = Callable[..., Platform]


def failure(platform: Platform) -> dict[str, str]:
    failure = platform.ledger.idempotency.get(platform.job.id, FAILURE)
    return {} if failure is None else asdict(failure)


def launched(platform: Platform) -> list[str]:
    return [role for role, _ in platform.watched]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())]


def kept_pods(platform: Platform) -> dict[str, dict[str, Any]]:
    """Fills with the newest pod of each role, as the cluster got it; every program succeeds."""
    pods: dict[str, dict[str, Any]] = {}

    def look(platform: Platform, job_id: str) -> dict[str, Any]:
        pods.update({role_of(pod)[0]: copy.deepcopy(pod) for pod in platform.cluster.pods.values()})
        return Platform.pods_succeed(platform, job_id)

    platform.pods_end = look
    return pods


def keep_secret(platform: Platform, name: str, **values: str) -> None:
    """A secret of the tenant."""
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    labels = {LABEL_TENANT: "default", LABEL_KIND: "user-secret"}
    platform.cluster.objects["secret"][f"user.{name}"] = {
        "metadata": {"name": f"user.{name}", "labels": labels},
        "data": data,
    }


ELSEWHERE = {"endpoint": "https://s3.example", "access_key": "AKX", "secret_key": "shh"}  # not the platform's store


def ends(code: int, error: dict[str, str] | None = None, reason: str = "", tail: str = "") -> Any:
    """The pod's program ends so, and its sidecar stores this outcome."""

    def end(platform: Platform, job_id: str) -> dict[str, Any]:
        for name, pod in platform.cluster.pods.items():
            role, attempt, learner = role_of(pod)
            platform.cluster.set_status(name, exit_code=code)
            if reason:
                statuses = platform.cluster.pods[name]["status"]["containerStatuses"]
                statuses[0]["state"]["terminated"]["reason"] = reason
            if error is not None:
                document = {"sources": {}, "report": {"error": error}, "error": error}
                key = Keys("default").prepared(job_id, attempt)
                platform.store.put_bytes(key, json.dumps(document).encode())
            store_done(platform.store, job_id, role, attempt, learner)
        return {"kind": "failed", "reason": "learner 1 failed", "tails": {"1": [tail]}}

    return end


def test_data_and_suite_that_were_judged_before_launch_no_pod(make_platform: Make) -> None:
    platform = make_platform()
    platform.run_all()
    assert platform.job.state is State.COMPLETED, platform.errors
    assert launched(platform) == ["train", "evaluate", "export"]


def test_data_that_no_verdict_is_known_of_is_judged_in_a_pod_before_the_training(make_platform: Make) -> None:
    platform = make_platform(judged=False)
    platform.run_all()
    assert platform.job.state is State.COMPLETED, platform.errors
    # Programs read the number of their attempt: a training begins with 1, whatever came before it.
    assert platform.watched == [("prepare", 1), ("train", 1), ("evaluate", 2), ("export", 3)]
    assert [c.attempt for c in platform.ledger.checkpoints.of_job(platform.job.id)] == [1, 1]
    again = make_platform(platform)
    again.run_id = "digits-2"
    again.states.clear()
    until(again, "evaluate")
    assert launched(again) == ["train"]


def test_the_pod_has_one_learners_room_and_no_credential_of_the_platform(make_platform: Make) -> None:
    pods: list[dict[str, Any]] = []

    def look(platform: Platform, job_id: str) -> dict[str, Any]:
        pods.extend(platform.cluster.pods.values())
        return Platform.pods_succeed(platform, job_id)

    platform = make_platform(judged=False)
    platform.pods_end = look
    until(platform, "train")
    (pod,) = pods
    (main,) = pod["spec"]["containers"]
    assert main["image"] == "updraft/data:0.1"
    assert main["args"][-1] == "exec python -I -m updraft_data"
    assert main["resources"]["requests"] == {"cpu": "0.5", "memory": "256Mi", "ephemeral-storage": "0"}
    assert (main["resources"]["limits"]["cpu"], main["resources"]["limits"]["memory"]) == ("1", "4608Mi")
    assert {mount["name"] for mount in main["volumeMounts"]} == {"job", "shm"}
    assert [entry["name"] for entry in main["env"] if "valueFrom" in entry] == ["MLFLOW_TRACKING_TOKEN"]
    assert "hush" not in json.dumps(pod)


def test_the_pod_of_a_job_with_gpus_takes_none_and_may_lie_where_they_are(make_platform: Make) -> None:
    pods: list[dict[str, Any]] = []

    def look(platform: Platform, job_id: str) -> dict[str, Any]:
        pods.extend(platform.cluster.pods.values())
        return Platform.pods_succeed(platform, job_id)

    resources = {"learners": 1, "cpus": 0.5, "memory": "256MiB", "gpus": 1}
    platform = make_platform(judged=False, resources=resources)
    platform.cluster.gpus = "1"
    platform.pods_end = look
    until(platform, "train")
    (pod,) = pods
    assert "nvidia.com/gpu" not in pod["spec"]["containers"][0]["resources"]["limits"]
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in pod["spec"]["tolerations"]


def variables(container: dict[str, Any]) -> set[str]:
    return {entry["name"] for entry in container.get("env") or ()}


def test_git_alone_gets_the_codes_secret(make_platform: Make) -> None:
    """Of all containers of the job's life: no other one, and no learner that runs the code."""
    code = f"git+https://host.example/repo@{CODE_SHA}"
    platform = make_platform(code=code, code_secret="repo", resources={"learners": 1})
    keep_secret(platform, "repo", token="shh")
    pods = kept_pods(platform)
    platform.run_all()
    assert platform.job.state is State.COMPLETED, platform.errors
    assert sorted(pods) == ["evaluate", "export", "prepare", "train"]
    prepare = pods["prepare"]["spec"]
    (git,) = prepare["containers"]
    (token,) = [entry for entry in git["env"] if entry["name"] == "UPDRAFT_CODE_TOKEN"]
    assert token["valueFrom"] == {"secretKeyRef": {"name": "user.repo", "key": "token", "optional": True}}
    others = [c for role, pod in pods.items() for c in containers(pod) if (role, c["name"]) != ("prepare", "base")]
    assert len(others) == 7  # a sidecar in each, and three programs
    for container in others:
        assert not any(name.startswith("UPDRAFT_CODE_") for name in variables(container)), container["name"]
        assert "user.repo" not in json.dumps(container)
    for pod in pods.values():
        assert "user.repo" not in json.dumps(pod["spec"].get("volumes"))


def test_the_sidecar_has_the_time_that_all_of_the_limits_take_to_store(make_platform: Make) -> None:
    zip_at_another_store = {"source": "s3://bucket/all.zip", "secret": "bucket"}
    code = f"git+https://host.example/repo@{CODE_SHA}"
    platform = make_platform(code=code, data=[zip_at_another_store], resources={"learners": 1})
    keep_secret(platform, "bucket", **ELSEWHERE)
    pods = kept_pods(platform)
    platform.run_all()
    assert platform.job.state is State.COMPLETED, platform.errors
    limits = settings().data_limit_bytes + settings().code_limit_bytes
    seconds = {role: pod["spec"]["terminationGracePeriodSeconds"] for role, pod in pods.items()}
    assert seconds == {"prepare": math.ceil(limits / 20e6), "train": 900, "evaluate": 900, "export": 900}
    assert seconds["prepare"] == 2690
    # What watches the pods, and the job's limits of time, go by the same number.
    attempts = {a.role: grace_seconds(platform.services, a) for a in platform.ledger.attempts.of_job(platform.job.id)}
    assert attempts == seconds


def test_a_plain_copy_is_stored_before_the_program_and_needs_no_longer(environment: Path) -> None:
    assert (
        grace_of(settings(), "prepare", []) == grace_of(settings(), "train", [10**12]) == settings().store_grace_seconds
    )
    assert grace_of(settings(), "prepare", [10**9]) == settings().store_grace_seconds
    assert grace_of(settings(), "prepare", [10**11, 1]) == 5001


@pytest.mark.parametrize(
    ("kind", "cause"), [("data", "data"), ("limit", "data"), ("refused", "data")], ids=lambda value: value
)
def test_a_source_that_cannot_be_had_ends_the_job_with_the_pods_own_reason(
    make_platform: Make, kind: str, cause: str
) -> None:
    platform = make_platform(judged=False)
    platform.pods_end = ends(65, {"kind": kind, "message": "s3://data/x.zip: is no zip archive"}, tail="noise")
    until(platform, "train")
    assert platform.states["stage_data"] == "failed"
    assert (failure(platform)["task"], failure(platform)["cause"]) == ("stage_data", cause)
    assert failure(platform)["reason"] == "s3://data/x.zip: is no zip archive"
    assert launched(platform) == ["prepare"]


def test_what_cannot_be_reached_is_tried_again_within_the_budget(make_platform: Make) -> None:
    platform = make_platform(judged=False, budget={"infra_attempts": 2})
    platform.pods_end = ends(74, {"kind": "unavailable", "message": "code: https://h/r cannot be reached"})
    until(platform, "train")
    assert launched(platform) == ["prepare"] * 3
    assert failure(platform)["cause"] == "infrastructure"
    assert failure(platform)["reason"] == "code: https://h/r cannot be reached"


def test_too_little_memory_names_the_setting(make_platform: Make) -> None:
    platform = make_platform(judged=False)
    platform.pods_end = ends(137, reason="OOMKilled")
    until(platform, "train")
    assert "used more memory than its limit (4608 MiB)" in failure(platform)["reason"]
    assert "UPDRAFT_VALIDATION_MEMORY_BYTES" in failure(platform)["reason"]


def test_data_that_fails_its_suite_ends_the_job_in_validate_data(make_platform: Make) -> None:
    platform = make_platform(judged=False)
    result = {"success": False, "evaluated": 2, "failed": ["label: 1 of 2 values unexpected"]}
    platform.judges = lambda source: {"result": result}
    until(platform, "train")
    assert (platform.states["stage_data"], platform.states["validate_data"]) == ("success", "failed")
    assert failure(platform)["cause"] == "data"
    assert failure(platform)["reason"].startswith("the data does not meet 1 expectation(s): tree:")
    assert failure(platform)["reason"].endswith("label: 1 of 2 values unexpected")


def test_data_that_cannot_be_judged_says_why_and_gets_no_verdict(make_platform: Make) -> None:
    platform = make_platform(judged=False)
    platform.judges = lambda source: {"error": {"kind": "data", "message": "data: t.csv cannot be read as csv"}}
    until(platform, "train")
    assert failure(platform)["reason"] == "data: t.csv cannot be read as csv"
    suite = platform.params["manifest"]["data"][0]["expectations"]
    assert platform.ledger.validations.judged("default", suite_digest(suite, "auto")) == ()
    again = make_platform(platform)
    again.run_id, again.judges = "digits-2", lambda source: JUDGED
    again.states.clear()
    until(again, "evaluate")
    assert launched(again) == ["prepare", "train"]
    assert len(again.ledger.validations.judged("default", suite_digest(suite, "auto"))) == 1


@pytest.mark.parametrize("text", ["", "[]", '{"sources": {"data-0": {"tree": "../../x"}}}', "{" * 10_000])
def test_an_outcome_that_is_none_ends_the_job_readably(make_platform: Make, text: str) -> None:
    def end(platform: Platform, job_id: str) -> dict[str, Any]:
        answer = Platform.pods_succeed(platform, job_id)
        platform.store.put_bytes(Keys("default").prepared(job_id, 1), text.encode())
        return answer

    platform = make_platform(judged=False)
    platform.pods_end = end
    until(platform, "train")
    assert platform.states["validate_data"] in ("failed", "upstream_failed")
    assert "attempt 1 of prepare left cannot be read" in failure(platform)["reason"]


def test_a_death_at_any_call_of_staging_launches_one_pod(make_platform: Make) -> None:
    platform = until(make_platform(judged=False), "stage_data")
    platform.max_tries = 100
    platform.dies_later_each_time = True
    assert platform.run("stage_data") == "success"
    assert platform.kills > 5
    platform.dies_later_each_time = False
    platform.blade.falls_after = None
    assert platform.cluster.created.count("pod digits-1-p1-0") == 1
    platform.run_all()
    assert platform.job.state is State.COMPLETED, platform.errors


def test_a_secret_that_is_gone_at_the_launch_is_named(make_platform: Make) -> None:
    platform = make_platform(data=[{"source": "s3://bucket/folder/", "secret": "bucket"}])
    keep_secret(platform, "bucket", **ELSEWHERE)
    reads: list[str] = []

    def refuse(verb: str, name: str) -> Exception | None:
        if verb == "read secret" and name == "user.bucket":
            reads.append(name)
            return api_error(404) if len(reads) > 1 else None  # `stage_data` has looked, and launches
        return None

    platform.cluster.refuse = refuse
    until(platform, "stage_data")
    assert platform.run("stage_data") == "failed"
    assert len(reads) == 2
    reason = "secret 'bucket' does not exist; create it with `updraft secrets set bucket`"
    assert failure(platform)["reason"] == reason
    assert not [made for made in platform.cluster.created if made.startswith("pod ")]
    assert not platform.cluster.pods
