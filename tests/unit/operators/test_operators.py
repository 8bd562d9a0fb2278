"""What each task does when things are not as they should be, and what a person reads then."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
from mlflow.entities import LoggedModelStatus
from unit.operators.airflow_fakes import ORDER, Platform, after, until
from unit.operators.platform_fakes import role_of, store_export

from updraft.controller.idempotency import FAILURE, pod_template
from updraft.lifecycle import State

Make = Callable[..., Platform]


def failure(platform: Platform) -> dict[str, str]:
    failure = platform.ledger.idempotency.get(platform.job.id, FAILURE)
    return {} if failure is None else asdict(failure)


# --- admit ---


def test_the_line_says_what_was_granted(make_platform: Make) -> None:
    platform = until(make_platform(), "stage_data")
    reasons = [t.reason for t in platform.ledger.jobs.transitions(platform.job.id)]
    assert reasons == ["submitted", "waiting to be admitted", "admitted: 2 x (0.5 CPU, 256 MiB)"]


def test_a_job_waits_for_mlflow_and_says_so(make_platform: Make) -> None:
    """However long it is away: the wait spends no try of the task."""
    platform = make_platform()
    platform.mlflow.away = True
    assert platform.run("admit") == "success"
    assert next(name for name, _ in platform.events) == "TrackingTrigger"
    assert failure(platform) == {}
    reasons = [(t.to_state, t.reason) for t in platform.ledger.jobs.transitions(platform.job.id)]
    waiting = "waiting for MLflow, which every job's run is opened in: MLflow at http://127.0.0.1:1 does not answer"
    assert reasons[0] == (State.PENDING, "submitted")
    assert reasons[1][0] is State.PENDING
    assert reasons[1][1].startswith(waiting)
    assert reasons[2:] == [
        (State.QUEUED, "waiting to be admitted"),
        (State.DEPLOYING, "admitted: 2 x (0.5 CPU, 256 MiB)"),
    ]
    assert len(platform.mlflow.runs) == 1


def test_a_job_that_is_cancelled_while_it_waits_for_mlflow_ends(make_platform: Make) -> None:
    platform = make_platform()
    platform.mlflow.away = True
    event = platform._event

    def cancelled(trigger: Any) -> dict[str, Any]:
        platform.ledger.requests.make(platform.job.id, "cancel", "bob")
        return event(trigger)

    platform._event = cancelled  # type: ignore[method-assign]
    assert platform.run("admit") == "failed"
    platform.run("release")
    assert (platform.job.state, platform.job.reason) == (State.CANCELLED, "cancelled by bob")


def test_more_params_than_one_request_takes_all_arrive(make_platform: Make) -> None:
    platform = make_platform(params={f"p{n}": n for n in range(250)})
    platform.run("admit")
    (run,) = platform.mlflow.runs.values()
    assert len(run.data.params) == 250 + 4


@pytest.mark.parametrize("name", ["a\nb", "x" * 300, 7, None, {"a": 1}])
def test_a_manifest_with_an_impossible_name_is_a_failed_job_too(make_platform: Make, name: Any) -> None:
    platform = make_platform(name=name)
    platform.run_all()
    assert platform.states["admit"] == "failed"
    assert platform.job.state is State.FAILED
    assert "name" in platform.job.reason
    assert platform.job.name == "invalid"


def test_a_secret_that_does_not_exist_is_told_before_the_job_waits_in_line(make_platform: Make) -> None:
    platform = make_platform(secrets=[{"name": "hub", "as": "HUB_TOKEN"}])
    platform.run_all()
    assert platform.job.state is State.FAILED
    assert "'hub' not found; `updraft secrets set hub` creates one" in platform.job.reason
    assert State.QUEUED not in {t.to_state for t in platform.ledger.jobs.transitions(platform.job.id)}


# --- cancel ---


@pytest.mark.parametrize("task_id", [t for t in ORDER if t not in ("release", "watch_checkpoints")])
def test_a_cancelled_job_does_not_start_its_next_task(make_platform: Make, task_id: str) -> None:
    platform = until(make_platform(), task_id)
    if task_id == "admit":
        platform.cluster.cpus = "0"

        def process(*_: Any) -> None:
            platform.ledger.requests.make(platform.job.id, "cancel", "bob")

        platform.blade.around = after("enqueue", platform.blade.around, process)  # type: ignore[method-assign]
    else:
        platform.ledger.requests.make(platform.job.id, "cancel", "bob")
    launched = list(platform.cluster.created)
    assert platform.run(task_id) == "failed"
    assert platform.errors[task_id] == "cancelled by bob"
    assert [what for what in platform.cluster.created[len(launched) :] if not what.startswith("namespace ")] == []
    platform.run("release")
    assert (platform.job.state, platform.job.reason) == (State.CANCELLED, "cancelled by bob")
    assert [r.info.status for r in platform.mlflow.runs.values()] == ["KILLED"]


def test_a_cancel_request_in_the_middle_of_staging_is_heard(make_platform: Make) -> None:
    platform = until(make_platform(), "stage_data")
    asked: list[bool] = []

    def cancel() -> None:
        if not asked:
            asked.append(True)
            platform.ledger.requests.make(platform.job.id, "cancel", "bob")

    platform.blade.around = after("list", platform.blade.around, cancel)  # type: ignore[method-assign]
    assert platform.run("stage_data") == "failed"
    assert platform.errors["stage_data"] == "cancelled by bob"
    assert platform.job.code_tree is None


def test_a_cancel_request_after_the_last_task_comes_too_late(make_platform: Make) -> None:
    platform = until(make_platform(), "release")
    platform.ledger.requests.make(platform.job.id, "cancel", "bob")
    platform.run("release")
    assert platform.job.state is State.COMPLETED


# --- learners ---


def test_a_failed_program_is_not_launched_again_by_a_retry_of_its_task(make_platform: Make) -> None:
    platform = make_platform()
    platform.pods_end = Platform.pods_fail
    until(platform, "evaluate")
    assert platform.run("train") == "failed"
    assert platform.errors["train"] == "learner 1: the program exited with 3: no labels"
    assert [name for name in platform.cluster.created if name.startswith("pod")] == [
        "pod digits-1-t1-0",
        "pod digits-1-t1-1",
    ]


def test_a_false_alarm_of_the_watch_ends_nothing(make_platform: Make) -> None:
    platform = until(make_platform(), "train")
    alarms = ["missing", "failed", "ended"]

    def end(platform: Platform, job_id: str) -> dict[str, Any]:
        for name in platform.cluster.pods:
            platform.cluster.set_status(name)
        if alarms:
            return {"kind": alarms.pop(0), "reason": "a mistake", "tails": {}}
        return platform.pods_succeed(job_id)

    platform.pods_end = end
    assert platform.run("train") == "success"
    assert platform.watched == [("train", 1)] * 4


def test_a_pod_that_is_gone_is_no_success_even_with_its_marker(make_platform: Make) -> None:
    platform = until(make_platform(), "train")

    def end(platform: Platform, job_id: str) -> dict[str, Any]:
        event = platform.pods_succeed(job_id)
        if platform.cluster.pods.pop("digits-1-t1-1", None):
            return {**event, "kind": "missing"}
        return event

    platform.pods_end = end
    assert platform.run("train") == "success"
    first, second = platform.ledger.attempts.of_job(platform.job.id)
    assert first.reason == "learner 2: its pod is gone, and how its program ended was not seen"
    assert (first.outcome, second.outcome) == ("infrastructure", "done")
    # It goes on from what the first attempt had stored before it was lost.
    assert second.resume is not None
    assert (second.resume.checkpoint, second.resume.step) == ("step-4", 4)
    states = [t.to_state for t in platform.ledger.jobs.transitions(platform.job.id)]
    assert State.RECOVERING in states


def test_re_attaching_does_not_restart_the_time_that_the_job_may_take(make_platform: Make) -> None:
    platform = until(make_platform(budget={"max_runtime": "1h"}), "train")
    platform.dies_later_each_time = True
    platform.max_tries = 100
    platform.run("train")
    (attempt, *_) = platform.ledger.attempts.of_job(platform.job.id)
    assert attempt.ended_at is not None
    spent = (attempt.ended_at - attempt.started_at).total_seconds()
    assert platform.ledger.attempts.runtime_seconds(platform.job.id, "train") >= spent


def test_a_refused_pod_leaves_nothing_behind(make_platform: Make) -> None:
    platform = until(make_platform(), "train")
    platform.cluster.refuse = lambda verb, name: 422 if (verb, name) == ("create pod", "digits-1-t1-1") else None
    assert platform.run("train") == "failed"
    assert platform.cluster.left == []
    assert failure(platform)["reason"].startswith("The cluster refused to create pod digits-1-t1-1")
    platform.run("release")
    assert [(a.role, a.outcome) for a in platform.ledger.attempts.of_job(platform.job.id)] == [
        ("train", "infrastructure")
    ]


def test_a_worker_that_was_taken_for_dead_leaves_no_pods_after_the_jobs_end(make_platform: Make) -> None:
    platform = until(make_platform(), "train")
    done: list[bool] = []

    def release() -> None:
        if not done:
            done.append(True)
            platform.run("release")

    platform.blade.around = after("create_namespaced_pod", platform.blade.around, release)  # type: ignore[method-assign]
    assert platform.run("train") == "failed"
    assert platform.cluster.left == []
    assert platform.job.state is State.FAILED


def test_no_credential_is_in_a_pod_or_in_what_a_task_hands_on(make_platform: Make) -> None:
    platform = until(make_platform(), "train")
    platform.pods_end = lambda platform, job_id: {"kind": "deadline", "reason": "x", "tails": {}}
    seen: list[str] = []
    create = platform.cluster._create

    def remember(kind: str, body: dict[str, Any]) -> Any:
        if kind == "pod":
            seen.append(json.dumps(body))
        return create(kind, body)

    platform.cluster._create = remember  # type: ignore[method-assign]
    platform.run("train")
    assert len(seen) == 2
    for text in [*seen, json.dumps(platform.events), platform.errors["train"]]:
        assert "hush" not in text


def test_no_job_starts_where_airflow_has_no_log_in(make_platform: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "true")
    platform = make_platform()
    assert platform.run("admit") == "failed"
    assert "accepts every client as an administrator" in platform.errors["admit"]


def test_each_launch_has_a_token_of_its_own_that_only_its_secret_holds(make_platform: Make) -> None:
    platform = until(make_platform(), "train")
    made: dict[str, list[dict[str, Any]]] = {"secret": [], "pod": []}
    create = platform.cluster._create

    def remember(kind: str, body: dict[str, Any]) -> Any:
        made.get(kind, []).append(body)
        return create(kind, body)

    platform.cluster._create = remember  # type: ignore[method-assign]
    platform.run("train")
    tokens = [secret["stringData"]["endpoint-token"] for secret in made["secret"]]
    assert [len(token) >= 40 for token in tokens] == [True] * len(tokens)
    assert len(set(tokens)) == len(tokens)
    told = [json.loads(secret["stringData"]["credentials.json"])["endpoint_token"] for secret in made["secret"]]
    assert told == tokens
    by_reference = [
        variable["valueFrom"]["secretKeyRef"]
        for pod in made["pod"]
        for variable in pod["spec"]["containers"][0]["env"]
        if variable["name"] == "MLFLOW_TRACKING_TOKEN"
    ]
    assert by_reference == [{"name": "digits-1-t1", "key": "endpoint-token"}] * 2
    template = platform.ledger.idempotency.get(platform.job.id, pod_template("train", 1))
    shown = [json.dumps(made["pod"]), json.dumps(template), json.dumps(platform.events), str(platform.errors)]
    assert [token for token in tokens for text in shown if token in text] == []


# --- register and promote ---


def exported(platform: Platform, **changes: Any) -> Platform:
    """Its export pod leaves a report with these changes."""

    def end(platform: Platform, job_id: str) -> dict[str, Any]:
        answer = Platform.pods_succeed(platform, job_id)
        for pod in platform.cluster.pods.values():
            role, attempt, _ = role_of(pod)
            if role == "export":
                store_export(platform.store, job_id, attempt, **changes)
        return answer

    platform.pods_end = end
    return platform


def test_a_version_of_the_jobs_own_code_says_that_nothing_checked_it(make_platform: Make) -> None:
    export = {"formats": ["mlflow"], "trust_code": True, "register_as": "digits"}
    platform = exported(make_platform(export=export), formats={"mlflow": {}})
    platform.run_all()
    assert platform.job.state is State.COMPLETED, platform.errors
    (version,) = platform.mlflow.versions
    said = version.description.removeprefix(f"Trained by job {platform.job.id}; ")
    assert said.startswith("NOT CHECKED. Loading this model runs code of the job")
    assert version.tags["updraft.trust_code"] == "true"
    assert version.tags["updraft.formats"] == "mlflow"


def test_a_checked_version_says_so_and_is_the_champion(make_platform: Make) -> None:
    platform = make_platform()
    platform.run_all()
    (version,) = platform.mlflow.versions
    assert "NOT CHECKED" not in version.description
    assert "checked against the program's own output" in version.description
    assert version.tags["updraft.trust_code"] == "false"
    assert platform.mlflow.aliases == {("digits", "champion"): "1"}


def test_a_report_of_an_unchecked_model_is_neither_registered_nor_promoted_without_trust_code(
    make_platform: Make,
) -> None:
    """Its files are all of known names, and its MLmodel is of a known flavour."""
    platform = exported(make_platform(), formats={"mlflow": {}})
    platform.run_all()
    assert platform.states["register_model"] == "failed"
    assert "the manifest does not say trust_code" in failure(platform)["reason"]
    assert platform.mlflow.versions == []
    assert platform.mlflow.models == {}
    assert platform.mlflow.aliases == {}


def test_a_model_that_the_program_logged_itself_is_not_the_one_that_is_registered(make_platform: Make) -> None:
    """The platform knows its own by the tag `updraft.job_id`, which the sidecar's endpoint refuses to set."""
    platform = until(make_platform(), "register_model")
    run_id = str(platform.job.mlflow_run_id)
    experiment = platform.mlflow.runs[run_id].info.experiment_id
    forged = platform.mlflow.create_logged_model(experiment, name="digits", source_run_id=run_id, tags={"mine": "1"})
    forged.status = LoggedModelStatus.READY
    assert platform.run("register_model") == "success"
    (version,) = platform.mlflow.versions
    assert version.model_id != forged.model_id
    assert version.source == f"models:/{version.model_id}"
    assert platform.mlflow.models[version.model_id].files == ["MLmodel", "model.onnx", "requirements.txt"]


OWN_MODEL = {"formats": ["mlflow"], "trust_code": True}


def asks_for(platform: Platform, name: str) -> None:
    """As the sidecar records what the program asked for with `mlflow.register_model`."""
    run = platform.mlflow.runs[str(platform.job.mlflow_run_id)]
    run.data.tags["updraft.model_request.newest"] = json.dumps({"name": name, "model_id": "m-1"})


def test_the_name_that_the_program_asked_for_is_registered_if_its_code_is_trusted(make_platform: Make) -> None:
    platform = until(exported(make_platform(export=OWN_MODEL), formats={"mlflow": {}}), "register_model")
    asks_for(platform, "people")
    assert platform.run("register_model") == "success"
    assert [version.name for version in platform.mlflow.versions] == ["people"]
    named = exported(make_platform(export={**OWN_MODEL, "register_as": "mine"}), formats={"mlflow": {}})
    named = until(named, "register_model")
    asks_for(named, "people")
    assert named.run("register_model") == "success"
    assert [version.name for version in named.mlflow.versions] == ["mine"]


def test_a_name_that_cannot_be_registered_ends_the_job_with_what_is_allowed(make_platform: Make) -> None:
    platform = until(exported(make_platform(export=OWN_MODEL), formats={"mlflow": {}}), "register_model")
    asks_for(platform, "no name/../x")
    assert platform.run("register_model") == "failed"
    assert "'no name/../x'; a name has letters, digits, dots" in failure(platform)["reason"]
    assert platform.mlflow.versions == []


def test_nothing_is_registered_that_nobody_asked_for(make_platform: Make) -> None:
    platform = until(exported(make_platform(export=OWN_MODEL), formats={"mlflow": {}}), "register_model")
    assert platform.run("register_model") == "skipped"
    assert platform.mlflow.versions == []


# --- checkpoints and validation ---


def test_the_runs_list_of_checkpoints_names_the_deleted_ones_too(make_platform: Make) -> None:
    platform = until(make_platform(), "evaluate")
    (text,) = (t for (_, path), t in platform.mlflow.files.items() if path == "checkpoints.json")
    rows = json.loads(text)
    assert [(r["name"], bool(r["deleted"])) for r in rows] == [
        ("step-1", True),
        ("step-2", True),
        ("step-3", False),
        ("step-4", False),
    ]


def test_the_watch_does_not_fail_a_job_for_its_list(make_platform: Make) -> None:
    platform = until(make_platform(), "watch_checkpoints")
    platform.mlflow.away = True
    assert platform.run("watch_checkpoints") == "success"


def test_the_same_data_in_another_format_is_judged_again(make_platform: Make) -> None:
    first = until(make_platform(judged=False), "train")
    other = make_platform(first)
    judged: list[str] = []

    def judges(source: dict[str, Any]) -> dict[str, Any]:
        judged.append(source["format"])
        return {"result": {"success": False, "evaluated": 1, "failed": ["x: is wrong"]}}

    other.judges, other.run_id = judges, "digits-2"
    other.params["manifest"]["data"][0]["format"] = "csv"
    other.states.clear()
    until(other, "train")
    assert other.states["validate_data"] == "failed"
    assert "x: is wrong" in other.errors["validate_data"]
    assert judged == ["csv"]


# --- a worker's own folders ---


@pytest.mark.parametrize("source", ["/etc", "/x://../../etc", "git+/../../../etc", "../../etc", "~/.ssh"])
def test_no_writing_of_a_path_opens_a_folder_of_the_worker(make_platform: Make, source: str) -> None:
    platform = make_platform(code=source)
    platform.run_all()
    assert platform.job.state is State.FAILED
    assert platform.job.code_tree is None
