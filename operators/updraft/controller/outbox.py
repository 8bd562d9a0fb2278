"""Deliver to MLflow, in order, the messages that were written to the ledger with a job's transitions.

The job's trigger and `release` call this; the reaper delivers what they could not. It uses the tracking server's REST
API, as sidecars do, so that a triggerer need not load MLflow's library. A message may be delivered twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from updraft.exceptions import NotFoundError, RefusedError, UnavailableError
from updraft.lifecycle import MLFLOW_STATUS, State
from updraft_learner.mlflow_rest import REST_SECONDS, TAG_ROOT_RUN, Answer, ServerUnavailable, TrackingServer

if TYPE_CHECKING:
    from updraft.ledger import Job
    from updraft.services import Services

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
NESTED_PAGE, MOST_PAGES = 200, 50
TAG_CHARACTERS = 5000  # MLflow stores no more of a tag's value


def deliver(services: Services, job_id: str) -> None:
    """Send the job's messages to MLflow. Raises UnavailableError when MLflow does not answer; the rest stays in the
    ledger."""
    book = services.ledger
    if not book.outbox.undelivered(job_id, limit=1):
        return
    with book.leases.lock(f"outbox {job_id}"):  # two senders at once could write an older state last
        _deliver(services, book.jobs.get(job_id))


def require_tracking(services: Services) -> None:
    """Raise UnavailableError unless MLflow answers within `LOOK_SECONDS`.

    MLflow's own client would retry for minutes and hold a worker's slot meanwhile.
    """
    server = services.open_run("", LOOK_SECONDS)
    try:
        answer = server.get("experiments/search", {"max_results": 1})
    except ServerUnavailable as exc:
        raise UnavailableError(f"MLflow at {services.settings.mlflow_uri} does not answer ({exc})") from exc
    if answer.status >= 500:
        raise UnavailableError(f"MLflow at {services.settings.mlflow_uri} answers {answer.status}")


def _deliver(services: Services, job: Job) -> None:
    book = services.ledger
    for message in book.outbox.undelivered(job.id):
        try:
            if job.mlflow_run_id:
                tags = {name: str(value) for name, value in message.tags.items()}
                _tell(services.open_run(job.mlflow_run_id, REST_SECONDS), State(message.state), tags)
        except UnavailableError as exc:
            book.outbox.failed(message.id, str(exc))
            raise
        except (NotFoundError, RefusedError) as exc:  # the run was deleted, or refuses it for good: the ledger keeps it
            log.warning("MLflow will not be told that %s is %s: %s", job.id, message.state, exc)
        book.outbox.delivered(message.id)


def _tell(server: TrackingServer, state: State, tags: Mapping[str, str]) -> None:
    """Bring the run's tags and status to a job's state."""
    run, status = {"run_id": server.run_id}, MLFLOW_STATUS[state]
    named = {"updraft.state": state.value, **tags}
    listed = [{"key": name, "value": value[:TAG_CHARACTERS]} for name, value in named.items()]
    try:
        _checked(server.post("runs/log-batch", {**run, "tags": listed}))
        info = _checked(server.get("runs/get", run)).body["run"]["info"]
        if status != "RUNNING":
            _end_nested_runs(server, str(info["experiment_id"]))
        if info["status"] != status:  # setting the same status again would move the run's end time
            end = {} if status == "RUNNING" else {"end_time": int(time.time() * 1000)}
            _checked(server.post("runs/update", {**run, "status": status, **end}))
    except ServerUnavailable as exc:
        raise UnavailableError(str(exc)) from exc


def _end_nested_runs(server: TrackingServer, experiment_id: str) -> None:
    """End the nested runs that the program has left running: it was killed, or forgot them."""
    own = f"tags.`{TAG_ROOT_RUN}` = '{server.run_id}' and attributes.status = 'RUNNING'"
    query = {"experiment_ids": [experiment_id], "filter": own, "max_results": NESTED_PAGE}
    for _ in range(MOST_PAGES):
        found = _checked(server.post("runs/search", query)).body.get("runs", [])
        for run in found:
            end = {"run_id": run["info"]["run_id"], "status": "KILLED", "end_time": int(time.time() * 1000)}
            _checked(server.post("runs/update", end))
        if len(found) < NESTED_PAGE:
            return


def _checked(answer: Answer) -> Answer:
    if answer.ok:
        return answer
    if answer.status == 404:
        raise NotFoundError(f"MLflow: {answer.message}")
    raise RefusedError(f"MLflow refused: {answer.message}")
