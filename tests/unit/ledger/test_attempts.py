"""Launches: each is made once whoever asks, the first close stands, and what is closed has no effect any more."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from updraft.exceptions import NotFoundError, RefusedError, StaleAttemptError
from updraft.ledger import Attempt, AttemptClosure, Job, Ledger, NewJob
from updraft.ledger.clock import utc_now
from updraft.ledger.tables import attempts
from updraft.lifecycle import State, Verdict
from updraft.lifecycle.membership import Membership
from updraft.recovery.evidence import AttemptEvidence, FailedLearner
from updraft.recovery.policy import PlannedRelaunch
from updraft.recovery.resume import ResumePlan

Submit = Callable[..., Job]
ROLES = ("train", "evaluate")
RELAUNCH = PlannedRelaunch(
    datetime(2026, 1, 1, 12, tzinfo=UTC), 0.0, "infrastructure loss 1 of 5: the node was lost", ("n1",)
)


def stored(name: str, attempt: int, step: int = 4) -> dict[str, Any]:
    """A checkpoint as the store describes it."""
    return {
        "name": name,
        "step": step,
        "attempt": attempt,
        "metrics": {"loss": 0.5},
        "bytes": 7,
        "uri": f"s3://x/{name}",
    }


def test_numbers_rise_over_all_roles_of_a_job(ledger: Ledger, submit: Submit) -> None:
    submit("a")
    submit("b")
    assert ledger.attempts.ensure("a", "train", after=None).number == 1
    ledger.attempts.close("a", "train", 1, AttemptClosure("infrastructure", "the node was lost"))
    numbers = [ledger.attempts.ensure("a", role, after=n).number for role, n in (("train", 1), ("evaluate", None))]
    assert numbers == [2, 3]
    assert ledger.attempts.ensure("b", "train", after=None).number == 1
    assert ledger.attempts.current("a", "evaluate") is not None
    assert ledger.attempts.current("b", "export") is None


def test_who_asks_late_gets_what_another_has_made(ledger: Ledger, submit: Submit, clock: Any) -> None:
    submit()
    first = ledger.attempts.ensure("job-1", "train", after=None)
    clock.forward(1)
    assert ledger.attempts.ensure("job-1", "train", after=None) == first
    closed = ledger.attempts.close("job-1", "train", 1, AttemptClosure("infrastructure", "lost", relaunch=RELAUNCH))
    assert ledger.attempts.ensure("job-1", "train", after=None) == closed  # not after the newest: nothing is made
    resume = ResumePlan("step-4", 4, 2, "the newest")
    second = ledger.attempts.ensure("job-1", "train", after=1, resume=resume)
    assert second == Attempt("job-1", "train", 2, clock.now, resume=resume)
    assert ledger.attempts.ensure("job-1", "train", after=1, resume=ResumePlan(None, None, None, "none")) == second
    with pytest.raises(NotFoundError, match="no attempt 7 of role 'evaluate'"):
        ledger.attempts.ensure("job-1", "evaluate", after=7)


def test_nothing_is_launched_for_a_job_that_is_over(ledger: Ledger, submit: Submit) -> None:
    submit()
    ledger.requests.make("job-1", "cancel", "ada")
    with pytest.raises(RefusedError, match="job-1 was cancelled by ada; nothing is launched"):
        ledger.attempts.ensure("job-1", "train", after=None)
    ledger.jobs.finish("job-1", Verdict(State.CANCELLED, "cancelled by ada"))
    with pytest.raises(RefusedError, match="job-1 has ended CANCELLED; nothing is launched"):
        ledger.attempts.ensure("job-1", "train", after=None)
    assert ledger.attempts.of_job("job-1") == []


def test_the_first_close_stands_and_an_older_attempt_ends_no_newer_one(
    ledger: Ledger, submit: Submit, clock: Any
) -> None:
    submit()
    started = clock.now
    ledger.attempts.ensure("job-1", "train", after=None)
    clock.forward(60)
    lost = ledger.attempts.close(
        "job-1",
        "train",
        1,
        AttemptClosure(
            "infrastructure", "the node was lost", AttemptEvidence({1: None}), label="node.lost", relaunch=RELAUNCH
        ),
    )
    assert lost == Attempt(
        job_id="job-1",
        role="train",
        number=1,
        started_at=started,
        ended_at=clock.now,
        outcome="infrastructure",
        reason="the node was lost",
        evidence=AttemptEvidence({1: None}),
        label="node.lost",
        relaunch=RELAUNCH,
    )
    assert (
        ledger.attempts.close("job-1", "train", 1, AttemptClosure("program", "no", checkpoints=[stored("late", 1)]))
        == lost
    )
    ledger.attempts.ensure("job-1", "train", after=1)
    with pytest.raises(StaleAttemptError, match=r"1 of role 'train' of job-1 is not the newest \(2 is\)"):
        ledger.attempts.close(
            "job-1", "train", 1, AttemptClosure("failed", "late news", checkpoints=[stored("late", 1)])
        )
    closed = ledger.attempts.close(
        "job-1", "train", 2, AttemptClosure("done", "all left with 0", AttemptEvidence({1: 0, 2: 0}))
    )
    assert ledger.attempts.of_job("job-1") == [lost, closed]
    assert ledger.checkpoints.of_job("job-1") == []
    with pytest.raises(NotFoundError, match="no attempt 9"):
        ledger.attempts.close("job-1", "train", 9, AttemptClosure("failed", "?"))


def test_evidence_that_is_too_large_keeps_the_exit_codes_of_all_learners(ledger: Ledger, submit: Submit) -> None:
    submit()
    ledger.attempts.ensure("job-1", "train", after=None)
    learners = range(1, 1001)
    whole = AttemptEvidence(
        exit_codes=dict.fromkeys(learners, 1),
        markers=dict.fromkeys(learners, False),
        failures=tuple(FailedLearner(learner, "program.exit", "x" * 5000) for learner in learners),
        pods=tuple({"learner": learner, "node": "n" * 200} for learner in learners),
    )
    kept = ledger.attempts.close("job-1", "train", 1, AttemptClosure("program", "failed", whole)).evidence
    assert (kept.exit_codes, kept.markers) == (whole.exit_codes, whole.markers)
    assert [failure.learner for failure in kept.failures] == list(range(1, 21))
    assert all(len(failure.line or "") <= 2000 for failure in kept.failures)
    assert kept.pods == ()


def test_a_close_records_its_own_last_checkpoints_with_it(ledger: Ledger, submit: Submit) -> None:
    submit()
    ledger.attempts.ensure("job-1", "train", after=None)
    ledger.attempts.close("job-1", "train", 1, AttemptClosure("infrastructure", "lost", checkpoints=[stored("s4", 1)]))
    ledger.attempts.ensure("job-1", "train", after=1)
    last = [stored("s4-late", 1, 5), stored("s8", 2, 8), stored("s9", 2, 9)]
    ledger.checkpoints.record("job-1", **last[1])
    ledger.attempts.close("job-1", "train", 2, AttemptClosure("done", "done", checkpoints=last))
    assert [(c.name, c.attempt, c.verified_at is not None) for c in ledger.checkpoints.of_job("job-1")] == [
        ("s4", 1, True),
        ("s8", 2, True),
        ("s9", 2, True),
    ]


def test_a_close_that_fails_records_no_checkpoint(ledger: Ledger, submit: Submit) -> None:
    submit()
    opened = ledger.attempts.ensure("job-1", "train", after=None)
    with pytest.raises(RefusedError, match="outcome"):
        ledger.attempts.close("job-1", "train", 1, AttemptClosure("x" * 101, "lost", checkpoints=[stored("s4", 1)]))
    assert ledger.checkpoints.of_job("job-1") == []
    assert ledger.attempts.current("job-1", "train") == opened


def test_what_an_attempt_stores_after_its_end_is_refused(ledger: Ledger, submit: Submit) -> None:
    submit()
    ledger.attempts.ensure("job-1", "train", after=None)
    kept = ledger.checkpoints.record("job-1", **stored("s4", 1))
    ledger.attempts.close("job-1", "train", 1, AttemptClosure("infrastructure", "lost", relaunch=RELAUNCH))
    with pytest.raises(StaleAttemptError, match="'s5' of job-1 came after the end of attempt 1; refused"):
        ledger.checkpoints.record("job-1", **stored("s5", 1))
    assert ledger.checkpoints.record("job-1", **stored("s4", 1)) == kept
    ledger.attempts.ensure("job-1", "train", after=1)
    with pytest.raises(StaleAttemptError):
        ledger.checkpoints.record("job-1", **stored("s5", 1))
    ledger.checkpoints.record("job-1", **stored("s8", 2, 8))
    assert [c.name for c in ledger.checkpoints.of_job("job-1")] == ["s4", "s8"]


def test_a_quarantined_checkpoint_is_history(ledger: Ledger, submit: Submit, clock: Any) -> None:
    submit()
    for name, step in (("s4", 4), ("s8", 8)):
        ledger.checkpoints.record("job-1", **stored(name, 1, step))
    bad = ledger.checkpoints.quarantine("job-1", "s8", "model.pt: its digest is another")
    assert (bad.quarantined_at, bad.quarantine_reason) == (clock.now, "model.pt: its digest is another")
    clock.forward(1)
    assert ledger.checkpoints.quarantine("job-1", "s8", "again") == bad
    assert [c.name for c in ledger.checkpoints.of_job("job-1")] == ["s4"]
    assert ledger.checkpoints.of_job("job-1", with_quarantined=True)[1] == bad
    gone = ledger.checkpoints.mark_deleted("job-1", "s8", "quarantined for a week")
    assert ledger.checkpoints.of_job("job-1", with_quarantined=True) == ledger.checkpoints.of_job("job-1")
    assert ledger.checkpoints.of_job("job-1", with_deleted=True, with_quarantined=True)[1] == gone
    with pytest.raises(NotFoundError, match="'s9' of job-1 is not in the ledger"):
        ledger.checkpoints.quarantine("job-1", "s9", "?")


def test_the_steps_of_an_attempt_are_their_lowest_and_highest(ledger: Ledger, submit: Submit) -> None:
    submit()
    ledger.attempts.ensure("job-1", "train", after=None)
    for first, last in ((5, 9), (5, 7), (3, 8), (3, 12)):
        ledger.attempts.note_steps("job-1", "train", 1, first, last)
    closed = ledger.attempts.close("job-1", "train", 1, AttemptClosure("infrastructure", "lost"))
    assert (closed.first_step, closed.last_step) == (3, 12)
    ledger.attempts.note_steps("job-1", "train", 1, 0, 99)  # a twin that lives on
    assert ledger.attempts.current("job-1", "train") == closed
    with pytest.raises(NotFoundError):
        ledger.attempts.note_steps("job-1", "evaluate", 1, 0, 1)


def test_the_runtime_counts_neither_halts_nor_lines(ledger: Ledger, submit: Submit, clock: Any) -> None:
    def at(state: State, seconds: float) -> None:
        ledger.jobs.move("job-1", state, f"now {state}")
        clock.forward(seconds)

    submit()
    at(State.QUEUED, 100)
    at(State.DEPLOYING, 1)
    assert ledger.attempts.runtime_seconds("job-1", "train") == 0
    ledger.attempts.ensure("job-1", "train", after=None)
    at(State.PROCESSING, 10)
    ledger.attempts.close("job-1", "train", 1, AttemptClosure("infrastructure", "lost", relaunch=RELAUNCH))
    at(State.RECOVERING, 2)
    ledger.attempts.ensure("job-1", "train", after=1)
    at(State.PROCESSING, 20)
    ledger.attempts.close("job-1", "train", 2, AttemptClosure("halted", "halted by ada"))
    at(State.HALTED, 1000)
    assert ledger.attempts.runtime_seconds("job-1", "train") == 32
    at(State.QUEUED, 500)
    at(State.DEPLOYING, 3)
    ledger.attempts.ensure("job-1", "train", after=2)
    at(State.PROCESSING, 40)
    assert ledger.attempts.runtime_seconds("job-1", "train") == 75
    ledger.attempts.close("job-1", "train", 3, AttemptClosure("done", "done"))
    at(State.STORING, 50)
    ledger.attempts.ensure("job-1", "evaluate", after=None)
    clock.forward(6)
    assert (
        ledger.attempts.runtime_seconds("job-1", "train"),
        ledger.attempts.runtime_seconds("job-1", "evaluate"),
    ) == (75, 6)
    ledger.jobs.finish("job-1", Verdict(State.FAILED, "lost"))
    clock.forward(1000)
    assert (
        ledger.attempts.runtime_seconds("job-1", "train"),
        ledger.attempts.runtime_seconds("job-1", "evaluate"),
    ) == (75, 6)


def test_the_runtime_does_not_count_attempts_that_found_no_room(ledger: Ledger, submit: Submit, clock: Any) -> None:
    submit()
    ledger.attempts.ensure("job-1", "train", after=None)
    clock.forward(10)
    ledger.attempts.close("job-1", "train", 1, AttemptClosure("infrastructure", "lost", relaunch=RELAUNCH))
    clock.forward(2)
    ledger.attempts.ensure("job-1", "train", after=1)
    clock.forward(600)
    ledger.attempts.close(
        "job-1", "train", 2, AttemptClosure("infrastructure", "full", label="pod.no_room", relaunch=RELAUNCH)
    )
    assert ledger.attempts.runtime_seconds("job-1", "train") == 12
    clock.forward(5)
    ledger.jobs.move("job-1", State.QUEUED, "halted and resumed meanwhile: it counts once")
    clock.forward(100)
    ledger.jobs.move("job-1", State.DEPLOYING, "granted")
    ledger.attempts.ensure("job-1", "train", after=2)
    clock.forward(7)
    assert ledger.attempts.runtime_seconds("job-1", "train") == 19


ACTS = st.tuples(
    st.sampled_from(["ensure", "close", "relaunch"]), st.sampled_from(ROLES), st.integers(min_value=-1, max_value=2)
)


@settings(max_examples=60, deadline=None)
@given(acts=st.lists(ACTS, max_size=25))
def test_whoever_asks_in_whatever_order_one_attempt_of_a_role_is_open(
    new_ledger: Callable[[Any], Ledger], acts: list[tuple[str, str, int]]
) -> None:
    ledger = new_ledger(utc_now)
    ledger.jobs.record(NewJob("job-1", "t", "n", "d", "job-1", {}, "ada"))
    closed: dict[int, Attempt] = {}
    followers: dict[tuple[str, int | None], int] = {}
    for verb, role, behind in acts:
        before = ledger.attempts.of_job("job-1")
        of_role = [0, 0, 0, *(attempt.number for attempt in before if attempt.role == role), 99]
        number = of_role[-2 - behind]  # the newest that the actor has seen; 0: none, 99: one that never was
        try:
            if verb == "ensure":
                attempt = ledger.attempts.ensure("job-1", role, after=number or None)
                if attempt not in before:
                    # What follows an attempt is made once, and only of the role's newest.
                    assert followers.setdefault((role, number or None), attempt.number) == attempt.number
            else:
                relaunch = RELAUNCH if verb == "relaunch" else None
                ledger.attempts.close("job-1", role, number, AttemptClosure(verb, "an end", relaunch=relaunch))
        except (NotFoundError, StaleAttemptError):
            assert ledger.attempts.of_job("job-1") == before
        after = ledger.attempts.of_job("job-1")
        assert [attempt.number for attempt in after] == list(range(1, len(after) + 1))
        assert all(sum(a.role == role and a.ended_at is None for a in after) <= 1 for role in ROLES)
        assert all(after[n - 1] == attempt for n, attempt in closed.items())
        closed |= {attempt.number: attempt for attempt in after if attempt.ended_at is not None}


def test_the_members_of_an_open_attempt_change_one_generation_at_a_time(ledger: Ledger, submit: Submit) -> None:
    submit()
    first = ledger.attempts.ensure("job-1", "train", after=None, learners=2).membership
    assert first == Membership.first(2)
    assert ledger.attempts.changed_members() == {}
    second = first.resized(3)
    assert ledger.attempts.change_members("job-1", "train", 1, second).membership == second
    assert ledger.attempts.change_members("job-1", "train", 1, second).membership == second  # again
    assert ledger.attempts.changed_members() == {("job-1", "train"): 2}
    with pytest.raises(RefusedError, match="generation 2 of job-1 does not follow 2"):
        ledger.attempts.change_members("job-1", "train", 1, first.resized(1))  # another process was first
    ledger.attempts.close("job-1", "train", 1, AttemptClosure("infrastructure", "lost"))
    assert ledger.attempts.changed_members() == {}
    with pytest.raises(StaleAttemptError, match="not its open one"):
        ledger.attempts.change_members("job-1", "train", 1, second.resized(1))
    assert ledger.attempts.ensure("job-1", "train", after=1, learners=4).membership == Membership.first(4)


def test_an_attempt_of_an_earlier_version_has_the_manifests_learners(
    ledger: Ledger,
) -> None:
    manifest = {"name": "n", "resources": {"learners": 3}}
    ledger.jobs.record(NewJob("job-1", "default", "n", "train_model", "job-1", manifest, "ada"))
    for role in ("train", "evaluate"):
        ledger.attempts.ensure("job-1", role, after=None)
    with ledger._engine.begin() as connection:
        connection.execute(attempts.update().values(membership=None))
    found = {attempt.role: attempt.membership for attempt in ledger.attempts.of_job("job-1")}
    assert found == {"train": Membership.first(3), "evaluate": Membership.first(1)}
