"""Where a role stands after a quota has refused it: waiting without a place, then in line, then due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from updraft.guardian.standing import BackOff, Due, Halted, InLine, Over, Standing, standing
from updraft.ledger import Attempt, Job
from updraft.lifecycle import State
from updraft.recovery.policy import PlannedRelaunch

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
UNTIL = NOW + timedelta(seconds=5)
JOB = Job("job-1", "default", "n", "d", "job-1", {}, State.QUEUED, "exceeded quota: small", "ada", NOW)
RELAUNCH = PlannedRelaunch(UNTIL, 5, "in line again in 5 s")
REFUSED = Attempt("job-1", "train", 1, NOW, NOW, "infrastructure", "x", label="quota.exceeded", relaunch=RELAUNCH)
WAITS = BackOff(REFUSED, UNTIL, "in line again in 5 s")


@pytest.mark.parametrize(
    ("state", "placed", "now", "stands"),
    [
        (State.QUEUED, False, NOW, WAITS),
        (State.QUEUED, False, UNTIL, InLine(REFUSED)),
        (State.QUEUED, True, UNTIL, InLine(REFUSED)),
        (State.QUEUED, True, NOW, InLine(REFUSED)),  # halted and resumed: a person wants it tried now
        (State.DEPLOYING, True, NOW, Due(REFUSED)),
        (State.RECOVERING, True, NOW, WAITS),  # recorded by an earlier version, and its grant is still held
        (State.RECOVERING, True, UNTIL, Due(REFUSED)),
        (State.HALTED, False, NOW, Halted(REFUSED)),
    ],
)
def test_after_a_quota(state: State, placed: bool, now: datetime, stands: Standing) -> None:
    job = Job(**{**vars(JOB), "state": state})
    assert standing(job, REFUSED, halt_asked=False, now=now, placed=placed) == stands


@pytest.mark.parametrize("now", [NOW, UNTIL])
def test_people_are_obeyed_at_any_time(now: datetime) -> None:
    assert standing(JOB, REFUSED, halt_asked=True, now=now, placed=False) == Halted(REFUSED)
    cancelled = Job(**{**vars(JOB), "cancel_requested_by": "ada"})
    assert standing(cancelled, REFUSED, halt_asked=False, now=now, placed=False) == Over("cancelled by ada")
