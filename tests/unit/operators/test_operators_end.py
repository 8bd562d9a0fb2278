"""Registration, promotion and release when things are not as they should be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ledger_helpers import grants
from unit.operators.airflow_fakes import ORDER, Platform, after, until
from unit.operators.platform_fakes import store_done

from updraft.controller.idempotency import PROMOTION, Promotion
from updraft.lifecycle import State

Make = Callable[..., Platform]


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The synchronous client's back-off takes no time."""
    import tenacity.nap

    monkeypatch.setattr(tenacity.nap.time, "sleep", lambda seconds: None)


# --- register and promote ---


def test_the_upload_of_a_killed_process_is_replaced(make_platform: Make) -> None:
    platform = until(make_platform(), "register_model")
    platform.dies_later_each_time, platform.max_tries = True, 100
    platform.run("register_model")
    assert [str(m.status) for m in platform.mlflow.models.values()] == ["READY"]
    assert platform.mlflow.models.popitem()[1].files == ["MLmodel", "model.onnx", "requirements.txt"]


def test_metrics_that_came_late_are_in_the_run_before_its_model_is_logged(
    make_platform: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from updraft.operators import registry

    platform = until(make_platform(), "register_model")
    models_then: list[int] = []
    monkeypatch.setattr(
        registry, "replay_metrics", lambda _services, job: models_then.append(len(platform.mlflow.models))
    )
    assert platform.run("register_model") == "success"
    assert models_then == [0]
    assert len(platform.mlflow.models) == 1


def test_nobody_registers_under_another_tenants_name(make_platform: Make) -> None:
    platform = make_platform()
    platform.mlflow.registered["digits"] = {"updraft.tenant": "vision"}
    assert platform.run("admit") == "failed"
    platform.run("release")
    assert platform.job.state is State.FAILED
    assert "the registered model 'digits' is another tenant's" in platform.job.reason
    assert platform.mlflow.versions == []


def test_a_name_that_another_tenant_took_during_the_training_is_not_registered_under(make_platform: Make) -> None:
    platform = until(make_platform(), "register_model")
    platform.mlflow.registered["digits"] = {"updraft.tenant": "vision"}
    assert platform.run("register_model") == "failed"
    assert platform.mlflow.versions == []
    assert platform.mlflow.models == {}


def promotion_of(platform: Platform) -> Promotion:
    found = platform.ledger.idempotency.get(platform.job.id, PROMOTION)
    assert found is not None
    return found


def other_version(platform: Platform, acc: float) -> str:
    run = platform.mlflow.create_run("9", tags={}, run_name="other")
    platform.mlflow.runs[run.info.run_id].data.metrics["acc"] = acc
    platform.mlflow.registered["digits"] = {"updraft.tenant": "default"}
    return str(platform.mlflow.create_model_version("digits", source="x", run_id=run.info.run_id).version)


def test_a_worse_model_does_not_take_the_champions_place(make_platform: Make) -> None:
    platform = until(make_platform(), "promote")
    best = other_version(platform, 0.99)
    platform.mlflow.aliases["digits", "champion"] = best
    assert platform.run("promote") == "success"
    assert platform.mlflow.alias_moves == []
    assert promotion_of(platform).promoted is False
    platform.run("release")
    assert platform.job.state is State.COMPLETED


def test_a_champion_without_a_run_cannot_be_compared_with(make_platform: Make) -> None:
    platform = until(make_platform(), "promote")
    platform.mlflow.create_model_version("digits", source="x", run_id=None)
    platform.mlflow.aliases["digits", "champion"] = "2"
    assert platform.run("promote") == "success"
    assert "cannot be compared" in promotion_of(platform).reason


def test_a_champion_that_came_between_decision_and_second_run_stays(make_platform: Make) -> None:
    """This job's process dies right after it moved the alias; a better job takes the alias before the second run."""
    platform = until(make_platform(export={"register_as": "digits", "promote_if": {"acc": ">= 0.5"}}), "promote")
    better = other_version(platform, 0.95)
    taken: list[bool] = []

    def take() -> None:
        if not taken:
            taken.append(True)
            platform.mlflow.aliases["digits", "champion"] = better
            platform.blade.down = True

    platform.blade.around = after("set_registered_model_alias", platform.blade.around, take)  # type: ignore[method-assign]
    assert platform.run("promote") == "success"
    assert platform.mlflow.aliases["digits", "champion"] == better
    assert platform.mlflow.alias_moves == ["1"]


# --- release ---


@pytest.mark.usefixtures("no_waiting")
def test_the_verdict_does_not_wait_for_a_cluster_that_is_away(make_platform: Make) -> None:
    platform = until(make_platform(), "release")
    platform.cluster.refuse = lambda verb, name: 503
    assert platform.run("release") == "failed"
    assert platform.job.state is State.COMPLETED
    assert [r.info.status for r in platform.mlflow.runs.values()] == ["FINISHED"]
    assert len(grants(platform.ledger)) == 1  # what may still run is not free
    platform.cluster.refuse = lambda verb, name: None
    assert platform.run("release") == "success"
    assert grants(platform.ledger) == []
    assert platform.mlflow.endings == ["FINISHED"]


def test_the_verdict_does_not_wait_for_mlflow(make_platform: Make) -> None:
    platform = until(make_platform(), "release")
    platform.mlflow.away = True
    assert platform.run("release") == "failed"
    assert (platform.job.state, grants(platform.ledger)) == (State.COMPLETED, [])


def test_release_before_the_end_of_a_stuck_task_frees_all_and_closes_its_attempt(make_platform: Make) -> None:
    platform = until(make_platform(), "train")

    def end(platform: Platform, job_id: str) -> dict[str, Any]:
        platform.run("release")
        return {"kind": "missing", "reason": "2 pods are gone", "tails": {}}

    platform.pods_end = end
    assert platform.run("train") == "failed"
    assert (platform.job.state, platform.cluster.left, grants(platform.ledger)) == (State.FAILED, [], [])
    assert [(a.role, a.outcome) for a in platform.ledger.attempts.of_job(platform.job.id)] == [
        ("train", "infrastructure")
    ]
    assert platform.mlflow.endings == ["FAILED"]


def test_an_ended_job_has_no_exit(make_platform: Make) -> None:
    platform = make_platform()
    platform.run_all()
    for task_id in ORDER[:-1]:
        if task_id != "watch_checkpoints":
            platform.states.clear()
            assert platform.run(task_id) == "failed"
            assert "an end has no exit" in platform.errors[task_id]
    assert platform.job.state is State.COMPLETED


def test_a_green_run_without_proof_is_no_success(make_platform: Make) -> None:
    """A user marked `train` as a success by hand."""
    platform = until(make_platform(), "train")
    platform.run("release")
    assert (platform.job.state, platform.job.reason) == (
        State.FAILED,
        "train did not finish; look at its log in Airflow",
    )


# --- what sidecars could not send ---


def test_nested_runs_that_are_left_running_end_with_the_job(make_platform: Make) -> None:
    platform = until(make_platform(), "release")
    platform.mlflow.nested = {"ended": "FAILED", **{f"left-{n}": "RUNNING" for n in range(450)}}
    assert platform.run("release") == "success"
    assert platform.mlflow.nested.pop("ended") == "FAILED"
    assert {*platform.mlflow.nested.values()} == {"KILLED"}
    assert platform.mlflow.endings == ["FINISHED"]


def test_what_a_sidecar_could_not_send_reaches_mlflow_once(
    make_platform: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from learner.sidecar_fakes import FakeMlflow

    from updraft.settings import settings
    from updraft_learner.contract import Keys

    platform = until(make_platform(), "release")
    server, keys, job = FakeMlflow(), Keys("default"), platform.job
    monkeypatch.setenv("UPDRAFT_MLFLOW_URI", server.uri)
    settings.cache_clear()
    try:
        lines = [{"n": n, "t": 1.0 + n, "source": "file", "step": n, "metrics": {"loss": 1.0 / n}} for n in range(1, 6)]
        lines.append({"n": 6, "t": 7.0, "source": "mlflow", "params": {"late": "1"}})
        lines.append({"n": 7, "t": 7.0, "source": "file", "step": 9, "metrics": {"loss": "NaN", "up": "Infinity"}})
        prefix = keys.metrics(job.id, "train", 1, 1)
        platform.store.put_bytes(f"{prefix}/00000001.jsonl", _jsonl(lines[:3]))
        platform.store.put_bytes(f"{prefix}/00000002.jsonl", _jsonl(lines[3:]))
        artifacts = keys.artifacts(job.id, "train", 1, 1)
        platform.store.put_bytes(f"{artifacts}/00000001.data", b"plot")
        platform.store.put_bytes(f"{artifacts}/00000001.json", b'{"owner": "run", "path": "plots/a.png"}')
        server.metrics = [{"key": "loss", "value": 1.0, "timestamp": 2000, "step": 1}]  # this one had arrived
        store_done(platform.store, job.id, "train", 1, 1, metrics_pending=6, artifacts_pending=1)
        platform.dies_later_each_time, platform.max_tries = True, 100
        assert platform.run("release") == "success"
        assert server.points("loss") == [(1, 1.0), (2, 0.5), (3, 1 / 3), (4, 0.25), (5, 0.2), (9, "NaN")]
        assert server.points("up") == []
        assert server.params == {"late": "1"}
        assert server.artifacts == {"real/r1/plots/a.png": b"plot"}
        assert platform.mlflow.endings == ["FINISHED"]
        calls = len(server.calls)
        platform.run("release")
        assert len(server.calls) == calls
    finally:
        server.close()


def _jsonl(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)
