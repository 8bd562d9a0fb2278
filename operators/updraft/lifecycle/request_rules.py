"""Whether what people asked of a job has happened, once it is answered. Pure; the client and the request DAGs ask."""

from __future__ import annotations

from updraft.lifecycle.states import TERMINAL, State

WITHDRAWN = "withdrawn"  # beginning of the answer to a request that a later one has replaced


def obeyed(kind: str, answer: str, state: State) -> bool:
    """Return whether what was asked for has happened. `state` is the job's, read after the answer."""
    if answer.startswith(WITHDRAWN):
        return False
    if kind == "cancel":
        return state is State.CANCELLED or state not in TERMINAL
    if kind == "resume":
        return state not in (State.FAILED, State.CANCELLED)
    return state not in TERMINAL
