"""What a row of the failure catalogue is. The rows themselves are in `rows_cluster` and `rows_program`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Literal

from updraft.recovery.failure_class import Action, FailureClass


class Where(StrEnum):
    """The evidence that a row is about."""

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
    """How much a learner's end explains of the gang's; lower explains more."""

    ROOT = 0  # nothing that the other learners do has this effect
    GONE = 1
    PROGRAM = 2
    PREEMPTED = 3
    CONSEQUENCE = 4  # as a rule, what the peers of a lost learner see
    STOPPED = 5


@dataclass(frozen=True)
class FailureRule:
    """One kind of failure. All of `codes`, `reasons` and `says` that are given must fit; any entry of one does.

    `reasons` are compared whole, or up to a final `*`; `says` are looked for in lower case, in the pod's words or in
    the log's lines, `pattern` as well (a regular expression of ours); `unless` must not be there. `gpus`: only for
    learners that have some (True) or none (False). `text` is for people: what it is and what can be done. `told`: the
    text stands in the reason too, because the evidence alone says too little."""

    label: str
    where: Where
    cause: FailureClass
    action: Action
    text: str
    proven: Literal["test", "recording"]  # whether `source` produces it for real
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
