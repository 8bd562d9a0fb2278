"""Where a role stands after a quota has refused it: waiting without a place, then queued, then due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from updraft.controller.next_action import BackingOff, Finished, Halted, LaunchDue, NextAction, Queued, next_action
from updraft.ledger import Attempt, Job
from updraft.lifecycle import State
from updraft.recovery.policy import PlannedRelaunch

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
UNTIL = NOW + timedelta(seconds=5)
JOB = Job("job-1", "default", "n", "d", "job-1", {}, State.QUEUED, "exceeded quota: small", "ada", NOW)
RELAUNCH = PlannedRelaunch(UNTIL, 5, "in the queue again in 5 s")
REFUSED = Attempt("job-1", "train", 1, NOW, NOW, "infrastructure", "x", label="quota.exceeded", relaunch=RELAUNCH)
WAITS = BackingOff(REFUSED, UNTIL, "in the queue again in 5 s")


@pytest.mark.parametrize(
    ("state", "placed", "now", "stands"),
    [
        (State.QUEUED, False, NOW, WAITS),
        (State.QUEUED, False, UNTIL, Queued(REFUSED)),
        (State.QUEUED, True, UNTIL, Queued(REFUSED)),
        (State.QUEUED, True, NOW, Queued(REFUSED)),  # halted and resumed: a person wants it tried now
        (State.DEPLOYING, True, NOW, LaunchDue(REFUSED)),
        (State.RECOVERING, True, NOW, WAITS),  # recorded by an earlier version, and its grant is still held
        (State.RECOVERING, True, UNTIL, LaunchDue(REFUSED)),
        (State.HALTED, False, NOW, Halted(REFUSED)),
    ],
)
def test_after_a_quota(state: State, placed: bool, now: datetime, stands: NextAction) -> None:
    job = Job(**{**vars(JOB), "state": state})
    assert next_action(job, REFUSED, halt_asked=False, now=now, placed=placed) == stands


@pytest.mark.parametrize("now", [NOW, UNTIL])
def test_people_are_obeyed_at_any_time(now: datetime) -> None:
    assert next_action(JOB, REFUSED, halt_asked=True, now=now, placed=False) == Halted(REFUSED)
    cancelled = Job(**{**vars(JOB), "cancel_requested_by": "ada"})
    assert next_action(cancelled, REFUSED, halt_asked=False, now=now, placed=False) == Finished("cancelled by ada")
