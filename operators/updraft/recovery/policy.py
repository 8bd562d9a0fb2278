"""Decide whether a lost attempt is relaunched, when, and which nodes are avoided: two budgets, one back-off.

Pure. The controller asks once per ended attempt, and records the answer before it acts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from updraft.recovery.failure_class import Action, FailureClass
from updraft.recovery.outcome import Outcome
from updraft_learner.backoff import Backoff

INFRA_BACKOFF = Backoff(5.0, 300.0)  # from the second relaunch on; the first one does not wait
APP_BACKOFF = Backoff(10.0, 300.0)
NO_ROOM = "pod.no_room"
NO_QUOTA = "quota.exceeded"
QUOTA_TOO_SMALL = "quota.too_small"
RECLAIMED = "grant.reclaimed"
RESIZED = "grant.resized"
# A job that runs a week loses a node now and then, which is acceptable; a job that loses nodes all the time is not.
INFRA_WINDOW_SECONDS = 24 * 3600.0


@dataclass(frozen=True)
class Budgets:
    """The number of attempts that may be lost: to infrastructure within a day, to the program in total."""

    infra_attempts: int = 5
    app_attempts: int = 0


@dataclass(frozen=True)
class Loss:
    """An earlier attempt of the role that was lost."""

    attempt: int
    cause: FailureClass
    label: str
    node: str | None = None  # set if the attempt's action was ELSEWHERE: the node to avoid
    age_seconds: float = 0.0  # since its end


@dataclass(frozen=True)
class Relaunch:
    """A decision to launch again after a delay. `avoid_nodes` are avoided only if there are other nodes."""

    delay_seconds: float
    reason: str  # the decision and its cost: "infrastructure loss 2 of 5: launched again in 5 s"
    avoid_nodes: tuple[str, ...] = ()
    older_checkpoint: bool = False


@dataclass(frozen=True)
class PlannedRelaunch:
    """A `Relaunch`, as recorded with the attempt that it follows.

    Args:
        not_before: The end of the back-off, in the ledger's time.
    """

    not_before: datetime
    delay_seconds: float
    reason: str
    avoid_nodes: tuple[str, ...] = ()
    older_checkpoint: bool = False

    @classmethod
    def of(cls, relaunch: Relaunch, now: datetime) -> PlannedRelaunch:
        """Return it with its time."""
        not_before = now + timedelta(seconds=relaunch.delay_seconds)
        nodes, older = tuple(relaunch.avoid_nodes), relaunch.older_checkpoint
        return cls(not_before, relaunch.delay_seconds, relaunch.reason, nodes, older)


@dataclass(frozen=True)
class Stop:
    """A decision to end the role with this outcome; `reason` is empty if the outcome's own reason is enough."""

    reason: str


def decide(
    outcome: Outcome,
    losses: Sequence[Loss],
    budgets: Budgets,
    *,
    preempted_before: int = 0,
    room_may_come: bool = False,
) -> Relaunch | Stop:
    """Return whether a role is launched again after its newest attempt ended with `outcome`.

    `losses`: the earlier attempts that were lost; `preempted_before`: how many earlier attempts were preempted;
    `room_may_come`: whether an earlier attempt of the role had room in the cluster, or others may leave, or the cluster
    may grow.

    A preemption uses no budget, but repeated ones wait longer each time. The same is true for a lack of room, as long
    as room may come, and for a quota, which a person may raise at any time. The job waits in the queue and without its
    grant (`releases_grant`). Losses to infrastructure that are older than a day no longer count, and their nodes are no
    longer avoided.
    """
    losses = [x for x in losses if x.cause is FailureClass.PROGRAM or x.age_seconds <= INFRA_WINDOW_SECONDS]
    if outcome.label in (RECLAIMED, RESIZED):
        return _again(outcome, losses, 0.0, "preempted, which is no loss" if outcome.label == RECLAIMED else "no loss")
    if outcome.cause is FailureClass.PREEMPTED:
        return _again(outcome, losses, INFRA_BACKOFF.seconds(preempted_before), "preempted, which is no loss")
    waited_for = {NO_QUOTA: "no room in the quota so far", **({NO_ROOM: "no room so far"} if room_may_come else {})}
    if outcome.label in waited_for:
        waits = 1 + sum(loss.label in waited_for for loss in losses)
        kind = f"{waited_for[outcome.label]}, which is no loss"
        return _again(outcome, losses, INFRA_BACKOFF.seconds(waits), kind)
    losses = [loss for loss in losses if loss.label not in waited_for]
    if outcome.cause not in (FailureClass.INFRASTRUCTURE, FailureClass.PROGRAM):
        return Stop("")
    count = 1 + sum(loss.cause is outcome.cause for loss in losses)
    if outcome.cause is FailureClass.INFRASTRUCTURE:
        kind, field, limit = "infrastructure loss", "budget.infra_attempts", budgets.infra_attempts
        span = " within 24 hours"
        delay = INFRA_BACKOFF.seconds(count - 1)
    else:
        kind, field, limit = "program failure", "budget.app_attempts", budgets.app_attempts
        span = ""
        delay = APP_BACKOFF.seconds(count)
    if outcome.action in (Action.STOP, Action.NONE):
        return Stop("launching it again would not help" if limit else "")
    if count > limit:
        if outcome.cause is FailureClass.PROGRAM and limit == 0:
            return Stop("")  # the manifest allows one attempt only
        return Stop(f"{kind} {count}{span}, and {field} allows {limit}")
    return _again(outcome, losses, delay, f"{kind} {count} of {limit}")


def releases_grant(label: str | None) -> bool:
    """Return whether a job whose attempt ended so waits without what it was granted: others can use that, and it
    cannot, or may not any more."""
    return label in (NO_QUOTA, NO_ROOM, RECLAIMED)


def _again(outcome: Outcome, losses: Sequence[Loss], delay_seconds: float, kind: str) -> Relaunch:
    older = outcome.action is Action.OLDER_CHECKPOINT
    nodes = {loss.node for loss in losses if loss.node}
    if outcome.action is Action.ELSEWHERE and outcome.node:
        nodes.add(outcome.node)
    avoid = tuple(sorted(nodes))
    then = "in the queue again" if releases_grant(outcome.label) else "launched again"
    done = f"{then} {f'in {delay_seconds:g} s' if delay_seconds else 'at once'}"
    done += f", away from {', '.join(avoid)}" if avoid else ""
    done += ", from an older checkpoint" if older else ""
    return Relaunch(delay_seconds, f"{kind}: {done}", avoid, older)
