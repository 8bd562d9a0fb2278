"""A job that Airflow has accepted and that the ledger does not hold: its first task has not come so far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from updraft.client.client import AIRFLOW_ENDS
from updraft.client.http import Session
from updraft.wire import JobDetail, Links


def from_run(session: Session, job_id: str, run: Mapping[str, Any]) -> JobDetail:
    """What can be said of the job from Airflow's run alone."""
    state = AIRFLOW_ENDS.get(str(run.get("state")), "PENDING")
    conf = run.get("conf") or {}
    manifest: dict[str, Any] = conf["manifest"] if isinstance(conf.get("manifest"), dict) else {}
    created = run.get("queued_at") or run.get("run_after")
    updated = run.get("end_date") or run.get("start_date") or created
    return JobDetail(
        id=job_id,
        name=str(manifest.get("name") or job_id),
        tenant=str(manifest.get("tenant") or "default"),
        state=state,
        reason=_why(session, state, str(run["dag_id"])),
        ended=state != "PENDING",
        created_at=created,
        updated_at=updated,
        dag_id=str(run["dag_id"]),
        run_id=job_id,
        links=Links(airflow_run=f"{session.connection.airflow_url}/dags/{run['dag_id']}/runs/{quote(job_id)}"),
    )


def _why(session: Session, state: str, dag_id: str) -> str:
    if state != "PENDING":
        return "The run ended in Airflow before the job was recorded; the log of its first task says why."
    paused = session.json("GET", f"/api/v2/dags/{dag_id}").get("is_paused")
    if paused:
        return f"Accepted by Airflow, but the DAG {dag_id} is paused; unpause it in Airflow's UI."
    return "Accepted by Airflow; its first task has not started."
