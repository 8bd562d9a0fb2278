"""A job whose room another tenant takes back: it saves, waits where it was in the queue, and goes on at no cost."""

from __future__ import annotations

from collections.abc import Callable

from unit.controller.driving import TAKEN_BACK, Driver, Story, exits, runs_on, saves, succeed
from unit.controller.test_driven_anywhere import begun, trained
from unit.operators.airflow_fakes import Platform

from updraft.lifecycle import State

Make = Callable[..., Platform]


def test_it_goes_on_from_its_checkpoint_in_its_earlier_place(make_platform: Make) -> None:
    story = Story({1: saves("step-3", then=exits(75, peers=75))}, reclaims=frozenset({"attempt 1"}))
    platform = begun(make_platform, story)
    (before,) = platform.ledger.queue.grants()
    trained(platform, Driver(platform, story))
    first, second = platform.ledger.attempts.of_job(platform.job.id)
    assert (first.outcome, first.label, first.reason) == ("preempted", "grant.reclaimed", TAKEN_BACK)
    assert first.relaunch is not None
    assert (first.relaunch.delay_seconds, first.relaunch.reason) == (
        0.0,
        "preempted, which is no loss: in the queue again at once",
    )
    assert second.resume is not None
    assert second.resume.checkpoint == "step-3"
    told = [(t.to_state, t.reason) for t in platform.ledger.jobs.transitions(platform.job.id)]
    queued = [reason for state, reason in told if state is State.QUEUED]
    assert any(reason.startswith(f"attempt 1 of train gave its room back: {TAKEN_BACK}") for reason in queued)
    held = platform.ledger.queue.used(before.granted_at)
    assert len(held) == 2
    assert held[0].released_at is not None
    assert held[1].granted_at >= held[0].released_at


def test_a_program_that_does_not_leave_is_stopped(make_platform: Make) -> None:
    story = Story({1: saves("step-3", then=runs_on("reclaimed"))}, reclaims=frozenset({"attempt 1"}))
    platform = begun(make_platform, story)
    trained(platform, Driver(platform, story))
    assert [a.label for a in platform.ledger.attempts.of_job(platform.job.id)] == ["grant.reclaimed", "done"]
    assert platform.job.state is State.COMPLETED


def test_a_wish_that_is_over_stops_nothing(make_platform: Make) -> None:
    """The watching ends for it, and the ledger knows of no such wish."""
    looks = iter((runs_on("reclaimed"), succeed))
    story = Story({1: lambda platform, attempt: next(looks)(platform, attempt)})
    platform = begun(make_platform, story)
    trained(platform, Driver(platform, story))
    assert [a.label for a in platform.ledger.attempts.of_job(platform.job.id)] == ["done"]
