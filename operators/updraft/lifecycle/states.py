"""Define the states of a job and the legal transitions. Pure; the ledger calls `check` before it records one.

A state may follow itself: the transition records a new reason (evaluation, export and registration are all in STORING).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from updraft.exceptions import IllegalTransitionError


class State(StrEnum):
    """The state of a job, shown to users; each change has its time and reason."""

    PENDING = "PENDING"  # recorded, not yet in the queue
    QUEUED = "QUEUED"  # waits for a grant
    DEPLOYING = "DEPLOYING"  # has a grant; learners are being created
    DOWNLOADING = "DOWNLOADING"  # code and data are being staged
    PROCESSING = "PROCESSING"  # the program runs
    RECOVERING = "RECOVERING"  # learners were lost and are relaunched
    RESIZING = "RESIZING"  # learners join or leave
    STORING = "STORING"  # the program has ended: results, evaluation, export, registration
    HALTED = "HALTED"  # a user stopped it after a checkpoint; it can be resumed
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


TERMINAL = frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})
_BROKEN = frozenset({State.FAILED, State.CANCELLED})  # possible from every state that is not final

_FORWARD: dict[State, set[State]] = {
    # Data may be staged before or after the gang gets its grant.
    State.PENDING: {State.QUEUED, State.DOWNLOADING, State.HALTED},
    State.QUEUED: {State.DEPLOYING, State.DOWNLOADING, State.HALTED},
    State.DEPLOYING: {
        State.DOWNLOADING, State.PROCESSING, State.QUEUED, State.RECOVERING, State.RESIZING, State.STORING,
        State.HALTED,
    },
    State.DOWNLOADING: {
        State.QUEUED, State.DEPLOYING, State.PROCESSING, State.RECOVERING, State.RESIZING, State.STORING, State.HALTED,
    },
    State.PROCESSING: {State.STORING, State.RECOVERING, State.RESIZING, State.HALTED, State.QUEUED},
    State.RECOVERING: {
        State.DEPLOYING, State.DOWNLOADING, State.PROCESSING, State.RESIZING, State.STORING, State.QUEUED, State.HALTED,
    },
    State.RESIZING: {
        State.DEPLOYING, State.DOWNLOADING, State.PROCESSING, State.RECOVERING, State.STORING, State.QUEUED,
        State.HALTED,
    },
    State.STORING: {State.COMPLETED, State.HALTED, State.RECOVERING, State.QUEUED},
    State.HALTED: {State.QUEUED, State.DEPLOYING},
}  # fmt: skip

TRANSITIONS: Mapping[State, frozenset[State]] = MappingProxyType(
    {state: frozenset() if state in TERMINAL else frozenset({state, *_FORWARD[state]}) | _BROKEN for state in State}
)

# MLflow's status of a job's run, for every state: a new state needs an entry.
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
