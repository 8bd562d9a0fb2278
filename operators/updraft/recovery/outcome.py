"""Judge how one attempt of a gang ended, from evidence: all exit codes, the pods' reasons, the completion markers.

Pure. The controller calls it after it has read pods and markers again. The failure catalogue says what each kind of
evidence means and which action it calls for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from updraft.lifecycle.membership import Membership
from updraft.recovery.catalogue import GANG_ROWS, TenantRule
from updraft.recovery.evidence import AttemptEvidence, FailedLearner
from updraft.recovery.facts import PodFacts
from updraft.recovery.failure_class import Action, FailureClass
from updraft.recovery.matching import MORE_TO_TRAIN, LearnerFailure, failure_of

__all__ = ["MORE_TO_TRAIN", "Action", "FailureClass", "Outcome", "evidence", "judge", "with_checkpoint"]

BEFORE_FIRST_STEP_SECONDS = 60.0  # a program counts the time to its first checkpoint from its first step
_GANG = {row.label: row for row in GANG_ROWS}


@dataclass(frozen=True)
class Outcome:
    """The end of one attempt, with its evidence."""

    cause: FailureClass
    reason: str
    evidence: AttemptEvidence = field(default_factory=AttemptEvidence)
    label: str = ""  # the row of the failure catalogue, or `failures.N` for a row of the manifest
    action: Action = Action.STOP
    node: str | None = None  # the node of the learner that the reason is about

    @property
    def ok(self) -> bool:
        return self.cause is FailureClass.DONE


def judge(
    pods: Sequence[PodFacts],
    *,
    membership: Membership,
    markers: Mapping[int, Mapping[str, Any] | None],
    tails: Mapping[int, Sequence[str]],
    memory: str,
    rules: Sequence[TenantRule] = (),
    more_memory: str = MORE_TO_TRAIN,
    awaited: Collection[int] = (),
) -> Outcome | None:
    """Return the outcome of a launch from its observed pods; None while no member has failed and one still runs.

    Args:
        pods: In the order in which their ends were seen; the times in them are those of their nodes, and decide
        nothing. membership: The current members. Pods of other learners, which left or have not joined, are evidence
        only. markers: The completion marker of each learner.
        tails: The last lines of each learner's log, for the cause and for the reason; the more the better.
        memory: The memory limit, as the manifest writes it.
        rules: The manifest's `failures`.
        more_memory: What to do if that limit is too low.
        awaited: Members whose pods may not have been created yet.
    """
    seen = evidence(pods, markers)
    pods = [pod for pod in pods if pod.learner in membership.learners]
    absent = membership.missing(pod.learner for pod in pods)
    missing = [learner for learner in absent if learner not in awaited]
    failures = [_gone(learner) for learner in missing if markers.get(learner) is None]
    failures += [
        f for p in pods if (f := failure_of(p, tails.get(p.learner, ()), memory, rules, more_memory)) is not None
    ]
    if failures:
        # A peer that was stopped, or lost its connection, because another learner failed explains nothing: take the
        # best explanation, and among equals the failure that was seen first.
        return _failed(sorted(failures, key=lambda f: f.rank), seen)
    if missing:
        return _gang(
            "pod.unseen", f"learner {missing[0]}: its pod is gone, and how its program ended was not seen", seen
        )
    if absent or not all(p.ended for p in pods):
        return None
    unseen = [p for p in pods if p.main.exit_code is None]
    if unseen:
        reason = f"learner {unseen[0].learner}: its pod ended before its program ran"
        return _gang("pod.never_ran", reason, seen, unseen[0].node)
    unstored = [p for p in pods if markers.get(p.learner) is None]
    if unstored:
        who = f"learner {unstored[0].learner}"
        reason = f"{who}: the program ended with 0, but its results were not stored completely"
        return _gang("results.not_stored", reason, seen, unstored[0].node)
    return _gang("done", "all learners ended with 0 and everything is stored", seen)


def with_checkpoint(outcome: Outcome, final: str | None, ran_seconds: float, every_seconds: float) -> Outcome:
    """Return the outcome of a successful training whose manifest asks for checkpoints; `final` is the newest one.

    Without any checkpoint the training has failed, unless its programs, which ran for `ran_seconds`, ended before one
    was due.
    """
    if final is not None:
        return replace(outcome, evidence=replace(outcome.evidence, final_checkpoint=final))
    if ran_seconds < 2 * every_seconds + BEFORE_FIRST_STEP_SECONDS:
        return outcome
    reason = (
        f"the manifest asks for a checkpoint every {every_seconds:g} s, but the program wrote none in "
        f"{ran_seconds:.0f} s: call updraft_learner.Checkpointer, or write a folder with a COMPLETE file below "
        "$CHECKPOINT_DIR, or remove `checkpoints` from the manifest"
    )
    return Outcome(FailureClass.PROGRAM, reason, outcome.evidence, "program.no_checkpoint")


def evidence(pods: Sequence[PodFacts], markers: Mapping[int, Mapping[str, Any] | None]) -> AttemptEvidence:
    """Return what an outcome is judged by, to be kept with it."""
    return AttemptEvidence(
        pods=tuple(pod.evidence() for pod in pods),
        exit_codes={p.learner: p.main.exit_code for p in pods},
        markers={n: marker is not None for n, marker in markers.items()},
    )


def _gone(learner: int) -> LearnerFailure:
    row = _GANG["pod.gone"]
    reason = f"learner {learner}: its pod is gone and left no result"
    return LearnerFailure(row.rank, learner, row.label, row.cause, row.action, reason, None)


def _failed(failures: Sequence[LearnerFailure], seen: AttemptEvidence) -> Outcome:
    first = failures[0]
    told = tuple(FailedLearner(f.learner, f.label, f.line) for f in failures)
    return Outcome(first.cause, first.reason, replace(seen, failures=told), first.label, first.action, first.node)


def _gang(label: str, reason: str, seen: AttemptEvidence, node: str = "") -> Outcome:
    row = _GANG[label]
    return Outcome(row.cause, reason, seen, label, row.action, node or None)
