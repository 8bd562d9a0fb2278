"""Convert a job's attempts, checkpoints and requests to answers, and describe the action after each loss. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from updraft import schemas
from updraft.ledger import Attempt, Checkpoint, Job, ListedJob, Request, documents
from updraft.recovery.ffdl_codes import ffdl_code
from updraft.recovery.outcome import FailureClass

ASKED = (FailureClass.HALTED, FailureClass.CANCELLED)  # by a user
LOST = {
    FailureClass.INFRASTRUCTURE: "was lost to infrastructure",
    FailureClass.PROGRAM: "failed: its own program",
    FailureClass.CONFIGURATION: "cannot run as it is configured",
    FailureClass.DATA: "failed: its data",
    FailureClass.PREEMPTED: "was preempted",
    FailureClass.DEADLINE: "ran out of its time",
}


def attempts(found: Sequence[Attempt]) -> tuple[schemas.Attempt, ...]:
    """Return the attempts, oldest first, each with a sentence about what followed it."""
    following = [_next(found, attempt) for attempt in found]
    return tuple(_attempt(attempt, then) for attempt, then in zip(found, following, strict=True))


def _attempt(attempt: Attempt, then: Attempt | None) -> schemas.Attempt:
    return schemas.Attempt(
        number=attempt.number,
        role=attempt.role,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        cause=attempt.outcome,
        label=attempt.label,
        code=ffdl_code(attempt.label, attempt.outcome),
        reason=attempt.reason,
        action=action(attempt),
        done=done(attempt, then),
        learners=attempt.membership.size,
        batch=attempt.batch,
        resume=None if attempt.resume is None else schemas.ResumePlan(**asdict(attempt.resume)),
        relaunch=None if attempt.relaunch is None else schemas.Relaunch(**asdict(attempt.relaunch)),
        first_step=attempt.first_step,
        last_step=attempt.last_step,
        revision=attempt.revision,
        evidence=documents.as_json(attempt.evidence),
    )


def _next(found: Sequence[Attempt], attempt: Attempt) -> Attempt | None:
    later = [other for other in found if other.role == attempt.role and other.number > attempt.number]
    return min(later, key=lambda other: other.number, default=None)


def action(attempt: Attempt) -> str | None:
    """Return the platform's action in the words of the failure catalogue; `wait` for a halted attempt, None while the
    attempt runs."""
    if attempt.ended_at is None:
        return None
    if attempt.outcome == FailureClass.DONE:
        return "none"
    if attempt.outcome == FailureClass.HALTED:
        return "wait"
    if attempt.relaunch is None:
        return "stop"
    if attempt.relaunch.older_checkpoint:
        return "older_checkpoint"
    return "relaunch_elsewhere" if attempt.relaunch.avoid_nodes else "relaunch"


def done(attempt: Attempt, then: Attempt | None) -> str:
    """Return what the platform did about the attempt's end: `relaunched after 5 s on another node from step-300`."""
    what = action(attempt)
    if what in (None, "none"):
        return ""
    if what == "stop":
        return "" if attempt.outcome == FailureClass.CANCELLED else "not started again"
    if what == "wait":
        return "waits to be resumed" if then is None else f"resumed {_origin(then)}"
    assert attempt.relaunch is not None
    seconds = attempt.relaunch.delay_seconds
    parts = ["is relaunched" if then is None else "relaunched", f"after {seconds:g} s" if seconds else "at once"]
    if attempt.relaunch.avoid_nodes:
        parts.append("on another node")
    if then is not None:
        parts.append(_origin(then))
    elif what == "older_checkpoint":
        parts.append("from an older checkpoint")
    return " ".join(parts)


def _origin(attempt: Attempt) -> str:
    name = attempt.resume.checkpoint if attempt.resume else None
    return f"from {name}" if name else "from the beginning"


def loss(found: Sequence[Attempt]) -> schemas.Loss | None:
    """Return how the newest attempt that has ended was lost; None when it was not, or none has ended."""
    ended = [attempt for attempt in found if attempt.ended_at is not None]
    if not ended or ended[-1].outcome in (FailureClass.DONE, *ASKED, None):
        return None
    last = ended[-1]
    cause = str(last.outcome)
    words = LOST.get(FailureClass(cause), f"ended: {cause}") if cause in set(FailureClass) else f"ended: {cause}"
    return schemas.Loss(
        attempt=last.number,
        role=last.role,
        cause=cause,
        label=last.label,
        code=ffdl_code(last.label, cause),
        reason=last.reason or "",
        text=f"attempt {last.number} of {last.role} {words}" + (f" ({last.label})" if last.label else ""),
    )


def checkpoint(item: Checkpoint) -> schemas.Checkpoint:
    state, reason = "kept", None
    if item.quarantined_at is not None:
        state, reason = "quarantined", item.quarantine_reason
    elif item.deleted_at is not None:
        state, reason = "deleted", item.delete_reason
    return schemas.Checkpoint(
        name=item.name,
        step=item.step,
        attempt=item.attempt,
        size_bytes=item.bytes,
        created_at=item.created_at,
        metrics=finite(item.metrics),
        state=state,
        reason=reason,
    )


def finite(metrics: Mapping[str, float | str]) -> dict[str, float]:
    """Return the metrics without NaN and infinities, which JSON does not have."""
    numbers = {name: float(value) for name, value in metrics.items()}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def request(item: Request) -> schemas.Request:
    return schemas.Request(
        seq=item.seq,
        kind=item.kind,
        by=item.by,
        at=item.at,
        changes=_changes(item.revision),
        answered_at=item.answered_at,
        answer=item.answer,
    )


def _changes(revision: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the changes that a resume asks for. Its revision holds them beside the whole manifest that they make."""
    changes = (revision or {}).get("changes")
    return dict(changes) if isinstance(changes, Mapping) else {}


def override(job: Job | ListedJob) -> str | None:
    """Return what a person made Airflow say of tasks, beside what the evidence says."""
    said = []
    for task, what in (job.override or {}).items():
        by = f" (marked by {what['by']})" if what.get("by") else ""
        said.append(f"Airflow says {what.get('airflow')} of {task}{by}; evidence says {what.get('evidence')}")
    return ". ".join(said) or None
