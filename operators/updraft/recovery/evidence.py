"""Define the evidence by which an attempt's outcome was judged, as the ledger stores it."""

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
    """The evidence of an attempt's outcome, read after its end.

    Args:
        exit_codes: The exit code of each learner's program, by learner; None if it was not seen.
        markers: Whether each learner's completion marker was found, by learner.
        failures: The learners that failed; the first one gave the outcome's reason.
        final_checkpoint: The newest verified checkpoint of a training that succeeded.
        pods: The last seen state of each pod, without empty values.
    """

    exit_codes: Mapping[int, int | None] = field(default_factory=dict)
    markers: Mapping[int, bool] = field(default_factory=dict)
    failures: tuple[FailedLearner, ...] = ()
    final_checkpoint: str | None = None
    pods: tuple[Mapping[str, Any], ...] = ()
