"""Ask a person whether a version becomes the champion, and read the answer. Airflow shows the question."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from updraft.controller import comparing
from updraft.controller.idempotency import Answer, PromotionDecision
from updraft.controller.records import manifest_of
from updraft.ledger import NewSeriesEvent
from updraft.mlflow_pages import artifact_page, run_page, version_page

if TYPE_CHECKING:
    from updraft.ledger import Job, Ledger
    from updraft.services import Services
    from updraft.tracking import VersionRef

APPROVE, REJECT = "Approve", "Reject"  # Airflow's pages have a button for each of these two words
REASON_CHARACTERS = 500
LATE, CANCELLED = "late", "cancelled"  # what ApprovalTrigger fires


@dataclass(frozen=True)
class Question:
    """What a person is asked. `approvers`: who may answer, by their id in Airflow; empty: every user with the right."""

    subject: str
    body: str
    approvers: tuple[str, ...] = ()
    options: tuple[str, str] = (APPROVE, REJECT)
    params: Mapping[str, Any] = field(
        default_factory=lambda: {
            "reason": {
                "value": "",
                "description": "Why you approve or reject; it is kept with the version",
                "schema": {"type": ["null", "string"], "maxLength": REASON_CHARACTERS, "title": "Reason"},
            }
        }
    )


def question(services: Services, job: Job, mine: VersionRef, gate: PromotionDecision) -> Question:
    """Return the question about a version whose rules hold."""
    from updraft import tracking

    settings, client = services.settings, services.tracking
    approvers = tuple(settings.approvers.get(job.tenant, ()))
    current = tracking.champion(client, mine.name)
    metrics, champions_metrics = tracking.metrics(client, mine.run_id), current[1] if current else {}
    names = [name for name in job.shown.metrics if name in metrics]
    rows = [f"| {name} | {metrics[name]:g} | {_number(champions_metrics.get(name))} |" for name in names]
    version = version_page(settings.mlflow_browser_uri, mine.name, mine.version)
    champion = f"version {current[0].version}" if current else "none"
    run = run_page(settings.mlflow_browser_uri, job.mlflow_experiment_id or "", job.mlflow_run_id or "")
    body = [
        f"Job `{job.id}`, submitted by {job.submitted_by}, trained [{mine.name} version {mine.version}]({version}) "
        f"([run]({run})). The champion is {champion}.",
        "",
        *([f"| metric | version {mine.version} | champion |", "|---|---|---|", *rows, ""] if rows else []),
        "The rules of the manifest hold:",
        "",
        *(f"- {rule}" for rule in gate.reason.split("; ")),
        *_report(services, job),
        "",
        "If you approve, they are judged again against the champion of that moment.",
    ]
    asked = f" by {', '.join(approvers)}" if approvers else ""
    subject = f"{mine.name} version {mine.version} waits for approval{asked}"
    return Question(subject, "\n".join(body), approvers)


def _report(services: Services, job: Job) -> list[str]:
    """Return the line with the address of the gate's report; none if the manifest has no gate."""
    export = manifest_of(job).export
    if export is None or export.gate is None:
        return []
    base, experiment_id = services.settings.mlflow_browser_uri, job.mlflow_experiment_id or ""
    page = artifact_page(base, experiment_id, job.mlflow_run_id or "", comparing.REPORT)
    return ["", f"[The report of the gate]({page}) shows the two models on the held-out data."]


def waiting_key(job_id: str) -> str:
    """Return the key of the event that a job's model waits for approval."""
    return f"waiting {job_id}"


def approval_asked(book: Ledger, job_id: str) -> bool:
    """Return whether a person was asked to approve the job's model."""
    return book.series.find(waiting_key(job_id)) is not None


def waiting_event(job: Job, mine: VersionRef, gate: PromotionDecision, asked: Question) -> NewSeriesEvent:
    return NewSeriesEvent(
        key=waiting_key(job.id),
        tenant=job.tenant,
        series=job.name,
        kind="waiting",
        reason=f"{asked.subject}; {gate.reason}",
        job_id=job.id,
        model=mine.name,
        version=mine.version,
        evidence={"approvers": list(asked.approvers)},
    )


def answer_of(event: Mapping[str, Any]) -> Answer:
    """Return the answer that a task was woken with: Airflow's, or what ApprovalTrigger fired."""
    if event.get("kind") == LATE:
        return Answer(False, f"nobody approved it within {event['hours']:g} hours")
    user = event.get("responded_by_user") or {}
    by = str(user.get("name") or user.get("id") or "") or None
    said = str((event.get("params_input") or {}).get("reason") or "").strip()[:REASON_CHARACTERS]
    approved = list(event.get("chosen_options") or ()) == [APPROVE]
    words = f": {said}" if said else ""
    return Answer(approved, f"{'approved' if approved else 'rejected'} by {by or 'a user'}{words}", by)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
