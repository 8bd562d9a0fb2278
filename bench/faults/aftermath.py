"""What is true of jobs once their faults are over: facts, what is wrong with them, and their records.

Called by `run` and `every`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from faults import checks, witness
from faults.checks import Violation
from faults.facts import JobFacts, collect
from faults.kinds.base import Rule, Subject
from faults.lab import Lab
from faults.outcomes import CurveRecord, JobRecord, LossRecord

CALM_SECONDS = 90.0  # in which what is left of an ended job goes away by itself
LOOK_SECONDS = 2.0


def settle(
    lab: Lab, subjects: Sequence[Subject], rule: Callable[[Subject], Rule]
) -> tuple[list[JobFacts], list[Violation]]:
    """Return what is there of the jobs, and what is wrong with it, once all that goes away by itself is gone."""
    calm_by = time.monotonic() + CALM_SECONDS
    while True:
        facts = [collect(lab, subject) for subject in subjects]
        judged = [(each, s.shape, rule(s)) for each, s in zip(facts, subjects, strict=True)]
        restless = checks.not_calm(judged) or any(each.unread for each in facts)
        if not restless or time.monotonic() > calm_by:
            break
        time.sleep(LOOK_SECONDS)
    violations = [violation for each in judged for violation in checks.judge(*each)]
    return facts, violations + [Violation("unmet", each.id, text) for each in facts for text in each.unread]


def job_record(subject: Subject, facts: JobFacts, struck_at: float, submitted: float | None, hit: str) -> JobRecord:
    own = [session for session in facts.sessions if session.learner == 1]
    until = facts.ended_at or time.time()
    return JobRecord(
        id=facts.id,
        text=subject.shape.text(),
        hit=hit,
        state=str(facts.state),
        attempts=sum(a.role == "train" for a in facts.attempts),
        seconds=round(facts.ended_at - submitted, 1) if facts.ended_at and submitted else None,
        late_seconds=_since(own[0].steps[0][0], facts.processing_at) if own and own[0].steps else None,
        checkpoint_steps=subject.shape.checkpoint_steps,
        losses=tuple(
            LossRecord(
                repeated=loss.repeated,
                next_step_seconds=_since(loss.lost_at, loss.next_step_at),
                caught_up_seconds=_since(loss.lost_at, loss.caught_up_at),
            )
            for loss in witness.losses(facts.sessions)
        ),
        pause_seconds=round(witness.longest_pause(own, struck_at, until), 2),
        curves=tuple(
            CurveRecord(
                attempt=session.attempt,
                points=tuple((round(at - struck_at, 1), step) for at, step in witness.curve(session)),
            )
            for session in own
            if session.steps
        ),
    )


def _since(begin: float, end: float | None) -> float | None:
    return None if end is None else round(end - begin, 2)
