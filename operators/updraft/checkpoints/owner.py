"""Decide which checkpoint each learner resumes from, if learners store checkpoints of their own."""

from __future__ import annotations

from collections.abc import Iterable

from updraft_learner.checkpoint_names import parse_name


def learner_of(name: str) -> int:
    """Return the learner that owns the checkpoint, from its name in the store; 1 also for a checkpoint that all
    learners saved in parts."""
    parsed = parse_name(name)
    return 1 if parsed is None else parsed.learner


def for_learner(chosen: str, learner: int, good: Iterable[str]) -> str:
    """Return the checkpoint from which `learner` resumes when the job resumes from `chosen`.

    This is the learner's own checkpoint of the same folder and attempt, if it stored one that is in `good`; otherwise
    the chosen one.
    """
    wanted = parse_name(chosen)
    if wanted is None or wanted.in_parts or wanted.learner == learner:
        return chosen
    own = [
        name
        for name in good
        if (parsed := parse_name(name)) is not None
        and (parsed.local, parsed.attempt, parsed.learner) == (wanted.local, wanted.attempt, learner)
    ]
    return max(own, key=len_then_name) if own else chosen


def len_then_name(name: str) -> tuple[int, str]:
    """Sort -v9 before -v10."""
    return len(name), name
