"""Decide from which checkpoint the next attempt resumes, and which steps it repeats.

Pure. The controller asks before each launch, records the plan and logs its reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from updraft.recovery.failure_class import FailureClass

# Ends that count against the checkpoint that an attempt resumed from, if the attempt stored none of its own.
BLAMED = frozenset({FailureClass.PROGRAM, FailureClass.DATA})


@dataclass(frozen=True)
class ResumeCandidate:
    """A complete checkpoint that is neither deleted nor quarantined."""

    name: str
    step: int  # 0 if the program gave none
    attempt: int
    created_at: datetime

    @property
    def age(self) -> tuple[int, int, datetime]:
        """Sort older before newer, as retention does."""
        return (self.step, self.attempt, self.created_at)


@dataclass(frozen=True)
class Tried:
    """An earlier attempt of the role."""

    attempt: int
    resumed_from: str | None
    stored_new: bool  # whether it stored a checkpoint of its own
    cause: FailureClass


@dataclass(frozen=True)
class ResumePlan:
    """The checkpoint that the next attempt resumes from. `repeats`: number of steps done twice; None: unknown."""

    checkpoint: str | None
    step: int | None
    repeats: int | None
    reason: str


def plan_resume(
    stored: Sequence[ResumeCandidate],
    tried: Sequence[Tried],
    *,
    last_step: int | None,
    tries_per_checkpoint: int = 2,
    older: bool = False,
) -> ResumePlan:
    """Return the newest checkpoint that is not refused.

    `older`: the newest attempt's end calls for a checkpoint older than its own newest one, or, if it stored none, older
    than the one that it resumed from. A checkpoint is also refused after `tries_per_checkpoint` attempts from it failed
    without storing anything; a lost node does not count, because it says nothing about a checkpoint. A checkpoint that
    an earlier plan passed over is not used again.
    """
    refused = _refused(stored, tried, tries_per_checkpoint, older=older)
    ordered = sorted(stored, key=lambda s: (s.age, s.name))
    good = [s for s in ordered if s.name not in refused]
    passed = [s for s in reversed(ordered) if s.name in refused]
    why = "; ".join(f"{s.name}: {refused[s.name]}" for s in passed[:3])
    if len(passed) > 3:
        why += f"; and {len(passed) - 3} more"
    if not good:
        none = f"every checkpoint is refused ({why})" if passed else "no checkpoint is stored"
        again = f"; steps up to {last_step} are repeated" if last_step else ""
        return ResumePlan(None, None, last_step, f"from the beginning: {none}{again}")
    best = good[-1]
    repeats = None if last_step is None else max(0, last_step - best.step)
    said = f"from checkpoint {best.name} (step {best.step}, attempt {best.attempt})"
    newer = [s for s in passed if s.age > best.age]
    if newer:
        said += f", passing over {why}"
    if repeats is not None:
        said += f"; {repeats} step{'' if repeats == 1 else 's'} repeated"
    return ResumePlan(best.name, best.step, repeats, said)


def _refused(
    stored: Sequence[ResumeCandidate], tried: Sequence[Tried], tries_per_checkpoint: int, *, older: bool
) -> Mapping[str, str]:
    """Return the name of each checkpoint that must not be used, with the reason."""
    by_name = {s.name: s for s in stored}
    attempts = sorted(tried, key=lambda t: t.attempt)
    refused: dict[str, str] = {}
    for item in stored:
        failed = [t for t in attempts if t.resumed_from == item.name and not t.stored_new and t.cause in BLAMED]
        if len(failed) >= tries_per_checkpoint:
            refused[item.name] = f"{len(failed)} attempts from it failed before they stored another"
    for attempt in attempts:
        start = by_name.get(attempt.resumed_from or "")
        if start is None and attempt.resumed_from is not None:
            continue  # that checkpoint was deleted or quarantined: nothing can be compared with its age
        for item in stored:
            if item.attempt < attempt.attempt and (start is None or item.age > start.age):
                refused.setdefault(item.name, f"attempt {attempt.attempt} passed over it")
    if older and attempts:
        last = attempts[-1]
        own = [s for s in stored if s.attempt == last.attempt]
        left = max(own, key=lambda s: s.age) if own else by_name.get(last.resumed_from or "")
        if left is not None:
            for item in stored:
                if item.age >= left.age:
                    refused.setdefault(item.name, f"attempt {last.attempt} ended in a way that speaks against it")
    return refused
