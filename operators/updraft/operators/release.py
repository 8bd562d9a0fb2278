"""Run the last task of every job: release what it holds, and write its verdict (`updraft.controller.ending`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk import BaseOperator

from updraft.controller import ending
from updraft.exceptions import NotFoundError
from updraft.operators.job import find_job, task_states
from updraft.operators.links import LINKS
from updraft.services import UsesServices

if TYPE_CHECKING:
    from airflow.sdk import Context


class ReleaseOperator(UsesServices, BaseOperator):
    """Release what the job still holds and write its verdict from evidence, whatever happened before.

    The verdict goes to the ledger first, then to MLflow; Airflow sees it in the end of the run.
    """

    operator_extra_links = LINKS
    ui_color = "#f1f3f4"

    def execute(self, context: Context) -> None:
        """End the job with a verdict from its evidence. Does nothing for a run that was never recorded."""
        try:
            job = find_job(self.services, context)
        except NotFoundError:
            self.log.warning("This run was never recorded as a job: nothing to release")
            return
        marked = ending.overrides(self.services, job, task_states(context)) if not job.ended else None
        if marked is not None:
            self.log.warning("Airflow shows another end than the evidence: %s", marked)
            self.services.ledger.jobs.override(job.id, marked)
        ended = ending.end(self.services, job, ending.verdict_of(self.services, job, ending.why_marked(marked)))
        if ended.verdict is not None:
            self.log.info("%s: %s", ended.verdict.state.value, ended.verdict.reason)
