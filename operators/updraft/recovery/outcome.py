"""How one attempt of a gang ended, from evidence: exit codes of all learners, pod reasons, completion markers.

Pure; called by `updraft.operators.learner` after the pods and the markers were read again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from updraft.recovery.catalogue import Rule
from updraft.recovery.causes import Action, Cause
from updraft.recovery.facts import PodFacts
from updraft_learner.contract import ExitCode

__all__ = ["Action", "Cause", "Outcome", "evidence", "judge"]

SIGNALS = {129: "SIGHUP", 130: "SIGINT", 134: "SIGABRT", 135: "SIGBUS", 136: "SIGFPE", 137: "SIGKILL", 139: "SIGSEGV"}
SIGTERM_CODE = 143
TAIL_LINES = 3


@dataclass(frozen=True)
class Outcome:
    """The end of one attempt, with what it was judged by."""

    cause: Cause
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""  # row of the failure catalogue
    action: Action = Action.STOP
    node: str | None = None  # where the learner ran that the reason is about

    @property
    def ok(self) -> bool:
        return self.cause is Cause.DONE


def judge(
    pods: Sequence[PodFacts],
    *,
    learners: int,
    markers: Mapping[int, Mapping[str, Any] | None],
    tails: Mapping[int, Sequence[str]],
    memory: str,
    rules: Sequence[Rule] = (),
) -> Outcome | None:
    """The outcome of a launch whose pods are as observed; None while nothing has failed and a pod still lives.

    `markers`: completion marker per learner; `tails`: last lines of each learner's log, for the reason a person
    reads; `memory`: the limit, as the manifest says it."""
    seen = evidence(pods, markers)
    failures = [f for p in pods if (f := _failure(p, tails.get(p.learner, ()), memory)) is not None]
    # A peer that was stopped because another failed says nothing: the first real cause counts.
    failures.sort(key=lambda f: (f[0], f[1]))
    if failures:
        _, _, cause, reason = failures[0]
        return Outcome(cause, reason, seen, action=_action(cause))
    present = {p.learner for p in pods}
    everyone = range(1, learners + 1)
    missing = [n for n in everyone if n not in present]
    if missing:
        stored = "left no result" if markers.get(missing[0]) is None else "nobody saw how its program ended"
        return Outcome(
            Cause.INFRASTRUCTURE, f"learner {missing[0]}: its pod is gone and {stored}", seen, action=Action.RELAUNCH
        )
    if not all(p.ended for p in pods):
        return None
    unseen = [p.learner for p in pods if p.main.exit_code is None]
    if unseen:
        return Outcome(
            Cause.INFRASTRUCTURE,
            f"learner {unseen[0]}: its pod ended before its program ran",
            seen,
            action=Action.RELAUNCH,
        )
    unstored = [n for n in everyone if markers.get(n) is None]
    if unstored:
        return Outcome(
            Cause.INFRASTRUCTURE,
            f"learner {unstored[0]}: the program ended with 0, but its results were not stored completely",
            seen,
            action=Action.RELAUNCH,
        )
    return Outcome(Cause.DONE, "all learners ended with 0 and everything is stored", seen, action=Action.NONE)


def _action(cause: Cause) -> Action:
    again = cause in (Cause.INFRASTRUCTURE, Cause.PROGRAM, Cause.PREEMPTED)
    return Action.RELAUNCH if again else Action.STOP


def evidence(pods: Sequence[PodFacts], markers: Mapping[int, Mapping[str, Any] | None]) -> dict[str, Any]:
    """What an outcome is judged by, to be kept with it."""
    return {
        "pods": [pod.evidence() for pod in pods],
        "exit_codes": {str(p.learner): p.main.exit_code for p in pods},
        "markers": {str(n): marker is not None for n, marker in markers.items()},
    }


def _failure(pod: PodFacts, tail: Sequence[str], memory: str) -> tuple[int, str, Cause, str] | None:
    """Rank (lower explains more), time of its end, cause and reason; None if this learner did not fail."""
    who = f"learner {pod.learner}"
    at = pod.main.finished_at or pod.stage.finished_at or ""
    if pod.reason in ("Evicted", "NodeLost", "Preempting", "Shutdown", "Terminated", "NodeShutdown"):
        return 0, at, Cause.INFRASTRUCTURE, f"{who}: {pod.reason}: {pod.message}".rstrip(": ")
    if pod.reason == "DeadlineExceeded":
        return 0, at, Cause.DEADLINE, f"{who}: its pod ran past its deadline"
    if pod.stage.state == "terminated" and pod.stage.exit_code not in (0, None):
        return 0, at, _stage_cause(pod.stage.exit_code), f"{who}: staging failed: {_last(tail, pod.stage.exit_code)}"
    if pod.phase == "Failed" and pod.main.exit_code in (0, None):
        # The node refused it (OutOfcpu, NodeAffinity, UnexpectedAdmissionError, ...) or lost it: no program to blame.
        said = ": ".join(part for part in (pod.reason, pod.message) if part)
        return 0, at, Cause.INFRASTRUCTURE, f"{who}: {said or 'its pod failed, and the node does not say why'}"
    if pod.blocked and pod.main.state != "terminated":
        return 0, at, Cause.CONFIGURATION, f"{who} cannot start: {pod.blocked}"
    code = pod.main.exit_code
    if pod.main.state != "terminated" or code == 0:
        return None
    if pod.main.reason == "OOMKilled":
        return (
            0,
            at,
            Cause.PROGRAM,
            (
                f"{who} was killed because it used more memory than its limit ({memory}); "
                "raise resources.memory or make batches smaller"
            ),
        )
    if code == ExitCode.PREEMPTED:
        return 2, at, Cause.PREEMPTED, f"{who} saved its work and left on request"
    if code == SIGTERM_CODE:
        return 3, at, Cause.INFRASTRUCTURE, f"{who} was stopped (SIGTERM) before its program ended"
    named = f"{code} ({SIGNALS[code]})" if code in SIGNALS else str(code)
    return 1, at, Cause.PROGRAM, f"{who}: the program exited with {named}: {_last(tail, code)}"


def _stage_cause(code: int | None) -> Cause:
    return {
        int(ExitCode.DATA): Cause.DATA,
        int(ExitCode.CONFIGURATION): Cause.CONFIGURATION,
    }.get(code or 0, Cause.INFRASTRUCTURE)


def _last(tail: Sequence[str], code: int | None) -> str:
    lines = [line.strip() for line in tail if line.strip()]
    return " | ".join(lines[-TAIL_LINES:])[:600] if lines else f"exit code {code}, and its log is empty"
