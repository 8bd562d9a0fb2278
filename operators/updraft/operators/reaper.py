"""End jobs that no controller handles any more, remove their pods, and deliver overdue messages to MLflow and messages
to people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from updraft.controller import ending, notices
from updraft.exceptions import NotFoundError, UpdraftError
from updraft.services import UsesServices
from updraft.triggers.reaper import ReaperTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context


class ReaperOperator(UsesServices, BaseOperator):
    """End jobs whose DAG run no longer exists, remove pods without a job, deliver overdue messages to MLflow, and send
    messages to people.

    Defers to ReaperTrigger until there is something to do. Returns what was done and why, by job id.
    """

    ui_color = "#eceff1"

    def execute(self, context: Context) -> None:
        """Defer until there is something to do."""
        self.defer(trigger=ReaperTrigger(conn_id=self.services.settings.kubernetes_conn_id), method_name="finished")

    def finished(self, context: Context, event: dict[str, Any]) -> dict[str, str]:
        """Do what ReaperTrigger found, and return what was done, by job id. A failure with one job does not stop the
        others.
        """
        done: dict[str, str] = {}
        away: list[str] = []
        for job_id, act in event["reap"].items():
            try:
                done[job_id] = self._reap(job_id, act)
            except UpdraftError as exc:  # a failure with one job does not stop the others; the reaper finds it again
                away.append(f"{job_id}: {exc}")
        for job_id in event["untold"]:
            try:
                ending.tell(self.services, self.services.ledger.jobs.get(job_id))
                done.setdefault(job_id, "told MLflow how it stands")
            except UpdraftError as exc:
                away.append(f"{job_id}: {exc}")
        if event.get("notices"):
            done |= notices.send_due(self.services)
        for job_id, text in done.items():
            self.log.info("%s: %s", job_id, text)
        for text in away:
            self.log.warning("Not done yet: %s", text)
        return done

    def _reap(self, job_id: str, act: dict[str, Any]) -> str:
        """Judge the job again from the ledger, and act: its controller may have come back since the trigger looked."""
        try:
            job = self.services.ledger.jobs.get(job_id)
        except NotFoundError:
            return "not a job of this platform; left alone"
        if act["end"] and not job.ended:
            seen = None if job.controller_seen_at is None else job.controller_seen_at.isoformat()
            if seen != act["controller_seen"]:
                return f"its controller has come back ({job.controller_what}); left alone"
            verdict = ending.verdict_of(self.services, job, act["reason"])
            self.services.ledger.jobs.note(job_id, f"reaped: {act['reason']}", act["evidence"])
            ended = ending.end(self.services, job, verdict)
            return f"ended {ended.state.value}: {act['reason']}"
        if job.ended:
            ending.remove(self.services, job)
            self._remove_pods(job.tenant, act["pods"])  # these are on nodes that do not answer
            self.services.ledger.queue.release(job_id)
            return f"removed {', '.join(act['pods']) or 'what was left'}: {act['reason']}"
        self._remove_pods(job.tenant, act["pods"])
        return f"removed {', '.join(act['pods'])}: {act['reason']}"

    def _remove_pods(self, tenant: str, names: list[str]) -> None:
        from updraft.kubernetes import calls

        core, namespace = self.services.core, self.services.settings.namespace(tenant)
        for name in names:
            delete = core.delete_namespaced_pod
            calls.call(f"delete pod {name}", delete, name, namespace, grace_period_seconds=0, ok=calls.GONE)
