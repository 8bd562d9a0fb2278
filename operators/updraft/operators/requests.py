"""Define the single task of the DAGs `halt_job`, `resume_job` and `cancel_job`, and their forms.

The request is a row in the ledger, which the job's own controller obeys; this task only records it and waits for the
answer. It imports no heavy libraries: these DAGs run no learner.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, Param

from updraft.exceptions import NotFoundError, RefusedError, UnavailableError
from updraft.lifecycle.idempotency import IdempotencyKey
from updraft.operators.ending import EndTaskError
from updraft.operators.links import AskedJobLink
from updraft.services import UsesServices

if TYPE_CHECKING:
    from airflow.sdk import Context

    from updraft.ledger import Job, Request
    from updraft.ledger.records import RequestKind

WAIT_MINUTES = 10
RESOURCES = ("memory", "disk", "cpus", "learners")
REQUEST_ARGS: dict[str, Any] = {
    "schedule": None,
    "catchup": False,
    "max_active_runs": 100,
    "is_paused_upon_creation": False,
    "default_args": {"owner": "updraft", "retries": 4, "retry_delay": timedelta(seconds=5)},
}


def form(kind: RequestKind) -> dict[str, Param]:
    """Return the trigger form of the DAG that makes requests of this kind."""
    fields = {
        "job": Param("", type="string", minLength=1, maxLength=52, title="Job", description="Id of the job"),
        "wait_minutes": Param(
            WAIT_MINUTES,
            type="number",
            minimum=0,
            maximum=1440,
            title="Wait",
            description="Minutes to wait for the job's answer; the request stays after them",
        ),
    }
    return fields | _changes() if kind == "resume" else fields


def _changes() -> dict[str, Param]:
    def field(kind: str, title: str, description: str, **schema: Any) -> Param:
        said = f"{description}. Empty: as it was"
        return Param(None, type=[kind, "null"], section="Changes", title=title, description=said, **schema)

    return {
        "command": field("string", "Command", "Shell command that starts the program", format="multiline"),
        "params": field("object", "Params", 'Parameters to change, such as {"lr": 0.01}'),
        "memory": field("string", "Memory", "Memory per learner, such as 4GiB"),
        "disk": field("string", "Disk", "Disk per learner, such as 20GiB"),
        "cpus": field("number", "CPUs", "CPU cores per learner", minimum=0.01),
        "learners": field("integer", "Learners", "Training processes of the job", minimum=1),
        "changes": field("object", "Other changes", "A partial manifest: env, budget, checkpoints, ..."),
    }


def changes_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the partial manifest that a filled-in form means: `params` are the values of its fields.

    A field with a value replaces what the box `changes` says.
    """
    changes: dict[str, Any] = dict(params.get("changes") or {})
    if params.get("command"):
        changes["command"] = params["command"]
    flat = {
        "params": dict(params.get("params") or {}),
        "resources": {name: params[name] for name in RESOURCES if params.get(name) not in (None, "")},
    }
    for section, given in flat.items():
        if given:
            boxed = changes.get(section)
            changes[section] = {**(boxed if isinstance(boxed, Mapping) else {}), **given}
    return changes


class RequestOperator(UsesServices, BaseOperator):
    """Record a request to halt, resume or cancel a job, and wait for the job's answer.

    Args:
        kind: `halt`, `resume` or `cancel`.
        tenant: The tenant of the jobs.

    The request carries the name of the user who triggered the run. Defers to AnswerTrigger for as many minutes as the
    form says, and returns the answer. Fails the task if the request is refused, gets no answer in time, or was not
    obeyed.
    """

    operator_extra_links = (AskedJobLink(),)
    ui_color = "#fce8e6"

    def __init__(self, *, kind: RequestKind, tenant: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.kind = kind
        self.tenant = tenant
        self.asked_job: str | None = None

    def execute(self, context: Context) -> str:
        """Record the request, once per run, and return the answer or defer until there is one."""
        job_id = self._job_id(context)
        try:
            request = self._recorded(context, job_id) or self._record(context, job_id)
            self.services.ledger.idempotency.record(job_id, _key(context), request.seq)
        except UnavailableError:
            raise
        except RefusedError as exc:
            raise EndTaskError(str(exc)) from exc
        self.log.info("%s was asked by %s to %s (request %d)", job_id, request.by, self.kind, request.seq)
        if request.answer is None:
            self._wait(context, job_id, request)
        return self._tell(job_id, request)

    def answered(self, context: Context, event: dict[str, Any]) -> str:
        """Continue after AnswerTrigger: return the answer, or fail if there is none."""
        job_id = self._job_id(context)
        request = next(item for item in self.services.ledger.requests.of_job(job_id) if item.seq == event["seq"])
        if request.answer is None:
            waited = f"{context['params']['wait_minutes']:g} min"
            raise EndTaskError(
                f"{job_id} has not answered the request to {self.kind} within {waited}; the request stays, and the job "
                "obeys it when its controller is back. The job's page shows the answer"
            )
        return self._tell(job_id, request)

    def _job_id(self, context: Context) -> str:
        self.asked_job = str(context["params"]["job"]).strip()
        return self.asked_job

    def _recorded(self, context: Context, job_id: str) -> Request | None:
        """Return what this run has asked already: this task may run twice."""
        seq = self.services.ledger.idempotency.get(job_id, _key(context))
        return next((item for item in self.services.ledger.requests.of_job(job_id) if item.seq == seq), None)

    def _record(self, context: Context, job_id: str) -> Request:
        """Record the request. Raises RefusedError, EndTaskError for changes that are wrong."""
        from updraft.tenants import refuse_user

        job = self.services.ledger.jobs.get(job_id)
        asker = context["dag_run"].triggering_user_name
        if job.tenant != self.tenant or (asker and refuse_user(self.services.tenancy(), job.tenant, asker)):
            raise NotFoundError(f"job: {job_id!r} does not exist")  # as for a job that does not
        brought = self._revision(context, job) if self.kind == "resume" and not job.ended else None
        return self.services.ledger.requests.make(job_id, self.kind, _user(context), revision=brought)

    def _revision(self, context: Context, job: Job) -> dict[str, Any] | None:
        from updraft.manifest import ManifestError
        from updraft.manifest.revision import revision
        from updraft.tenants import refusals

        try:
            changes, tenancy = changes_of(context["params"]), self.services.tenancy()
            return revision(job.manifest, changes, partial(refusals, tenancy=tenancy))
        except ManifestError as exc:
            raise EndTaskError(str(exc)) from exc

    def _wait(self, context: Context, job_id: str, request: Request) -> None:
        from updraft.triggers.requests import AnswerTrigger

        wait_seconds = 60 * float(context["params"]["wait_minutes"])
        trigger = AnswerTrigger(job_id=job_id, seq=request.seq, wait_seconds=wait_seconds)
        self.defer(trigger=trigger, method_name="answered")

    def _tell(self, job_id: str, request: Request) -> str:
        from updraft.lifecycle.request_rules import obeyed

        answer = str(request.answer)
        self.log.info("%s: %s", job_id, answer)
        if not obeyed(self.kind, answer, self.services.ledger.jobs.get(job_id).state):
            raise EndTaskError(f"{job_id} was asked to {self.kind}, but: {answer}")
        return answer


def _user(context: Context) -> str:
    return context["dag_run"].triggering_user_name or "airflow"


def _key(context: Context) -> IdempotencyKey[int]:
    """Return the key of the number of the request that a run has made."""
    run = context["dag_run"]
    digest = hashlib.sha256(f"{run.dag_id}/{run.run_id}".encode()).hexdigest()
    return IdempotencyKey(f"asked in run {digest[:32]}", int)
