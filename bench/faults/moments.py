"""Brings a job to the state at which a fault is to come, where it does not come there by itself. Called by `run`.

A job is RECOVERING after a loss and HALTED after a request: the lab brings both about before the fault.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace

from faults.jobs import Shape
from faults.kinds import people
from faults.kinds.base import TASK, Moment, Rule, Scene, program_of, wait_for
from faults.parts import send
from faults.plan import PlannedStrike

PART = 0.4  # of its steps are made before the loss or the halt
LATE = frozenset({"STORING", *(f"{TASK}{name}" for name in ("evaluate", "export_model", "register_model"))}) | {
    f"{TASK}promote",
    f"{TASK}release",
}
RACES_WITH_THE_END = frozenset({"cancel", "clear_run", "run_deleted"})


def come_to(scene: Scene, aim: str, patience_seconds: float) -> None:
    """Return when the job is about to be in the state. Raises TooLateError when it ends before."""
    if aim not in ("RECOVERING", "HALTED"):
        return
    shape = scene.target.shape
    wait_for(scene, Moment(step=max(1, round((shape.fail_at or shape.steps) * PART))), patience_seconds)
    if aim == "RECOVERING":
        send(program_of(scene), signal.SIGKILL)
    else:
        people.ask_to_halt(scene)


def leave(scene: Scene, aim: str) -> None:
    """Resume a job that was halted for the fault, if it is still halted."""
    if aim == "HALTED" and people.state_of(scene) == "HALTED":
        people.resume(scene)


def allowing(rule: Rule, strikes: Sequence[PlannedStrike], shape: Shape) -> Rule:
    """Return what the moments of a target's strikes allow besides: the loss before the fault, and an end that is nearer
    than a request."""
    for strike in strikes:
        if strike.aim in ("RECOVERING", "HALTED"):
            rule = replace(rule, untouched=False)
        if strike.aim in LATE and strike.kind in RACES_WITH_THE_END:
            rule = replace(rule, also=rule.also | {"COMPLETED"})
    if shape.bad_data and rule.only is not None:
        rule = replace(rule, also=rule.also | {"FAILED"})
    return rule
