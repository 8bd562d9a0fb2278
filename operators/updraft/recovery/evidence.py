"""What the end of an attempt was judged by, as the ledger keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class FailedLearner:
    """A learner that failed: the row of the failure catalogue that explains it, and the line of its log."""

    learner: int
    label: str
    line: str | None = None


@dataclass(frozen=True)
class AttemptEvidence:
    """What an attempt's outcome rests on, read after its end.

    Args:
        exit_codes: Of each learner's program, by the learner's number; None where the exit code was not seen.
        markers: Whether each learner's completion marker was found, by the learner's number.
        failures: The learners that failed, the one that the outcome is about first.
        final_checkpoint: The newest verified checkpoint of a training that is done.
        pods: What each pod showed last, without empty values.
    """

    exit_codes: Mapping[int, int | None] = field(default_factory=dict)
    markers: Mapping[int, bool] = field(default_factory=dict)
    failures: tuple[FailedLearner, ...] = ()
    final_checkpoint: str | None = None
    pods: tuple[Mapping[str, Any], ...] = ()
