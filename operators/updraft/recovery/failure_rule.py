"""Define a row of the failure catalogue. The rows are in `rows_cluster` and `rows_program`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Literal

from updraft.recovery.failure_class import Action, FailureClass


class Where(StrEnum):
    """The kind of evidence that a row examines."""

    POD = "the pod's reason"
    CONDITION = "the reason of the pod's condition DisruptionTarget"
    WAITING = "why a container waits"
    STAGE = "exit code of the staging container"
    CONTAINER = "why the program's container ended"
    EXIT = "the program's exit code"
    LOG = "the program's last lines"
    GANG = "what is left of the learners"
    CONTROLLER = "what the job's controller decided"


class Precedence(IntEnum):
    """How well a learner's end explains the end of the gang; a lower value explains more."""

    ROOT = 0  # no other learner can cause this
    GONE = 1
    PROGRAM = 2
    PREEMPTED = 3
    CONSEQUENCE = 4  # usually what the peers of a lost learner see
    STOPPED = 5


@dataclass(frozen=True)
class FailureRule:
    """One kind of failure. It fits if each of `codes`, `reasons` and `says` that is given has an entry that fits.

    Args:
        text: What happened and what to do about it, for users.
        proven: "test" if the test in `source` makes the failure happen, "recording" if `source` is a citation.
        reasons: Compared as a whole, or up to a final `*`.
        says: Lower-case texts, searched in the pod's message or in the log's lines in lower case.
        pattern: A regular expression, searched like `says`.
        unless: Texts that must not occur in these lines.
        gpus: True: only for learners with GPUs; False: only for learners without; None: for all.
        told: Whether `text` is added to the outcome's reason, because the evidence alone says too little.
    """

    label: str
    where: Where
    cause: FailureClass
    action: Action
    text: str
    proven: Literal["test", "recording"]
    source: str
    codes: tuple[int, ...] = ()
    reasons: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    pattern: str = ""
    unless: tuple[str, ...] = ()
    gpus: bool | None = None
    rank: Precedence = Precedence.ROOT
    told: bool = False

    def fits(self, *, code: int | None = None, reason: str = "", lines: tuple[str, ...] = ()) -> str | None:
        """Return the line that shows it ("" where no line is asked for), or None."""
        if self.codes and code not in self.codes:
            return None
        if self.reasons and not any(_same(pattern, reason) for pattern in self.reasons):
            return None
        if any(text in line.lower() for line in lines for text in self.unless):
            return None
        if not self.says and not self.pattern:
            return ""
        return next((line for line in lines if self._in(line.lower())), None)

    def _in(self, line: str) -> bool:
        return any(text in line for text in self.says) or bool(self.pattern and re.search(self.pattern, line))


def _same(pattern: str, reason: str) -> bool:
    return reason.startswith(pattern[:-1]) if pattern.endswith("*") else reason == pattern
