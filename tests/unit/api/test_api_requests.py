"""Halting, resuming and cancelling by the routes; attempts, checkpoints and requests as they tell them."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import pytest
from unit.api.api_fakes import MANIFEST, Platform

from updraft.ledger import Attempt, AttemptClosure
from updraft.lifecycle import State, Verdict
from updraft.manifest import parse
from updraft.recovery.policy import PlannedRelaunch
from updraft.recovery.resume import ResumePlan

API = "/updraft/api/v1"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = "digits-1"


def run(platform: Platform) -> int:
    """A job that runs, with its whole manifest in the ledger as `admit` records it."""
    platform.job(JOB, **parse({**MANIFEST, "params": {"lr": 0.1}}).canonical())
    ledger = platform.ledger
    ledger.jobs.move(JOB, State.QUEUED, "waits")
    ledger.jobs.move(JOB, State.DEPLOYING, "admitted")
    ledger.jobs.move(JOB, State.PROCESSING, "runs")
    return ledger.attempts.ensure(JOB, "train", after=None).number


def halt(platform: Platform) -> None:
    run(platform)
    request = platform.ledger.requests.make(JOB, "halt", "ada")
    platform.ledger.attempts.close(JOB, "train", 1, AttemptClosure("halted", "halted by ada"))
    platform.ledger.jobs.move(JOB, State.HALTED, "halted by ada")
    platform.ledger.requests.answer(JOB, request.seq, "halted; the last checkpoint is step-3")


def post(platform: Platform, verb: str, body: Any = None, user: str = "ada") -> Any:
    return platform.client(user).post(f"{API}/jobs/{JOB}/{verb}", json=body)


def test_a_halt_is_recorded_once_with_the_users_name_and_shown(platform: Platform) -> None:
    run(platform)
    first, second = post(platform, "halt"), post(platform, "halt", user="bob")
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json()["request"] == second.json()["request"]
    asked = platform.client().get(f"{API}/jobs/{JOB}").json()["requests"]
    assert [(r["kind"], r["by"], r["answer"]) for r in asked] == [("halt", "ada", None)]
    platform.ledger.requests.answer(JOB, 1, "halted")
    assert platform.client().get(f"{API}/jobs/{JOB}").json()["requests"] == []
    told = platform.client().get(f"{API}/jobs/{JOB}/requests").json()["requests"]
    assert [(r["kind"], r["answer"]) for r in told] == [("halt", "halted")]


def test_what_cannot_be_is_refused_with_advice(platform: Platform) -> None:
    run(platform)
    refused = post(platform, "resume", {"changes": {}})
    assert (refused.status_code, "not halted" in refused.json()["error"]["message"]) == (409, True)
    platform.ledger.jobs.finish(JOB, Verdict(State.FAILED, "exit code 1"))
    for verb, body in (("halt", None), ("resume", None), ("resume", {"changes": {"name": "x"}})):
        refused = post(platform, verb, body)
        assert (refused.status_code, "has ended FAILED" in refused.text) == (409, True)
    assert post(platform, "cancel").json()["message"] == "It has ended FAILED already."


def test_a_resume_without_changes_needs_no_body(platform: Platform) -> None:
    halt(platform)
    assert post(platform, "resume").status_code == 202
    request = platform.ledger.requests.pending(JOB, "resume")
    assert request is not None
    assert (request.by, request.revision) == ("ada", None)


def test_changes_are_merged_into_the_manifest_and_kept_with_the_request(platform: Platform) -> None:
    halt(platform)
    changes = {"resources": {"memory": "4GiB"}, "params": {"lr": 0.01}}
    answer = post(platform, "resume", {"changes": changes})
    assert (answer.status_code, answer.json()["request"]["changes"]) == (202, changes)
    request = platform.ledger.requests.pending(JOB, "resume")
    assert request is not None
    assert request.revision is not None
    made = request.revision["manifest"]
    assert (made["resources"]["memory"], made["resources"]["learners"], made["params"]) == ("4GiB", 2, {"lr": 0.01})
    assert made == parse(made).canonical()


def test_changes_that_change_nothing_are_none(platform: Platform) -> None:
    halt(platform)
    assert post(platform, "resume", {"changes": {"params": {"lr": 0.1}}}).status_code == 202
    request = platform.ledger.requests.pending(JOB, "resume")
    assert request is not None
    assert request.revision is None


def test_one_answer_names_every_wrong_field_and_every_fixed_one(platform: Platform) -> None:
    halt(platform)
    changes = {"name": "other", "data": [], "resources": {"memory": "16 Gigs", "learners": -1}, "parms": {}}
    answer = post(platform, "resume", {"changes": changes})
    assert answer.status_code == 422
    fields = {field["field"] for field in answer.json()["error"]["fields"]}
    assert fields == {"name", "data", "resources.memory", "resources.learners", "parms"}
    assert platform.ledger.requests.pending(JOB, "resume") is None
    assert post(platform, "resume", {"change": {}}).status_code == 422


# --- attempts ---


def recovered(platform: Platform) -> None:
    """Attempt 1 was lost with its node, attempt 2 could not read its checkpoint, attempt 3 runs."""
    run(platform)
    ledger = platform.ledger

    def checkpoint(step: int, attempt: int) -> dict[str, Any]:
        name = f"step-{step}"
        return {"name": name, "step": step, "attempt": attempt, "metrics": {"acc": 0.5}, "bytes": 7, "uri": "s3://x",
                "created_at": NOW}  # fmt: skip

    ledger.attempts.note_steps(JOB, "train", 1, 1, 340)
    lost = AttemptClosure(
        "infrastructure",
        "learner 1: its node is lost",
        {"exit_codes": {"1": None}},
        label="node.lost",
        relaunch=PlannedRelaunch(NOW, 5.0, "infrastructure loss 1 of 5", ("node-a",)),
        checkpoints=[checkpoint(200, 1), checkpoint(300, 1)],
    )
    ledger.attempts.close(JOB, "train", 1, lost)
    ledger.jobs.move(JOB, State.RECOVERING, "attempt 1 was lost")
    plan = ResumePlan("step-300", 300, 40, "the newest")
    ledger.attempts.ensure(JOB, "train", after=1, resume=plan)
    older = PlannedRelaunch(NOW, 0.0, "infrastructure loss 1 of 5", older_checkpoint=True)
    reason = "its checkpoint is damaged"
    ledger.attempts.close(
        JOB, "train", 2, AttemptClosure("infrastructure", reason, label="checkpoint.damaged", relaunch=older)
    )
    ledger.checkpoints.quarantine(JOB, "step-300", "its checksum is wrong")


def test_attempts_say_how_they_ended_and_what_was_done(platform: Platform) -> None:
    recovered(platform)
    plan = ResumePlan("step-200", 200, 140, "an older one")
    platform.ledger.attempts.ensure(JOB, "train", after=2, resume=plan)
    attempts = platform.client().get(f"{API}/jobs/{JOB}/attempts").json()["attempts"]
    brief = [(a["number"], a["cause"], a["label"], a["action"], a["done"]) for a in attempts]
    assert brief == [
        (1, "infrastructure", "node.lost", "relaunch_elsewhere", "relaunched after 5 s on another node from step-300"),
        (2, "infrastructure", "checkpoint.damaged", "older_checkpoint", "relaunched at once from step-200"),
        (3, None, None, None, ""),
    ]
    first = attempts[0]
    assert (first["first_step"], first["last_step"], first["evidence"]) == (1, 340, {"exit_codes": {"1": None}})
    assert first["relaunch"]["reason"] == "infrastructure loss 1 of 5"
    assert attempts[2]["resume"] == asdict(plan)


def test_a_job_that_recovers_says_from_what(platform: Platform) -> None:
    recovered(platform)
    client = platform.client()
    (listed,) = client.get(f"{API}/jobs").json()["jobs"]
    shown = client.get(f"{API}/jobs/{JOB}").json()
    for job in (listed, shown):
        assert (job["state"], job["attempt"]) == ("RECOVERING", 2)
        assert job["loss"] == {
            "attempt": 2,
            "role": "train",
            "cause": "infrastructure",
            "label": "checkpoint.damaged",
            "code": "S302",
            "reason": "its checkpoint is damaged",
            "text": "attempt 2 of train was lost to infrastructure (checkpoint.damaged)",
        }
    (_, last) = client.get(f"{API}/jobs/{JOB}/attempts").json()["attempts"]
    assert last["done"] == "is relaunched at once from an older checkpoint"


def test_a_halted_attempt_waits_and_is_resumed(platform: Platform) -> None:
    halt(platform)

    def done() -> list[tuple[str, str]]:
        found = platform.client().get(f"{API}/jobs/{JOB}/attempts").json()["attempts"]
        return [(a["action"], a["done"]) for a in found]

    assert done() == [("wait", "waits to be resumed")]
    assert platform.client().get(f"{API}/jobs/{JOB}").json()["loss"] is None  # a person's wish is no loss
    platform.ledger.jobs.move(JOB, State.QUEUED, "resumed by ada")
    platform.ledger.jobs.move(JOB, State.DEPLOYING, "admitted")
    platform.ledger.attempts.ensure(JOB, "train", after=1, resume=ResumePlan(None, None, None, "none"))
    assert done()[0] == ("wait", "resumed from the beginning")


def test_checkpoints_that_are_gone_are_told_on_request_with_the_reason(platform: Platform) -> None:
    recovered(platform)
    platform.ledger.checkpoints.mark_deleted(JOB, "step-200", "older than the 3 newest")
    client = platform.client()
    assert client.get(f"{API}/jobs/{JOB}/checkpoints").json() == {"checkpoints": []}
    found = client.get(f"{API}/jobs/{JOB}/checkpoints?all=true").json()["checkpoints"]
    assert [(c["name"], c["attempt"], c["state"], c["reason"]) for c in found] == [
        ("step-200", 1, "deleted", "older than the 3 newest"),
        ("step-300", 1, "quarantined", "its checksum is wrong"),
    ]


def test_what_a_person_made_airflow_say_stands_beside_the_evidence(platform: Platform) -> None:
    run(platform)
    what = {"train": {"airflow": "success", "evidence": "program", "by": "ada"}}
    platform.ledger.jobs.override(JOB, what)
    platform.ledger.jobs.finish(JOB, Verdict(State.FAILED, "exit code 1"))
    said = "Airflow says success of train (marked by ada); evidence says program"
    assert platform.client().get(f"{API}/jobs/{JOB}").json()["override"] == said
    (listed,) = platform.client().get(f"{API}/jobs").json()["jobs"]
    assert listed["override"] == said


@pytest.mark.parametrize("cause", ["superseded", "something-new"])
def test_a_cause_of_another_version_is_shown_as_it_is(cause: str) -> None:
    from updraft.api import history

    found = history.loss([Attempt(JOB, "train", 1, NOW, NOW, cause, "why")])
    assert found is not None
    assert found.text == f"attempt 1 of train ended: {cause}"
