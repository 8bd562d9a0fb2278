"""Use a job's DAG run through Airflow's REST API: start it, and find it while the platform does not know the job yet.

Jobs of a manifest in `jobs/` are runs of that manifest's own DAG, however they were started, so that its history shows
them together. All other jobs are runs of their tenant's `train_model`.
"""

from __future__ import annotations

from typing import Any

from updraft.client.http import Session
from updraft.exceptions import NotFoundError, RefusedError, UnavailableError
from updraft.lifecycle import is_job_id
from updraft.lifecycle.workflow import TRAIN_DAG, is_train_dag, job_dag, tenant_dag


def dag_of(session: Session, name: str, tenant: str) -> str:
    """Return the DAG that starts the tenant's jobs of this name."""
    dag_id, train = job_dag(name, tenant), tenant_dag(TRAIN_DAG, tenant)
    try:
        found = session.json("GET", f"/api/v2/dags/{dag_id}/details")
    except (NotFoundError, RefusedError):  # the DAG does not exist, or this user may not see it
        return train
    # The DAG's id comes from the manifest's folder, whose manifest may be invalid or name another job.
    own = ((found.get("params") or {}).get("name") or {}).get("value")
    return dag_id if own == name else train


def start_run(session: Session, dag_id: str, job_id: str, conf: dict[str, Any]) -> None:
    """Start a DAG run. Raises ConflictError when the DAG has a run of that id, UnavailableError when Airflow does not
    know the DAG."""
    body = {"dag_run_id": job_id, "logical_date": None, "conf": conf}
    try:
        session.json("POST", f"/api/v2/dags/{dag_id}/dagRuns", body=body)
    except NotFoundError as exc:
        raise UnavailableError(
            f"Airflow does not know the DAG {dag_id} yet. If Airflow has just started, or the tenant is new, submit "
            f"again in a few seconds; otherwise the DAG has an import error ({session.connection.airflow_url}/dags)"
        ) from exc


def find_run(session: Session, job_id: str) -> dict[str, Any] | None:
    """Return the run with that id of a DAG that trains; None if there is none."""
    if not is_job_id(job_id):
        return None
    answer = session.json("GET", "/api/v2/dags/~/dagRuns", params={"run_id_pattern": job_id})
    if not isinstance(answer, dict):
        raise UnavailableError("Airflow answered its DAG runs with something else")
    for run in answer.get("dag_runs", ()):
        if run["dag_run_id"] == job_id and is_train_dag(run["dag_id"]):
            return dict(run)
    return None
