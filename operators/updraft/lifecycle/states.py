"""The states of a job and the legal ways between them. Pure; the ledger asks `check` before it records.

A state may follow itself: that records a new reason (evaluating, exporting and registering all happen in STORING).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from updraft.exceptions import IllegalTransitionError


class State(StrEnum):
    """Shown to people, each change with its time and reason."""

    PENDING = "PENDING"  # recorded, not judged yet
    QUEUED = "QUEUED"  # waits for its place
    DEPLOYING = "DEPLOYING"  # has its place; learners are being created
    DOWNLOADING = "DOWNLOADING"  # code and data are being staged
    PROCESSING = "PROCESSING"  # the program runs
    RECOVERING = "RECOVERING"  # learners were lost and are started again
    RESIZING = "RESIZING"  # learners join or leave
    STORING = "STORING"  # the program is done: results, evaluation, export, registration
    HALTED = "HALTED"  # stopped by a person after a checkpoint; can go on
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


TERMINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})
_BROKEN = frozenset({State.FAILED, State.CANCELLED})  # possible from every state that is no end

_FORWARD: dict[State, set[State]] = {
    # Staging and validation come before the learners: data may be fetched before or after the gang has its place.
    State.PENDING: {State.QUEUED, State.DOWNLOADING, State.HALTED},
    State.QUEUED: {State.DEPLOYING, State.DOWNLOADING, State.HALTED},
    State.DEPLOYING: {State.DOWNLOADING, State.PROCESSING, State.QUEUED, State.RECOVERING, State.STORING, State.HALTED},
    State.DOWNLOADING: {State.QUEUED, State.DEPLOYING, State.PROCESSING, State.RECOVERING, State.STORING, State.HALTED},
    State.PROCESSING: {State.STORING, State.RECOVERING, State.RESIZING, State.HALTED, State.QUEUED},
    State.RECOVERING: {State.DEPLOYING, State.DOWNLOADING, State.PROCESSING, State.STORING, State.QUEUED, State.HALTED},
    State.RESIZING: {State.PROCESSING, State.RECOVERING, State.STORING, State.HALTED},
    State.STORING: {State.COMPLETED, State.HALTED, State.RECOVERING, State.QUEUED},
    State.HALTED: {State.QUEUED, State.DEPLOYING},
}

TRANSITIONS: Mapping[State, frozenset[State]] = MappingProxyType(
    {state: frozenset() if state in TERMINAL else frozenset({state, *_FORWARD[state]}) | _BROKEN for state in State}
)

# MLflow's status of a job's run. The table is total: a new state must say what it is there.
MLFLOW_STATUS: Mapping[State, str] = MappingProxyType(
    {
        **{state: "RUNNING" for state in State if state not in TERMINAL},
        State.HALTED: "KILLED",
        State.COMPLETED: "FINISHED",
        State.FAILED: "FAILED",
        State.CANCELLED: "KILLED",
    }
)


def check(from_: State, to: State) -> None:
    """Raise IllegalTransitionError if a job cannot go from `from_` to `to`."""
    if to in TRANSITIONS[from_]:
        return
    if from_ in TERMINAL:
        raise IllegalTransitionError(f"A job that is {from_} has ended and cannot become {to}.")
    allowed = ", ".join(sorted(TRANSITIONS[from_]))
    raise IllegalTransitionError(f"A job cannot go from {from_} to {to}; from {from_} it can go to {allowed}.")


def is_legal(from_: State, to: State) -> bool:
    return to in TRANSITIONS[from_]
