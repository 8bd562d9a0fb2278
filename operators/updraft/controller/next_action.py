"""Decide from the ledger alone what a trigger does next for a role, whichever process did the steps before."""

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
    """An attempt is open: create its pods if they do not exist, then watch them."""

    attempt: Attempt


@dataclass(frozen=True)
class BackingOff:
    """The last attempt was lost; at `until` the next one starts, or the job joins the queue again."""

    after: Attempt
    until: datetime
    reason: str


@dataclass(frozen=True)
class LaunchDue:
    """The next attempt has to be started. `after` is None for the role's first attempt."""

    after: Attempt | None


@dataclass(frozen=True)
class Halted:
    """A user halted the job or asked for it: no learner runs, and none is started before the job is resumed."""

    after: Attempt | None


@dataclass(frozen=True)
class Queued:
    """The job waits in the queue: it was resumed, or it released its grant (`recovery.policy.releases_grant`)."""

    after: Attempt | None


@dataclass(frozen=True)
class Finished:
    """The role or the job has ended: nothing is left to watch."""

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
    # In DEPLOYING the job got its grant after the attempt ended. It skips the back-off: others could use its room.
    following = attempt.relaunch if attempt is not None and job.state is not State.DEPLOYING else None
    if attempt is not None and following is not None and following.not_before > now:
        return BackingOff(attempt, following.not_before, following.reason)
    if job.state is State.QUEUED:
        return Queued(attempt)
    return LaunchDue(attempt)
