"""Send a request to a job (halt, resume), and wait until the job's controller has done what was asked for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from updraft.exceptions import NotFoundError, RefusedError, UnavailableError, UpdraftError
from updraft.lifecycle import State
from updraft.lifecycle.request_rules import obeyed
from updraft.schemas import Accepted, Request

if TYPE_CHECKING:
    from updraft.client.client import Client


def ask(client: Client, job_id: str, kind: str, body: Mapping[str, Any] | None, wait_seconds: float | None) -> str:
    """Return what happens next; with `wait_seconds`, the controller's answer. Raises RefusedError for what cannot
    be."""
    try:
        accepted = Accepted.model_validate(client.act(job_id, kind, body))
    except NotFoundError as unknown:
        if client.run_conf(job_id) is None:
            raise
        raise RefusedError(
            f"{kind}: job {job_id!r} is accepted by Airflow, but its first task has not recorded it yet; "
            "ask again in a moment, or cancel it"
        ) from unknown
    if wait_seconds is None or accepted.request is None:
        return accepted.message
    return _answer(client, job_id, accepted.request, wait_seconds)


def _answer(client: Client, job_id: str, request: Request, wait_seconds: float) -> str:
    """Wait for the job's answer. Raises UpdraftError when the job answered, but did not do what was asked;
    UnavailableError when it does not answer in time: the request stays."""
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            found = next(item for item in client.requests(job_id).requests if item.seq == request.seq)
            if found.answer is not None:
                break
        except UnavailableError as exc:  # the platform may be restarting; the request is in its ledger
            trouble = f" ({exc})"
        else:
            trouble = ""
        if time.monotonic() >= deadline:
            raise UnavailableError(
                f"job {job_id} has not answered the request to {request.kind} within {wait_seconds:g} s{trouble}; "
                f"the request stays: `updraft show {job_id}`"
            )
        client.pause()
    if not obeyed(request.kind, found.answer, State(client.job(job_id).state)):
        raise UpdraftError(f"job {job_id} was asked to {request.kind}, but: {found.answer}")
    return found.answer


def wait_cancelled(client: Client, job_id: str, wait_seconds: float) -> str:
    """Wait until the job is CANCELLED. Raises UpdraftError when it ended otherwise, UnavailableError when it has not
    ended in time: the request stays."""
    deadline = time.monotonic() + wait_seconds
    while True:
        trouble = ""
        try:
            job = client.job(job_id)
            if job.ended:
                break
        except UnavailableError as exc:  # the platform may be restarting; the request is in its ledger
            trouble = f" ({exc})"
        if time.monotonic() >= deadline:
            raise UnavailableError(
                f"job {job_id} has not ended within {wait_seconds:g} s{trouble}; the request to cancel it stays: "
                f"`updraft show {job_id}`"
            )
        client.pause()
    if State(job.state) is not State.CANCELLED:
        raise UpdraftError(f"job {job_id} was not cancelled: it is {job.state} ({job.reason})")
    return f"CANCELLED ({job.reason})"
