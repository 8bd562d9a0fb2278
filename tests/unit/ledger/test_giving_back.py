"""A job that a quota refuses gives back what it was granted, and has its turn again: nothing is held for nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_helpers import grants, try_admit

from updraft.allocation import Capacity, GangRequest, Node
from updraft.exceptions import RefusedError
from updraft.ledger import AttemptClosure, Job, Ledger, NewJob, Shift
from updraft.lifecycle import State, Verdict
from updraft.recovery.policy import PlannedRelaunch

ROOM = Capacity((Node("local", 4, 4096),))
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
WORDS = "exceeded quota: small, requested: pods=1, used: pods=4, limited: pods=4"
SHIFT = Shift(f"attempt 1 of train was refused: {WORDS}", {}, {"updraft.attempt": "2"})
RELAUNCH = PlannedRelaunch(datetime(2026, 1, 1, 12, 5, tzinfo=UTC), 300, "no room in the quota so far")


def wants(job_id: str, cpus: int = 4, at: datetime = NOW) -> GangRequest:
    return GangRequest(job_id, 1, cpus, 256, 0, None, at)


def launched(ledger: Ledger, job_id: str) -> None:
    """From the line to an attempt that is open."""
    assert try_admit(ledger, job_id, ROOM).granted
    assert ledger.queue.start(job_id, "granted")
    newest = ledger.attempts.current(job_id, "train")
    ledger.attempts.ensure(job_id, "train", after=newest.number if newest else None)


def refused(ledger: Ledger, job_id: str) -> None:
    newest = ledger.attempts.current(job_id, "train")
    assert newest is not None
    closure = AttemptClosure(
        "infrastructure", WORDS, label="quota.exceeded", relaunch=RELAUNCH, shift=SHIFT, releases_grant=True
    )
    ledger.attempts.close(job_id, "train", newest.number, closure)


@pytest.fixture
def waiting(ledger: Ledger, submit: Callable[..., Job], clock: Any) -> Ledger:
    """A quota has refused job-1; job-2 came after it."""
    for job_id in ("job-1", "job-2"):
        submit(job_id)
        ledger.queue.enqueue(job_id, wants(job_id, at=clock.forward(1)))
        ledger.jobs.move(job_id, State.QUEUED, "waiting")
    launched(ledger, "job-1")
    assert not try_admit(ledger, "job-2", ROOM).granted
    refused(ledger, "job-1")
    return ledger


def test_what_it_was_granted_is_anothers_at_once(waiting: Ledger) -> None:
    assert (waiting.jobs.get("job-1").state, waiting.jobs.get("job-1").reason) == (State.QUEUED, SHIFT.reason)
    assert (waiting.queue.holds("job-1"), grants(waiting)) == (False, [])
    assert [m.state for m in waiting.outbox.undelivered("job-1")] == [State.QUEUED]
    assert try_admit(waiting, "job-2", ROOM).granted


def test_closing_it_again_takes_nothing_from_the_next_launch(waiting: Ledger) -> None:
    """Whoever wakes up after that finds the attempt closed."""
    waiting.queue.requeue("job-1", wants("job-1"))
    waiting.queue.release("job-2")
    launched(waiting, "job-1")
    with pytest.raises(Exception, match="not the newest"):
        waiting.attempts.close(
            "job-1", "train", 1, AttemptClosure("infrastructure", WORDS, shift=SHIFT, releases_grant=True)
        )
    assert [grant.request.job_id for grant in grants(waiting)] == ["job-1"]


def test_it_joins_the_end_of_the_line_once(waiting: Ledger, submit: Callable[..., Job], clock: Any) -> None:
    submit("job-3")
    waiting.queue.enqueue("job-3", wants("job-3", at=clock.forward(1)))
    clock.forward(300)
    waiting.queue.requeue("job-1", wants("job-1"))
    at = clock.now
    clock.forward(300)
    waiting.queue.requeue("job-1", wants("job-1"))
    assert try_admit(waiting, "job-1", ROOM).place == 2  # job-2 has been granted
    waiting.queue.release("job-2")
    assert try_admit(waiting, "job-3", ROOM).granted
    waiting.queue.release("job-3")
    assert try_admit(waiting, "job-1", ROOM).granted
    assert [grant.request.requested_at for grant in grants(waiting)] == [at]


def test_nothing_is_launched_before_its_turn(waiting: Ledger) -> None:
    with pytest.raises(RefusedError, match="before it has its place"):
        waiting.attempts.ensure("job-1", "train", after=1)
    assert waiting.queue.start("job-1", "an answer of long ago") is False
    waiting.queue.requeue("job-1", wants("job-1"))
    assert waiting.queue.start("job-1", "an answer of long ago") is False
    assert waiting.jobs.get("job-1").state is State.QUEUED


@pytest.mark.parametrize("kind", ["cancel", "halt"])
def test_people_end_its_waiting_as_that_of_any_job_in_line(waiting: Ledger, kind: Any) -> None:
    waiting.requests.make("job-1", kind, "ada")
    if kind == "halt":
        assert waiting.jobs.rest("job-1", "it had not started", attempt=1)
        assert waiting.jobs.get("job-1").state is State.HALTED
    else:
        waiting.jobs.finish("job-1", Verdict(State.CANCELLED, "cancelled by ada"))
    waiting.queue.requeue("job-1", wants("job-1"))  # a controller that looked before
    assert not waiting.queue.holds("job-1")
    assert try_admit(waiting, "job-2", ROOM).granted


def test_who_looked_before_the_launch_does_not_put_it_back_in_line(waiting: Ledger) -> None:
    waiting.queue.requeue("job-1", wants("job-1"))
    waiting.queue.release("job-2")
    launched(waiting, "job-1")
    stands = waiting.jobs.get("job-1")
    assert waiting.jobs.move("job-1", State.QUEUED, "2nd in the queue", only_from=State.QUEUED) == stands
    assert waiting.jobs.move("job-1", State.HALTED, "no node has that", only_from=State.QUEUED) == stands


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["start", "ask", "take", "launch", "refuse", "join", "halt", "resume", "end"]),
        st.integers(min_value=0, max_value=2),
    ),
    max_size=30,
)


@settings(max_examples=40, deadline=None)
@given(cpus=st.lists(st.integers(min_value=1, max_value=4), min_size=3, max_size=3), acts=ACTS)
def test_whatever_happens_only_what_is_used_or_about_to_be_is_held(
    new_ledger: Callable[[Any], Ledger], cpus: list[int], acts: list[tuple[str, int]]
) -> None:
    """Never more than there is; nothing by a job that waits out a quota; and once the others have ended, each job that
    is left has its turn."""
    ledger, names = new_ledger(lambda: NOW), [f"job-{n}" for n in range(3)]
    for name, wanted in zip(names, cpus, strict=True):
        ledger.jobs.record(NewJob(name, "t", name, "d", name, {}, "ada"))
        ledger.queue.enqueue(name, wants(name, wanted))
        ledger.jobs.move(name, State.QUEUED, "waiting")
    need = dict(zip(names, cpus, strict=True))
    for verb, number in acts:
        name = names[number]
        act(ledger, verb, name, need[name])
        held = {grant.request.job_id for grant in grants(ledger)}
        assert sum(need[job_id] for job_id in held) <= 4
        for job_id in names:
            newest, state = ledger.attempts.current(job_id, "train"), ledger.jobs.get(job_id).state
            if newest is not None and newest.ended_at is None:
                assert job_id in held, "it was launched without its place"
            if state is State.QUEUED and not ledger.queue.holds(job_id):
                assert job_id not in held
                assert newest is not None
                assert newest.label == "quota.exceeded"
    for job_id in names:
        if ledger.jobs.get(job_id).state is State.QUEUED:
            ledger.queue.requeue(job_id, wants(job_id, need[job_id]))
        else:
            ledger.queue.release(job_id)
    left = [job_id for job_id in names if ledger.jobs.get(job_id).state is State.QUEUED]
    for _ in names:
        for job_id in left:
            if ledger.queue.holds(job_id) and try_admit(ledger, job_id, ROOM).granted:
                assert ledger.queue.start(job_id, "granted")
                ledger.queue.release(job_id)
    assert [job_id for job_id in left if ledger.jobs.get(job_id).state is State.QUEUED] == []


def act(ledger: Ledger, verb: str, job_id: str, cpus: int) -> None:
    """What some controller, worker or person does, whether or not it is the time for it."""
    newest, state = ledger.attempts.current(job_id, "train"), ledger.jobs.get(job_id).state
    runs = newest is not None and newest.ended_at is None
    try:
        if verb == "start" and try_admit(ledger, job_id, ROOM).granted and ledger.queue.start(job_id, "granted"):
            ledger.attempts.ensure(job_id, "train", after=newest.number if newest else None)
        elif verb == "ask":
            try_admit(ledger, job_id, ROOM)
        elif verb == "take":
            ledger.queue.start(job_id, "granted")
        elif verb == "launch" and state is State.DEPLOYING:
            ledger.attempts.ensure(job_id, "train", after=newest.number if newest else None)
        elif verb == "refuse" and newest is not None:
            refused(ledger, job_id)
        elif verb == "join":
            ledger.queue.requeue(job_id, wants(job_id, cpus))
        elif verb == "halt" and state in (State.QUEUED, State.DEPLOYING) and not runs:
            ledger.requests.make(job_id, "halt", "ada")
            ledger.jobs.rest(job_id, "", attempt=None)
        elif verb == "resume" and state is State.HALTED:
            asked = ledger.requests.make(job_id, "resume", "ada")
            ledger.jobs.rejoin(job_id, asked.seq, wants(job_id, cpus))
        elif verb == "end" and not runs and not ledger.jobs.get(job_id).ended:
            ledger.jobs.finish(job_id, Verdict(State.FAILED, "no"))
            ledger.queue.release(job_id)
    except RefusedError:  # not in the queue, or not the time for it
        pass
