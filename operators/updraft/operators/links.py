"""Define links on a task's page to the job's MLflow run, its model and its page, also for halt, resume and cancel."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from updraft.services import platform_services

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

    from updraft.ledger import Job


def _job(ti_key: TaskInstanceKey) -> Job | None:
    from updraft.exceptions import UpdraftError

    try:
        return platform_services().ledger.jobs.of_run(ti_key.dag_id, ti_key.run_id)
    except UpdraftError:
        return None


class MlflowRunLink(BaseOperatorLink):
    """A link to the job's run in MLflow."""

    name = "MLflow run"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        from updraft.mlflow_pages import run_page

        job = _job(ti_key)
        if job is None or not job.mlflow_run_id:
            return ""
        return run_page(
            platform_services().settings.mlflow_browser_uri, job.mlflow_experiment_id or "", job.mlflow_run_id
        )


class ModelLink(BaseOperatorLink):
    """A link to the model version that the job registered."""

    name = "Model version"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        from updraft.controller.idempotency import MODEL_VERSION
        from updraft.mlflow_pages import version_page

        job = _job(ti_key)
        version = platform_services().ledger.idempotency.get(job.id, MODEL_VERSION) if job else None
        if not version:
            return ""
        return version_page(platform_services().settings.mlflow_browser_uri, version.name, version.version)


class JobPageLink(BaseOperatorLink):
    """A link to the job's own page: states with reasons, checkpoints, logs."""

    name = "Job, checkpoints and logs"
    anchor = ""

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:

        job = _job(ti_key)
        return f"{platform_services().settings.airflow_public_uri}/updraft/jobs/{job.id}{self.anchor}" if job else ""


class HaltLink(JobPageLink):
    """A link to the halt button on the job's page. Airflow 3.3 has no address for a filled-in trigger form."""

    name = "Halt"
    anchor = "#halt"


class ResumeLink(JobPageLink):
    """A link to the resume button on the job's page."""

    name = "Resume"
    anchor = "#resume"


class CancelLink(JobPageLink):
    """A link to the cancel button on the job's page."""

    name = "Cancel"
    anchor = "#cancel"


class AskedJobLink(BaseOperatorLink):
    """A link on a run of halt_job, resume_job or cancel_job to the page of the job named in it."""

    name = "Job"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:

        job_id = getattr(operator, "asked_job", None)
        return (
            f"{platform_services().settings.airflow_public_uri}/updraft/jobs/{quote(job_id, safe='')}" if job_id else ""
        )


LINKS = (MlflowRunLink(), ModelLink(), JobPageLink(), HaltLink(), ResumeLink(), CancelLink())
