"""Decide whether an answered request of a user took effect. Pure; used by the client and the request DAGs."""

from __future__ import annotations

from updraft.lifecycle.states import TERMINAL, State

WITHDRAWN = "withdrawn"  # start of the answer to a request that a later request replaced


def obeyed(kind: str, answer: str, state: State) -> bool:
    """Return whether what was asked for has happened. `state` is the job's, read after the answer."""
    if answer.startswith(WITHDRAWN):
        return False
    if kind == "cancel":
        return state is State.CANCELLED or state not in TERMINAL
    if kind == "resume":
        return state not in (State.FAILED, State.CANCELLED)
    return state not in TERMINAL
