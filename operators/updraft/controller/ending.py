"""End a job: write its verdict first, then release what the job held and tell MLflow.

`release`, the last task of every run, calls this; the reaper calls it for jobs whose run no longer exists. It may be
called twice.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from updraft.controller.final_logs import FinalLogCollector
from updraft.controller.idempotency import FAILURE, MODEL_VERSION, NOT_NEEDED, PROMOTION, Promotion, RegisteredModel
from updraft.controller.notices import of_verdict
from updraft.controller.outbox import deliver
from updraft.controller.records import launch_of, manifest_of
from updraft.controller.replay import replay_metrics
from updraft.exceptions import NotFoundError, UnavailableError
from updraft.lifecycle import Evidence, State, Verdict
from updraft.lifecycle.workflow import EVALUATE_ROLE, EXPORT_ROLE, PROMOTE_TASK, REGISTER_TASK, ROLE_OF_TASK, TRAIN_ROLE
from updraft.recovery.evidence import AttemptEvidence
from updraft.recovery.outcome import FailureClass

if TYPE_CHECKING:
    from updraft.ledger import Job
    from updraft.services import Services

log = logging.getLogger(__name__)


def end(services: Services, job: Job, verdict: Verdict) -> Job:
    """Write the verdict, then release what the job holds and tell MLflow. The verdict needs neither the cluster nor
    MLflow, so neither can delay the job's end.

    Raises UnavailableError if something is left to do; calling it again does the rest.
    """
    known = job.verdict or verdict
    ended = services.ledger.jobs.finish(job.id, known, of_verdict(services, job, known.state, known.reason))
    verdict = ended.verdict or verdict
    log.info("%s: %s", verdict.state.value, verdict.reason)
    _close_attempts(services, job, verdict)
    away: list[UnavailableError] = []
    try:
        remove(services, job)
        services.ledger.queue.release(job.id)  # only now: a learner that still runs occupies its room
    except UnavailableError as exc:
        away.append(exc)
    try:
        tell(services, job)
    except UnavailableError as exc:
        away.append(exc)
    if away:
        raise UnavailableError("; ".join(map(str, away)))
    return ended


def remove(services: Services, job: Job) -> None:
    """Delete the pods that are left of the job; after a normal end there are none. What they write meanwhile is
    kept."""
    from updraft.kubernetes import gang
    from updraft_learner.contract import LABEL_JOB

    core, namespace = services.core, services.settings.namespace(job.tenant)
    selector, grace_seconds = f"{LABEL_JOB}={job.id}", services.settings.stop_grace_seconds
    newest = {attempt.role: attempt for attempt in services.ledger.attempts.of_job(job.id)}  # older attempts are fenced
    words = []
    for attempt in newest.values():
        launch = launch_of(services.settings, job, attempt)
        if pods := gang.observe(core, launch):
            words.append(FinalLogCollector(core, services.open_store, launch, pods, limit_seconds=grace_seconds + 10))
    for word in words:
        word.wait_begun()
    left = gang.delete(core, namespace, selector, grace_seconds=grace_seconds)
    if left:
        log.warning("%d pod(s) were left and are removed", left)
        for word in words:
            word.wait()
        longest_seconds = grace_seconds + services.timing.removal_seconds
        if not gang.wait_gone(core, namespace, selector, timeout_seconds=longest_seconds):
            log.warning("Not all of them are gone yet; their node may not answer")


def tell(services: Services, job: Job) -> None:
    """Send MLflow what learners recorded and could not send, then the job's messages. Raises UnavailableError."""
    try:
        replay_metrics(services, job)
    except NotFoundError as exc:  # a user deleted the MLflow run; the ledger keeps the verdict
        log.warning("MLflow was not told: %s", exc)
    deliver(services, job.id)


def verdict_of(services: Services, job: Job, why_missing: str | None = None) -> Verdict:
    """Return what the evidence says, whatever Airflow shows. `why_missing`: the reason when proofs of success are
    missing."""
    book = services.ledger
    train = book.attempts.current(job.id, TRAIN_ROLE)
    seen = train.evidence if train else AttemptEvidence()
    version, promotion = book.idempotency.get(job.id, MODEL_VERSION), book.idempotency.get(job.id, PROMOTION)
    evidence = Evidence(
        exit_codes={str(learner): code for learner, code in seen.exit_codes.items()},
        completion_markers=tuple(str(learner) for learner, found in seen.markers.items() if found),
        final_checkpoint=seen.final_checkpoint,
        model_version=f"{version.name}/{version.version}" if version else None,
        details={
            "attempt": train.number if train else None,
            "label": train.label if train else None,
            "attempts": sum(a.role == TRAIN_ROLE for a in book.attempts.of_job(job.id)),
            "promotion": asdict(promotion) if promotion else None,
        },
    )
    if failure := book.idempotency.get(job.id, FAILURE):
        state = State.CANCELLED if failure.cause is FailureClass.CANCELLED else State.FAILED
        details = {**evidence.details, "task": failure.task, "cause": failure.cause.value}
        return Verdict(state, failure.reason, replace(evidence, details=details))
    if (why := book.idempotency.get(job.id, NOT_NEEDED)) is not None:
        return Verdict(State.COMPLETED, f"not trained: {why}", evidence)
    missing = _missing(services, job, version, promotion)
    if missing and job.cancel_requested_by:
        return Verdict(State.CANCELLED, f"cancelled by {job.cancel_requested_by}", evidence)
    if missing:
        why = why_missing or f"{missing[0]} did not finish; look at its log in Airflow"
        return Verdict(State.FAILED, why, evidence)
    return Verdict(State.COMPLETED, _summary(version, promotion), evidence)


def overrides(services: Services, job: Job, airflow: Mapping[str, str | None]) -> dict[str, Any] | None:
    """Return the tasks to which Airflow gives another end than the evidence: a user marked them, or Airflow gave them
    up.

    None when all agree.
    """
    failure = services.ledger.idempotency.get(job.id, FAILURE)
    found: dict[str, Any] = {}
    for task, role in ROLE_OF_TASK.items():
        said = airflow.get(task)
        attempt = services.ledger.attempts.current(job.id, role)
        if attempt is None or said not in ("success", "failed"):
            continue
        seen = (
            "running" if attempt.ended_at is None else "success" if attempt.outcome == FailureClass.DONE else "failed"
        )
        ours = failure is not None and failure.task == task and said == "failed"
        if said != seen and not ours:
            found[task] = {"airflow": said, "evidence": seen, "attempt": attempt.number, "step": attempt.last_step}
    return found or None


def why_marked(marked: Mapping[str, Any] | None) -> str | None:
    """Return the reason of a job whose proof is missing because a task was ended over its head."""
    for task, facts in (marked or {}).items():
        if facts["evidence"] == "running":
            return (
                f"{task} was ended from outside: Airflow shows {facts['airflow']}, and attempt {facts['attempt']} ran. "
                "A user marked it, or Airflow gave it up; its learners were stopped, no program failed"
            )
        if facts["airflow"] == "success":
            return f"Airflow shows {task} as success, but attempt {facts['attempt']} has no proof of it"
    return None


def _close_attempts(services: Services, job: Job, verdict: Verdict) -> None:
    """Close the open attempts of a job that has ended, whatever ended its task."""
    from updraft.ledger import AttemptClosure

    cause = FailureClass.CANCELLED if verdict.state is State.CANCELLED else FailureClass.INFRASTRUCTURE
    for attempt in services.ledger.attempts.of_job(job.id):
        if attempt.ended_at is None:
            services.ledger.attempts.close(
                job.id, attempt.role, attempt.number, AttemptClosure(cause.value, verdict.reason)
            )


def _missing(services: Services, job: Job, version: RegisteredModel | None, promotion: Promotion | None) -> list[str]:
    """Return the tasks that have no proof of success, whatever state Airflow gave them."""
    manifest, book = manifest_of(job), services.ledger
    roles = {TRAIN_ROLE, *({EVALUATE_ROLE} if manifest.evaluate else ()), *({EXPORT_ROLE} if manifest.export else ())}
    missing = []
    for task, role in ROLE_OF_TASK.items():
        if role in roles:
            attempt = book.attempts.current(job.id, role)
            if attempt is None or attempt.outcome != FailureClass.DONE:
                missing.append(task)
    if manifest.export is not None and manifest.export.register_as is not None:
        if version is None:
            missing.append(REGISTER_TASK)
        if manifest.export.judged and promotion is None:
            missing.append(PROMOTE_TASK)
    return missing


def _summary(version: RegisteredModel | None, promotion: Promotion | None) -> str:
    if version is None:
        return "trained; results are stored"
    text = f"trained; registered as {version.name} version {version.version}"
    if promotion:
        text += f", {'champion' if promotion.promoted else 'not promoted'}: {promotion.reason}"
    return text
