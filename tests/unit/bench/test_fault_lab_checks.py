"""Each thing that must hold after a fault is told when it does not, and nothing is told of a job that went well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from faults.checks import Violation, judge, not_calm
from faults.facts import AttemptFacts, CheckpointFacts, JobFacts, LogFacts, VersionFacts
from faults.jobs import Shape, chain
from faults.kinds.base import Rule, merged
from faults.witness import Session

SHAPE = Shape(steps=4)
ANY = Rule()


def session(attempt: int, steps: tuple[int, ...], **changes: Any) -> Session:
    fields: dict[str, Any] = {
        "learner": 1,
        "attempt": attempt,
        "pid": 100 + attempt,
        "started_at": 10.0 * attempt,
        "restored_step": steps[0] - 1,
        "steps": tuple((10.0 * attempt + step, step) for step in steps),
        "saved": (),
        "exit_code": 0,
        "damaged": False,
        "last_at": 10.0 * attempt + steps[-1],
    }
    return Session(**{**fields, **changes})


def good(**changes: Any) -> JobFacts:
    """A job of four steps that lost its first learner after step 3 and went on from step 2."""
    facts = JobFacts(
        id="j",
        state="COMPLETED",
        reason="trained; results are stored",
        ended_at=40.0,
        attempts=(
            AttemptFacts("train", 1, 10.0, 15.0, "infrastructure", "learner 1: Evicted"),
            AttemptFacts("train", 2, 16.0, 30.0, "done", "all learners ended with 0"),
        ),
        checkpoints=(CheckpointFacts("step-2-a1", 2, 1, 12.5, True), CheckpointFacts("step-4-a2", 4, 2, 29.0, True)),
        airflow="success",
        tasks={"train": "success", "release": "success"},
        mlflow="FINISHED",
        mlflow_verdict="COMPLETED",
        points={"chain": [1, 2, 3, 4], "loss": [1, 2, 3, 4]},
        result={"steps": 4, "digest": chain("j", 4), "lineage": [[1, 0, 2], [2, 2, 4]]},
        sessions=(session(1, (1, 2, 3), exit_code=None), session(2, (3, 4))),
        logs=(LogFacts(1, 1, (1, 2, 3), 0, 0), LogFacts(2, 1, (3, 4), 0, 0)),
    )
    found = replace(facts, **changes)
    return found if "downloaded" in changes else replace(found, downloaded=found.result)


def told(facts: JobFacts, shape: Shape = SHAPE, rule: Rule = ANY) -> list[tuple[str, str]]:
    return [(violation.kind, violation.text) for violation in judge(facts, shape, rule)]


def test_a_job_that_recovered_has_nothing_wrong() -> None:
    assert told(good()) == []


def test_a_job_that_has_not_ended_is_lost_and_its_leftovers_are_no_orphans_yet() -> None:
    facts = good(state="RECOVERING", reason="waits", ended_at=None, airflow="running", pods=("p",), granted=True)
    assert told(facts) == [("lost", "is RECOVERING (waits), its run running")]
    assert told(JobFacts(id="j", state=None)) == [
        ("lost", "is unknown to the ledger (no reason), its run None"),
    ]


@pytest.mark.parametrize(
    ("changes", "shape", "rule", "text"),
    [
        (
            {"state": "FAILED", "airflow": "failed", "mlflow": "FAILED", "mlflow_verdict": "FAILED", "reason": "lost"},
            SHAPE,
            ANY,
            "ended FAILED instead of COMPLETED: lost",
        ),
        ({}, SHAPE, Rule(only=frozenset({"CANCELLED"})), "ended COMPLETED instead of CANCELLED: trained"),
        ({}, replace(SHAPE, fails="always", fail_at=3), ANY, "ended COMPLETED instead of FAILED: trained"),
        ({"result": None}, SHAPE, ANY, "ended COMPLETED, but there is no result"),
        ({"result": {"steps": 3}}, SHAPE, ANY, "ended COMPLETED, but its result is of step 3, not 4"),
        ({"result": {"steps": 4, "digest": "x"}}, SHAPE, ANY, "ended COMPLETED, but its result's chain is wrong"),
        ({}, replace(SHAPE, evaluate=True), ANY, "ended COMPLETED, but its evaluation says None"),
    ],
)
def test_a_verdict_against_the_programs_own_record_is_false(
    changes: dict[str, Any], shape: Shape, rule: Rule, text: str
) -> None:
    assert [t for kind, t in told(good(**changes), shape, rule) if kind == "false_verdict" and t.startswith(text)]


def test_a_failure_on_purpose_that_is_called_infrastructure_is_a_false_verdict() -> None:
    shape = replace(SHAPE, fails="always", fail_at=4)
    failed = good(
        state="FAILED",
        reason="budget used up",
        cause="infrastructure",
        airflow="failed",
        mlflow="FAILED",
        mlflow_verdict="FAILED",
        result=None,
    )
    assert told(failed, shape) == [
        ("false_verdict", "its program failed on purpose, and it is called infrastructure: budget used up")
    ]
    assert told(replace(failed, cause="program"), shape) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"mlflow": "RUNNING"}, "the ledger says COMPLETED, MLflow RUNNING"),
        ({"mlflow_verdict": "FAILED"}, "the ledger says COMPLETED, MLflow's tag FAILED"),
        ({"airflow": "failed"}, "the ledger says COMPLETED, Airflow's run is failed"),
        ({"airflow": None}, "Airflow has no such run"),
    ],
)
def test_others_that_say_something_else_disagree(changes: dict[str, Any], text: str) -> None:
    assert told(good(**changes)) == [("disagreement", text)]
    assert [v.text for v in not_calm([(good(**changes), SHAPE, ANY)])] == [text]


def test_what_a_person_painted_or_deleted_is_no_disagreement() -> None:
    assert told(good(airflow="failed"), rule=Rule(airflow_may_differ=True)) == []
    assert told(good(airflow=None), rule=Rule(run_may_be_gone=True)) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"processes": ("7 python",)}, "process 7 python lives"),
        ({"pods": ("p-0",)}, "pod p-0 is left"),
        ({"secrets": ("s",)}, "object s is left"),
        ({"granted": True}, "its grant was not released"),
        ({"open_messages": 2}, "2 messages to MLflow are not delivered"),
        ({"tasks": {"train": "deferred", "admit": "success"}}, "Airflow's run is success with train"),
    ],
)
def test_what_is_left_of_an_ended_job_is_an_orphan(changes: dict[str, Any], text: str) -> None:
    assert told(good(**changes)) == [("orphan", text)]
    assert not_calm([(good(**changes), SHAPE, ANY)]) == [Violation("orphan", "j", text)]


def test_an_open_attempt_of_an_ended_job_is_an_orphan() -> None:
    attempts = (*good().attempts, AttemptFacts("evaluate", 3, 31.0, None, None, None))
    assert told(good(attempts=attempts)) == [("orphan", "attempt 3 of evaluate is open")]


def test_two_points_at_a_step_are_a_doubled_effect() -> None:
    points = {"chain": [1, 2, 3, 3, 4], "loss": [1, 2, 3, 4]}
    assert told(good(points=points)) == [("doubled", "MLflow has 1 steps of chain more than once, the first is 3")]


@pytest.mark.parametrize("lineage", [[[1, 0, 2], [2, 1, 4]], [[2, 0, 2], [1, 2, 4]]])
def test_a_result_that_mixes_attempts_is_a_doubled_effect(lineage: list[list[int]]) -> None:
    facts = good(result={**(good().result or {}), "lineage": lineage})
    assert [kind for kind, _ in told(facts)] == ["doubled"]


def test_a_checkpoint_that_came_after_its_attempt_was_closed_must_not_count() -> None:
    late = CheckpointFacts("step-3-a1", 3, 1, 25.0, True)
    known = good().checkpoints
    assert told(good(checkpoints=(*known, late))) == [
        ("doubled", "checkpoint step-3-a1 counts, though attempt 1 was over when it came")
    ]
    assert told(good(checkpoints=(*known, replace(late, counts=False)))) == []
    assert told(good(checkpoints=(*known, replace(late, stored_at=17.0)))) == []


def test_a_damaged_checkpoint_that_was_used_is_told() -> None:
    sessions = (*good().sessions, session(3, (4,), damaged=True))
    assert ("damaged", "attempt 3 was given a damaged checkpoint") in told(good(sessions=sessions))


def test_points_that_were_made_and_are_missing_are_told_unless_their_pod_was_destroyed() -> None:
    facts = good(points={"chain": [1, 2, 4], "loss": [1, 2, 4]})
    assert told(facts) == [("torn", "MLflow lacks 1 steps that were made, the first is 3")]
    assert told(facts, rule=Rule(tail_may_be_lost=True)) == []


def test_points_of_steps_that_the_next_attempt_was_to_repeat_may_be_missing() -> None:
    """A user ended the job while its second attempt started; that had silenced the first one."""
    first, second = good().attempts
    attempts = (first, replace(second, resumed_from="step-2-a1"))
    sessions = (session(1, (1, 2, 3), exit_code=None),)

    def torn(chain_points: list[int]) -> list[str]:
        facts = good(attempts=attempts, sessions=sessions, points={"chain": chain_points, "loss": chain_points})
        return [text for kind, text in told(facts) if kind == "torn" and "MLflow" in text]

    assert torn([1, 2]) == []
    assert torn([1]) == ["MLflow lacks 1 steps that were made, the first is 2"]


@pytest.mark.parametrize(
    ("log", "text"),
    [
        (LogFacts(1, 1, (1, 3), 0, 0), "is not what the program printed"),
        (LogFacts(1, 1, (1, 1, 2, 3), 0, 0), "is not what the program printed"),
        (LogFacts(1, 1, (1, 2, 3), 1, 2), "has 1 numbers for two lines and 2 gaps"),
        (LogFacts(1, 1, (1,), 0, 0), "lacks its last 2 steps"),
    ],
)
def test_a_log_that_skips_or_repeats_lines_is_torn(log: LogFacts, text: str) -> None:
    assert told(good(logs=(log,))) == [("torn", f"the log of learner 1 in attempt 1 {text}")]


def test_a_log_may_end_early_where_the_pod_was_destroyed_but_must_have_no_hole() -> None:
    lost = Rule(tail_may_be_lost=True)
    assert told(good(logs=(LogFacts(1, 1, (1,), 0, 0),)), rule=lost) == []
    assert told(good(logs=(LogFacts(1, 1, (1, 3), 0, 0),)), rule=lost) != []


def test_a_line_that_was_not_printed_before_the_kill_is_not_missed() -> None:
    assert told(good(logs=(LogFacts(1, 1, (1, 2), 0, 0),))) == []


def test_learners_that_were_started_again_without_need_are_told() -> None:
    assert told(good(), rule=Rule(untouched=True)) == [
        ("needless", "its learners were started 2 times: learner 1: Evicted")
    ]
    forgiven = replace(SHAPE, fails="once", fail_at=3, app_attempts=1)
    assert told(good(), forgiven, Rule(untouched=True)) == []


def test_a_launch_that_found_no_store_and_started_no_program_is_no_start_of_learners() -> None:
    first, second = good().attempts
    gave_up = replace(first, label="store.unreachable")
    rule = Rule(untouched=True, store_away=True)
    nothing_ran = good(attempts=(gave_up, second), sessions=(session(2, (1, 2, 3, 4)),))
    told_needless = ("needless", "its learners were started 2 times: learner 1: Evicted")
    assert told_needless not in told(nothing_ran, rule=rule)
    assert told_needless in told(nothing_ran, rule=Rule(untouched=True))
    assert told_needless in told(good(attempts=(gave_up, second)), rule=rule)
    assert told_needless in told(replace(nothing_ran, attempts=(first, second)), rule=rule)


def test_rules_of_two_faults_allow_what_either_allows() -> None:
    both = merged([Rule(untouched=True, also=frozenset({"FAILED"})), Rule(tail_may_be_lost=True)])
    assert both == Rule(also=frozenset({"FAILED"}), tail_may_be_lost=True)
    assert merged([Rule(untouched=True), Rule(untouched=True)]).untouched
    assert merged([Rule(only=frozenset({"CANCELLED"})), Rule()]).ends(SHAPE) == {"CANCELLED"}


LIFE = replace(SHAPE, program="cnn", evaluate=True)
ONE = VersionFacts("1", "run-1", "READY", own_run=True)


def life(**changes: Any) -> JobFacts:
    """The same job with data, an evaluation and a registered model."""
    facts = {"judged": True, "data_verdicts": (True,), "versions": (ONE,), "champion": "1"}
    return good(**{**facts, **changes})


def test_a_whole_life_cycle_that_went_well_has_nothing_wrong() -> None:
    assert told(life(), LIFE) == []


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        (
            {"versions": (), "champion": None},
            "unregistered",
            "it COMPLETED, and the registry has no version of its model",
        ),
        ({"versions": (ONE, replace(ONE, version="2"))}, "doubled", "the registry has 2 versions of its model"),
        (
            {"versions": (replace(ONE, own_run=False, run_id="other"),)},
            "unregistered",
            "version 1 is READY of run other",
        ),
        ({"champion": None}, "unregistered", "the alias champion points to nothing"),
        ({"champion": "7"}, "unregistered", "the alias champion points to 7"),
        ({"downloaded": None}, "undelivered", "who downloads its results gets nothing"),
        (
            {"downloaded": {"steps": 3}},
            "undelivered",
            "who downloads its results gets something else than the store has",
        ),
        ({"data_verdicts": ()}, "false_verdict", "ended COMPLETED without a verdict that its data are valid"),
    ],
)
def test_a_life_cycle_that_lacks_an_end_is_told(changes: dict[str, Any], kind: str, text: str) -> None:
    assert told(life(**changes), LIFE) == [(kind, text)]


def test_a_failed_job_may_have_registered_nothing_or_one_version_but_never_two() -> None:
    failed = {"state": "FAILED", "airflow": "failed", "mlflow": "FAILED", "mlflow_verdict": "FAILED"}
    rule = Rule(also=frozenset({"FAILED"}))
    assert told(life(**failed, versions=(), champion=None), LIFE, rule) == []
    assert told(life(**failed), LIFE, rule) == []
    two = (ONE, replace(ONE, version="2"))
    assert told(life(**failed, versions=two), LIFE, rule) == [("doubled", "the registry has 2 versions of its model")]


def test_wrong_data_start_no_learner_and_are_called_what_they_are() -> None:
    shape = replace(LIFE, bad_data=True)
    ended = {"state": "FAILED", "airflow": "failed", "mlflow": "FAILED", "mlflow_verdict": "FAILED", "reason": "r"}
    nothing_ran = {"attempts": (), "sessions": (), "logs": (), "points": {}, "result": None, "checkpoints": ()}
    right = life(**ended, **nothing_ran, cause="data", data_verdicts=(False,), versions=(), champion=None)
    assert told(right, shape) == []
    assert told(right, replace(shape, fails="always", fail_at=4)) == []  # its program would have failed later
    assert told(replace(right, cause="infrastructure"), shape) == [
        ("false_verdict", "its data are wrong, and it is called infrastructure: r")
    ]
    launched = replace(right, attempts=good().attempts)
    assert told(launched, shape) == [
        ("false_verdict", "its learners were launched though its data do not meet their suite")
    ]


MEMBERS = replace(SHAPE, program="members")


def members(**changes: Any) -> JobFacts:
    """A job whose learner 1 was lost after step 3, which it alone had applied; the others made that step again."""
    sessions = (session(1, (1, 2, 3), exit_code=None), session(1, (1, 2, 3, 4), learner=2, pid=102))
    only = (AttemptFacts("train", 1, 10.0, 30.0, "done", "all learners ended with 0"),)
    result = {"steps": 4, "digest": chain("j", 4), "lineage": [[1, 0, 4]]}
    return good(**{"attempts": only, "sessions": sessions, "result": result, "data_verdicts": (True,), **changes})


def test_learners_that_are_replaced_need_no_other_attempt() -> None:
    rule = Rule(one_attempt=True)
    one = members(logs=())
    assert told(one, MEMBERS, rule) == []
    again = replace(one, attempts=(*one.attempts, AttemptFacts("train", 2, 31.0, 39.0, "done", "done")))
    assert [kind for kind, _ in told(again, MEMBERS, rule)] == ["needless"]
    assert told(again, MEMBERS, merged([rule, ANY])) == []


def test_a_step_that_was_undone_with_its_learner_may_be_there_twice() -> None:
    twice = members(logs=(), points={"chain": [1, 2, 3, 3, 4], "loss": [1, 2, 3, 3, 4]})
    assert told(twice, MEMBERS) == []
    assert [kind for kind, _ in told(replace(twice, points={"chain": [1, 1, 2, 2, 3, 3, 4, 4]}), MEMBERS)] == [
        "doubled"
    ]


def test_the_steps_of_all_members_must_be_recorded() -> None:
    lacks = members(logs=(), points={"chain": [1, 2, 3], "loss": [1, 2, 3]})
    assert told(lacks, MEMBERS)[0][0] == "torn"
