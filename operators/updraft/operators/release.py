"""The last task of every job: free what it held, and write the verdict from evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from updraft.exceptions import NotFoundError, UnavailableError
from updraft.lifecycle import Evidence, State, Verdict
from updraft.operators.job import FAILURE, MODEL_VERSION, PROMOTION, find_job, ledger, manifest_of
from updraft.operators.links import LINKS
from updraft.operators.replay import replay_metrics
from updraft.recovery.outcome import Cause
from updraft.settings import settings

if TYPE_CHECKING:
    from airflow.sdk import Context

    from updraft.ledger import Job

STOP_SECONDS = 30


class ReleaseOperator(BaseOperator):
    """Runs whatever happened before it. The ledger is told first, then MLflow; Airflow by the run's own end."""

    operator_extra_links = LINKS
    ui_color = "#f1f3f4"

    def execute(self, context: Context) -> None:
        try:
            job = find_job(context)
        except NotFoundError:
            self.log.warning("This run was never recorded as a job: nothing to release")
            return
        # The verdict needs neither the cluster nor MLflow: one of them being away must not keep the job from its end.
        verdict = job.verdict or self._verdict(job)
        verdict = ledger().finish(job.id, verdict).verdict or verdict
        self.log.info("%s: %s", verdict.state.value, verdict.reason)
        self._close_attempts(job, verdict)
        away: list[UnavailableError] = []
        try:
            self._remove(job)
            ledger().release(job.id)  # not before: what still runs is not free
        except UnavailableError as exc:
            away.append(exc)
        try:
            self._tell_mlflow(job, verdict)
        except NotFoundError as exc:  # somebody deleted the run; the ledger keeps the verdict
            self.log.warning("MLflow was not told: %s", exc)
        except UnavailableError as exc:
            away.append(exc)
        if away:
            raise UnavailableError("; ".join(map(str, away)))

    def _close_attempts(self, job: Job, verdict: Verdict) -> None:
        """A job that has ended has no open attempt, whoever ended its task."""
        cause = Cause.CANCELLED if verdict.state is State.CANCELLED else Cause.INFRASTRUCTURE
        for attempt in ledger().attempts(job.id):
            if attempt.ended_at is None:
                ledger().close_attempt(job.id, attempt.role, attempt.number, cause.value, verdict.reason)

    def _remove(self, job: Job) -> None:
        """What learners and their helpers left; after a normal end there is nothing."""
        from updraft.kubernetes import gang
        from updraft.kubernetes.secrets import core_api
        from updraft_learner.contract import LABEL_JOB

        core, namespace = core_api(settings()), settings().namespace(job.tenant)
        selector = f"{LABEL_JOB}={job.id}"
        left = gang.delete(core, namespace, selector, grace_seconds=STOP_SECONDS)
        if left:
            self.log.warning("%d pod(s) were left and are removed", left)
            if not gang.wait_gone(core, namespace, selector, timeout_seconds=STOP_SECONDS + 30):
                self.log.warning("Not all of them are gone yet; their node may not answer")

    def _verdict(self, job: Job) -> Verdict:
        book = ledger()
        train = book.current_attempt(job.id, "train")
        seen = dict(train.evidence) if train else {}
        version, promotion = book.effect(job.id, MODEL_VERSION), book.effect(job.id, PROMOTION)
        evidence = Evidence(
            exit_codes=seen.get("exit_codes", {}),
            completion_markers=tuple(n for n, found in seen.get("markers", {}).items() if found),
            final_checkpoint=seen.get("final_checkpoint"),
            model_version=f"{version['name']}/{version['version']}" if version else None,
            details={"attempt": train.number if train else None, "promotion": promotion},
        )
        if failure := book.effect(job.id, FAILURE):
            state = State.CANCELLED if failure["cause"] == Cause.CANCELLED else State.FAILED
            details = {**evidence.details, "task": failure["task"], "cause": failure["cause"]}
            return Verdict(state, failure["reason"], replace(evidence, details=details))
        missing = self._missing(job, version, promotion)
        if missing and job.cancel_requested_by:
            return Verdict(State.CANCELLED, f"cancelled by {job.cancel_requested_by}", evidence)
        if missing:
            return Verdict(State.FAILED, f"{missing[0]} did not finish; look at its log in Airflow", evidence)
        return Verdict(State.COMPLETED, self._summary(version, promotion), evidence)

    def _missing(self, job: Job, version: object, promotion: object) -> list[str]:
        """Tasks whose proof of success is not there, whatever colour Airflow gave them."""
        manifest, book = manifest_of(job), ledger()
        wanted = [("train", "train"), ("evaluate", "evaluate"), ("export", "export_model")]
        roles = {"train", *({"evaluate"} if manifest.evaluate else ()), *({"export"} if manifest.export else ())}
        missing = []
        for role, task in wanted:
            if role in roles:
                attempt = book.current_attempt(job.id, role)
                if attempt is None or attempt.outcome != Cause.DONE:
                    missing.append(task)
        if manifest.export is not None and manifest.export.register_as is not None:
            if version is None:
                missing.append("register_model")
            if manifest.export.promote_if and promotion is None:
                missing.append("promote")
        return missing

    def _summary(self, version: Mapping[str, Any] | None, promotion: Mapping[str, Any] | None) -> str:
        if version is None:
            return "trained; results are stored"
        text = f"trained; registered as {version['name']} version {version['version']}"
        if promotion:
            text += f", {'champion' if promotion['promoted'] else 'not promoted'}: {promotion['reason']}"
        return text

    def _tell_mlflow(self, job: Job, verdict: Verdict) -> None:
        from updraft import tracking

        if not job.mlflow_run_id:
            return
        replay_metrics(job)
        client = tracking.client()
        tags = {"updraft.verdict": verdict.state.value, "updraft.reason": verdict.reason}
        tracking.set_tags(client, job.mlflow_run_id, tags)
        tracking.close_run(client, job.mlflow_run_id, verdict.state)
