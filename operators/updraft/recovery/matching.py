"""Match one learner's evidence with the catalogue: find the row that explains its end, and write the reason."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from updraft.recovery.catalogue import (
    CODE_ROWS,
    CONDITION_ROWS,
    CONTAINER_ROWS,
    EXIT_ROWS,
    GANG_ROWS,
    LOG_ROWS,
    POD_ROWS,
    REFUSED_ROWS,
    STAGE_ROWS,
    WAITING_ROWS,
    FailureRule,
    Precedence,
    TenantRule,
)
from updraft.recovery.facts import ContainerFacts, PodFacts
from updraft.recovery.failure_class import Action, FailureClass
from updraft.recovery.imports import line_to_add
from updraft.recovery.launched import who_failed
from updraft_learner.contract import STAGING_FAILED, ExitCode

SIGNALS = {
    129: "SIGHUP",
    130: "SIGINT",
    132: "SIGILL",
    134: "SIGABRT",
    135: "SIGBUS",
    136: "SIGFPE",
    137: "SIGKILL",
    139: "SIGSEGV",
    143: "SIGTERM",
}
LEFT = int(ExitCode.PREEMPTED)
DELETED = next(row for row in GANG_ROWS if row.label == "pod.deleted")
MORE_TO_TRAIN = "raise resources.memory or make batches smaller"
TAIL_LINES = 3  # lines of the log that a reason quotes
LINE_CHARACTERS = 300
PLAIN_LINES = 8  # without a traceback, the last lines that may explain the end

_RANK_PREFIX = re.compile(r"^\[rank\d+\]:\s?")
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause", "Original Traceback")


@dataclass(frozen=True)
class LearnerFailure:
    """The failure of one learner."""

    rank: Precedence
    learner: int
    label: str
    cause: FailureClass
    action: Action
    reason: str
    node: str | None
    line: str = ""  # the line of the log or of the pod's message that fitted the row


def failure_of(
    pod: PodFacts,
    tail: Sequence[str],
    memory: str,
    rules: Sequence[TenantRule] = (),
    more_memory: str = MORE_TO_TRAIN,
) -> LearnerFailure | None:
    """Return how this learner failed; None if it did not fail (yet)."""
    who, main = f"learner {pod.learner}", pod.main
    said = ": ".join(part.strip() for part in (pod.reason, pod.message) if part)
    if found := _first(POD_ROWS, reason=pod.reason, lines=(pod.message,)):
        text = f"{who}: its pod ran past its deadline" if found[0].cause is FailureClass.DEADLINE else f"{who}: {said}"
        return _made(pod, *found, text)
    if _disrupted(pod) and (found := _first(CONDITION_ROWS, reason=pod.disruption, lines=())):
        words = ": ".join(part for part in (pod.disruption, pod.disruption_message) if part)
        return _made(pod, *found, f"{who}: {words}")
    if pod.lost or (pod.deleting and pod.asked_to_leave and main.exit_code not in (None, LEFT)):
        return _made(pod, DELETED, "", f"{who}: its pod was deleted while its program ran, and not by the platform")
    if pod.phase == "Failed" and main.exit_code in (0, None):
        row, line = _first(REFUSED_ROWS, reason=pod.reason, lines=(pod.message,)) or (REFUSED_ROWS[-1], "")
        return _made(pod, row, line, f"{who}: {said or 'its pod failed, and the node does not say why'}")
    if pod.blocked and main.state != "terminated":
        container = next(c for c in (pod.sidecar, main) if c.blocked)
        row, line = _first(WAITING_ROWS, reason=container.reason, lines=(container.message,)) or (WAITING_ROWS[-1], "")
        return _made(pod, row, line, f"{who} cannot start: {pod.blocked}")
    if main.state != "terminated" or main.exit_code == 0:
        return None
    if (why := _staging_failed(tail, main)) is not None:
        row, line = _first(STAGE_ROWS, code=main.exit_code, lines=(why,)) or (STAGE_ROWS[-1], "")
        return _made(pod, row, line, f"{who}: staging failed: {why}")
    return _program_failure(pod, tail, memory, rules, more_memory)


def _staging_failed(tail: Sequence[str], main: ContainerFacts) -> str | None:
    """Return the reason that the program's container printed instead of starting the program; None if it started."""
    said = next((line for line in (*tail, *main.message.splitlines()) if line.strip()), "")
    return said.removeprefix(STAGING_FAILED).strip() if said.startswith(STAGING_FAILED) else None


def _disrupted(pod: PodFacts) -> bool:
    """Return whether the pod's removal by the cluster ended it, or hides how it ended.

    A program that exits with 0 while its pod is being deleted has not done its work; one that had ended before has.
    """
    code = pod.main.exit_code
    if not pod.disruption or code == LEFT:
        return False
    if code is None:
        return pod.ended or pod.deleting
    return pod.asked_to_leave and (pod.deleting or code != 0)


def _program_failure(
    pod: PodFacts, tail: Sequence[str], memory: str, rules: Sequence[TenantRule], more_memory: str
) -> LearnerFailure:
    main, code = pod.main, pod.main.exit_code
    who = who_failed(pod.learner, code, tail)
    named = f"{code} ({SIGNALS[code]})" if code in SIGNALS else str(code)
    ended = f"{who}: the program exited with {named}"
    for number, rule in enumerate(rules, 1):
        if (line := _rule_met(rule, code, tail)) is not None:
            reason = f"{who}: {rule.text} (the program exited with {named}: {_cut(line) or _last(tail, main)})"
            cause, action = FailureClass(rule.cause), Action(rule.action)
            node = pod.node or None
            return LearnerFailure(
                Precedence.PROGRAM, pod.learner, f"failures.{number}", cause, action, reason, node, line
            )
    if found := _first(CONTAINER_ROWS, reason=main.reason, lines=(main.message,)):
        if found[0].label != "program.out_of_memory":
            return _made(pod, *found, f"{who} cannot start: {main.reason}: {main.message}".rstrip(": "))
        reason = f"{who} was killed because it used more memory than its limit ({memory}); "
        return _made(pod, *found, f"{reason}{more_memory}")
    if found := _first(CODE_ROWS, code=code, lines=()):
        return _made(pod, *found, _code_reason(found[0], who, ended, tail, main))
    words = decisive(tail)
    for row in LOG_ROWS:
        if row.gpus is not None and row.gpus != bool(pod.gpus):
            continue
        lines = tuple(tail) if row.rank is Precedence.ROOT else words
        if (line := row.fits(code=code, lines=lines)) is not None:
            hint = line_to_add(line)
            return _made(pod, row, line, f"{ended}: {_cut(line)}{f'; {hint}' if hint else ''}")
    row, line = _first(EXIT_ROWS, code=code, lines=()) or (EXIT_ROWS[-1], "")
    return _made(pod, row, line, f"{ended}: {_last(tail, main)}")


def _code_reason(row: FailureRule, who: str, ended: str, tail: Sequence[str], main: ContainerFacts) -> str:
    if row.cause is FailureClass.PREEMPTED:
        return f"{who} saved its work and left on request"
    if row.label == "container.stopped":
        return f"{who} was stopped (SIGTERM) before its program ended"
    if row.label == "container.killed":
        return f"{who} was killed from outside (SIGKILL), and not for its memory limit: {_last(tail, main)}"
    return f"{ended}: {_last(tail, main)}"


def _rule_met(rule: TenantRule, code: int | None, tail: Sequence[str]) -> str | None:
    if rule.exit_code is not None and rule.exit_code != code:
        return None
    if rule.contains is None:
        return None if rule.exit_code is None else ""
    return next((line for line in reversed(tail) if rule.contains in line), None)


def _first(
    rows: Sequence[FailureRule], *, code: int | None = None, reason: str = "", lines: tuple[str, ...]
) -> tuple[FailureRule, str] | None:
    """Return the first row that fits and says what of; rows that ask for nothing are left to the caller."""
    for row in rows:
        if not (row.codes or row.reasons or row.says or row.pattern) or (row.reasons and not reason):
            continue
        if (line := row.fits(code=code, reason=reason, lines=lines)) is not None:
            return row, line
    return None


def _made(pod: PodFacts, row: FailureRule, line: str, reason: str) -> LearnerFailure:
    text = row.text.rstrip(".")
    if text[1:2].islower() or text[1:2] == " ":
        text = text[:1].lower() + text[1:]
    told = f"{reason} ({text})" if row.told else reason
    node = pod.node or None
    return LearnerFailure(row.rank, pod.learner, row.label, row.cause, row.action, told.rstrip(": "), node, _cut(line))


def decisive(tail: Sequence[str]) -> tuple[str, ...]:
    """Return the lines that may say why a program ended.

    Of a Python traceback (or a chain of them) the exceptions and what follows, without frames; otherwise the last few
    lines without C++ frames. Warnings are left out, and an earlier line about a failure that the program got over.
    """
    lines = [_RANK_PREFIX.sub("", line.rstrip()) for line in tail]
    lines = [line for line in lines if line.strip() and not line.startswith(("[W", "frame #"))]
    heads = [number for number, line in enumerate(lines) if line.endswith(_TRACEBACK)]
    if not heads:
        return tuple(lines[-PLAIN_LINES:])
    if any("ChildFailedError" in line for line in lines[heads[-1] :]):  # torchrun's own error; its worker's precedes it
        return tuple(line for line in lines if not line.startswith("  "))
    first = heads[-1]
    for head in reversed(heads[:-1]):
        if not any(line.startswith(_CHAINED) for line in lines[head : first + 1]):
            break
        first = head
    return tuple(line for line in lines[first:] if not line.startswith("  "))


def _last(tail: Sequence[str], container: ContainerFacts) -> str:
    # Drop Python's marker lines below code (^^^, ~~~): they point at nothing once the lines are joined.
    lines = [line.strip() for line in tail if line.strip(" \t^~")]
    if lines:
        return " | ".join(lines[-TAIL_LINES:])[:600]
    message = " ".join(container.message.split())
    return message[:600] or f"exit code {container.exit_code}, and its log is empty"


def _cut(line: str) -> str:
    line = line.strip()
    return line if len(line) <= LINE_CHARACTERS else f"{line[: LINE_CHARACTERS - 3]}..."
