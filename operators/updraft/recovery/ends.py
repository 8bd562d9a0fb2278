"""List the ends of an attempt's watching: one table of detectors, and what each kind of end means by itself.

Pure. `updraft.triggers.attempt_monitor` walks `DETECTORS` in order at each look. Ends that come from outside the pods
(a user, a limit, a program without progress) have a kind here too. Whether the attempt succeeded is judged afterwards,
from evidence that is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from updraft.recovery.facts import PodFacts
from updraft.recovery.failure_class import Action, FailureClass
from updraft.recovery.policy import NO_QUOTA, RECLAIMED
from updraft.recovery.rows_cluster import CONTROLLER_ROWS
from updraft_learner.contract import ExitCode

MISSING_SECONDS = 20.0  # a pod that the watch has never shown is given up after this time
GONE_SECONDS = 2.0  # a pod that the watch has shown, and no longer shows
BLOCKED_SECONDS = 30.0  # an image that cannot be pulled for this long will not arrive without help
LATE_SECONDS = 10.0  # beyond the time limit for starting, since a moment between two containers is no standstill


class EndKind(StrEnum):
    """The reason why an attempt is no longer watched."""

    ENDED = "ended"
    FAILED = "failed"
    MISSING = "missing"
    BLOCKED = "blocked"
    NO_SECRET = "no secret"
    LATE = "late"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    HALTED = "halted"
    RECLAIMED = "reclaimed"
    STALLED = "stalled"
    GIVEN_UP = "given up"
    QUOTA = "quota"
    REFUSED = "refused"


@dataclass(frozen=True)
class Meaning:
    """The meaning of an end whose kind is itself the cause.

    Args:
        label: Its row in the failure catalogue.
        catalogue_first: Whether a catalogue row that fits the pods' evidence takes precedence.
    """

    cause: FailureClass
    label: str = ""
    action: Action = Action.STOP
    catalogue_first: bool = False


def _as_in(label: str, *, catalogue_first: bool = False) -> Meaning:
    """Return the cause and the action of the catalogue's row."""
    row = next(row for row in CONTROLLER_ROWS if row.label == label)
    return Meaning(row.cause, row.label, row.action, catalogue_first)


# For kinds that are not listed, only the learners' evidence counts.
MEANINGS: Mapping[EndKind, Meaning] = {
    EndKind.BLOCKED: Meaning(FailureClass.CONFIGURATION, catalogue_first=True),
    EndKind.NO_SECRET: _as_in("secret.gone"),
    EndKind.LATE: _as_in("pod.not_started", catalogue_first=True),
    EndKind.DEADLINE: _as_in("job.deadline"),
    EndKind.CANCELLED: _as_in("job.cancelled"),
    EndKind.HALTED: _as_in("job.halted"),
    EndKind.RECLAIMED: _as_in(RECLAIMED),
    EndKind.STALLED: _as_in("progress.stalled"),
    EndKind.GIVEN_UP: Meaning(FailureClass.PROGRAM, "progress.stalled"),  # the manifest asks to stop, not to restart
    EndKind.QUOTA: _as_in(NO_QUOTA),
    EndKind.REFUSED: Meaning(FailureClass.CONFIGURATION),
}


@dataclass(frozen=True)
class GangView:
    """The pods of an attempt's members at one look, and what else the detectors need.

    Args:
        found: The pods that exist.
        known: The pods in `found`, and the last seen state of those that no longer exist.
        missing: Members without a known pod.
        size: The number of members.
        all_seen: Whether the watch has shown every member's pod at some time.
        halting: Whether the programs were asked to save and leave.
        grace_seconds: How long a pod may store results after its program's end.
        node_lost_seconds: How long a pod stays on a node that does not answer.
        start_overdue: Whether a program has not started although the time for starting is over.
        shown: The text about the gang that users see now.
        secret: The name of the launch's secret.
    """

    found: Sequence[PodFacts]
    known: Sequence[PodFacts]
    missing: Sequence[int]
    size: int
    all_seen: bool = True
    halting: bool = False
    grace_seconds: float = 0.0
    node_lost_seconds: float = 0.0
    start_overdue: bool = False
    shown: str = ""
    secret: str = ""


@dataclass(frozen=True)
class Detector:
    """One way in which an attempt ends.

    Args:
        name: The unique name of its timer.
        kind: The kind with which the watching ends.
        finds: Returns the reason, or "" if this has not happened.
        patience: Returns how many seconds the finding must last before it counts; None: it counts at once.
    """

    name: str
    kind: EndKind
    finds: Callable[[GangView], str]
    patience: Callable[[GangView], float | None]


def _all_ended(view: GangView) -> str:
    return "all pods have ended" if not view.missing and all(p.ended for p in view.known) else ""


def _failures(view: GangView) -> list[PodFacts]:
    """Return the pods that ended with an error. In a halt, a learner that has saved and left waits for its peers and is
    none of them."""
    failed = [p for p in view.known if p.main.exit_code not in (None, 0) or p.phase == "Failed"]
    return [p for p in failed if not (view.halting and p.main.exit_code == ExitCode.PREEMPTED)]


def _failed(view: GangView) -> str:
    if not (failed := _failures(view)):
        return ""
    said = ": ".join(part for part in (failed[0].reason, failed[0].message) if part)
    return f"learner {failed[0].learner}: {said or 'failed'}"


def _failed_patience(view: GangView) -> float | None:
    """Return how long the attempt waits once a learner has ended with an error, which ends the attempt; its sidecar may
    still be storing."""
    return None if all(p.ended for p in _failures(view)) else view.grace_seconds


def _lost(view: GangView) -> str:
    lost = next((p for p in view.found if p.lost), None)
    return f"learner {lost.learner}: its node does not tell how its program ends" if lost else ""


def _lost_patience(view: GangView) -> float:
    """Return how long the attempt waits for a lost pod. A pod whose node was given up cannot report its end. A pod that
    the cluster or a user asked to leave a living node may save and store for its whole grace period."""
    lost = next((p for p in view.found if p.lost), None)
    given_up = lost is not None and "TaintManager" in str(lost.disruption)
    return view.node_lost_seconds if given_up else view.grace_seconds + LATE_SECONDS


def _missing(view: GangView) -> str:
    return f"{len(view.missing)} of {view.size} pods are gone" if view.missing else ""


def _blocked(view: GangView) -> str:
    blocked = next((p for p in view.found if p.blocked), None)
    return f"learner {blocked.learner}: {blocked.blocked}" if blocked else ""


def _mounting(view: GangView) -> str:
    """Return the reason while a volume cannot be mounted; the cluster is asked whether the secret is missing."""
    found = any(p.mounting for p in view.found)
    return f"secret {view.secret} was deleted before its learners began" if found else ""


def _late(view: GangView) -> str:
    return (view.shown or "the learners did not start in time") if view.start_overdue else ""


DETECTORS = (
    Detector("ended", EndKind.ENDED, _all_ended, lambda view: None),
    Detector("failed", EndKind.FAILED, _failed, _failed_patience),
    Detector("lost", EndKind.FAILED, _lost, _lost_patience),
    Detector("missing", EndKind.MISSING, _missing, lambda view: GONE_SECONDS if view.all_seen else MISSING_SECONDS),
    Detector("blocked", EndKind.BLOCKED, _blocked, lambda view: BLOCKED_SECONDS),
    Detector("mounting", EndKind.NO_SECRET, _mounting, lambda view: BLOCKED_SECONDS),
    Detector("late", EndKind.LATE, _late, lambda view: LATE_SECONDS),
)


def look(
    view: GangView, since: Mapping[str, float], now: float, detectors: Sequence[Detector] = DETECTORS
) -> tuple[list[tuple[Detector, str]], dict[str, float]]:
    """Return the findings that have lasted for their patience, in the order of the table, and since when each holds.

    Args:
        view: the gang as it is.
        since: what the look before returned.
        now: seconds, by the clock of all looks.
        detectors: the table.
    """
    found = [(detector, reason) for detector in detectors if (reason := detector.finds(view))]
    holds = {detector.name: since.get(detector.name, now) for detector, _ in found}
    ends = []
    for detector, reason in found:
        patience = detector.patience(view)
        if patience is None or now - holds[detector.name] > patience:
            ends.append((detector, reason))
    return ends, holds
