"""Where a role of a job stands, from the ledger alone: what a trigger does next, whichever process did the steps
before."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from updraft.lifecycle import State
from updraft.recovery.outcome import FailureClass

if TYPE_CHECKING:
    from updraft.ledger import Attempt, Job


@dataclass(frozen=True)
class Running:
    """An attempt is open: its pods are made if they are not, then watched."""

    attempt: Attempt


@dataclass(frozen=True)
class BackingOff:
    """The last attempt was lost; the next one starts at `until`, or the job joins the line again then."""

    after: Attempt
    until: datetime
    reason: str


@dataclass(frozen=True)
class LaunchDue:
    """The next attempt has to be started; None: the role's first."""

    after: Attempt | None


@dataclass(frozen=True)
class Halted:
    """Stopped by a person, or about to be: no learner runs, and none is started before a resume."""

    after: Attempt | None


@dataclass(frozen=True)
class Queued:
    """Resumed, or refused by a quota a while ago, and waiting for its place."""

    after: Attempt | None


@dataclass(frozen=True)
class Finished:
    """The role has ended, or the job has: nothing is left to watch."""

    reason: str


NextAction = Running | BackingOff | LaunchDue | Halted | Queued | Finished


def next_action(
    job: Job, attempt: Attempt | None, *, halt_asked: bool, now: datetime, placed: bool = True
) -> NextAction:
    """Decide what the controller of a role does next.

    Args:
        job: The job as the ledger has it.
        attempt: The role's newest attempt.
        halt_asked: Whether a halt waits for its answer.
        now: The time by the ledger's clock.
        placed: Whether a QUEUED job is in the queue. A job that released its grant is not, until its back-off ends.
    """
    if job.ended:
        return Finished(f"the job has ended {job.state.value}")
    if attempt is not None and attempt.ended_at is None:
        return Running(attempt)
    goes_on = attempt is None or attempt.outcome == FailureClass.HALTED or attempt.relaunch is not None
    if not goes_on:
        assert attempt is not None
        return Finished(str(attempt.reason))
    if job.cancel_requested_by is not None:
        return Finished(f"cancelled by {job.cancel_requested_by}")
    if halt_asked or job.state is State.HALTED:
        return Halted(attempt)
    if job.state is State.QUEUED and placed:
        return Queued(attempt)
    # DEPLOYING: admitted since the attempt ended. It must not hold longer what others could use.
    following = attempt.relaunch if attempt is not None and job.state is not State.DEPLOYING else None
    if attempt is not None and following is not None and following.not_before > now:
        return BackingOff(attempt, following.not_before, following.reason)
    if job.state is State.QUEUED:
        return Queued(attempt)
    return LaunchDue(attempt)
