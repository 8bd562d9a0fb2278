"""Find jobs that Airflow has accepted and that are not in the ledger yet, because their first task has not run.

They are read from Airflow's database, in Airflow's own api-server; no task and no trigger does this. `JobReader` shows
them beside the ledger's jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol
from urllib.parse import quote

from updraft.lifecycle import State, job_id_of_run
from updraft.lifecycle.workflow import DEFAULT_TENANT, JOB_TAG, TRAIN_DAG, tenant_of_dag
from updraft.schemas import JobDetail, Links

LOOKED_AT = 2_000  # the number of newest runs that are searched
# The state shown for an unrecorded run, by Airflow's state. Such a run is a success only if a user ended it before its
# first task ran: then only `release` runs, and succeeds.
STATES = {
    "queued": State.PENDING,
    "running": State.PENDING,
    "failed": State.FAILED,
    "success": State.CANCELLED,
}


@dataclass(frozen=True)
class AcceptedRun:
    """A DAG run of a job, as Airflow stores it."""

    dag_id: str
    run_id: str
    state: str
    created_at: datetime
    updated_at: datetime
    user: str | None = None
    paused: bool = False
    conf: Mapping[str, Any] = field(default_factory=dict)

    @property
    def manifest(self) -> Mapping[str, Any]:
        """Return the manifest as it was sent, or the fields of Airflow's form."""
        sent = self.conf.get("manifest")
        return sent if isinstance(sent, Mapping) else self.conf

    @property
    def name(self) -> str:
        return str(self.manifest.get("name") or self.conf.get("name") or self.dag_id)

    @property
    def tenant(self) -> str:
        return tenant_of_dag(self.dag_id) or DEFAULT_TENANT

    @property
    def job_id(self) -> str:
        return job_id_of_run(self.dag_id, self.run_id, self.name)


class AcceptedRuns(Protocol):
    """Airflow's runs of DAGs that train, newest first."""

    def unrecorded(self, recorded: Callable[[Collection[tuple[str, str]]], set[tuple[str, str]]]) -> list[AcceptedRun]:
        """Return the accepted runs that the ledger does not know. `recorded` is called with (DAG, run) pairs and
        returns those that are recorded."""


def detail(run: AcceptedRun, airflow_url: str) -> JobDetail:
    state = STATES[run.state]
    return JobDetail(
        id=run.job_id,
        name=run.name,
        tenant=run.tenant,
        user=run.user,
        state=state,
        reason=_why(run, state),
        ended=state is not State.PENDING,
        created_at=run.created_at,
        updated_at=run.updated_at,
        dag_id=run.dag_id,
        run_id=run.run_id,
        links=Links(
            airflow_run=f"{airflow_url}/dags/{quote(run.dag_id, safe='')}/runs/{quote(run.run_id, safe='')}",
        ),
    )


def _why(run: AcceptedRun, state: State) -> str:
    if state is State.CANCELLED:
        return "The run was ended in Airflow before its first task ran."
    if state is State.FAILED:
        return "The run ended in Airflow before the job was recorded; the log of its first task says why."
    if run.paused:
        return f"Accepted by Airflow, but the DAG {run.dag_id} is paused; unpause it in Airflow's UI."
    return "Accepted by Airflow; its first task has not started."


class AirflowRuns:
    """The runs of the Airflow in whose api-server this code runs."""

    def unrecorded(self, recorded: Callable[[Collection[tuple[str, str]]], set[tuple[str, str]]]) -> list[AcceptedRun]:
        from airflow.models.dag import DagModel, DagTag
        from airflow.models.dagrun import DagRun
        from airflow.utils.session import create_session
        from sqlalchemy import or_, select

        train = or_(DagRun.dag_id == TRAIN_DAG, DagRun.dag_id.endswith(f".{TRAIN_DAG}", autoescape=True))
        tagged = select(DagTag.dag_id).where(DagTag.name == JOB_TAG)
        newest = (
            select(DagRun.id, DagRun.dag_id, DagRun.run_id)
            .where(or_(train, DagRun.dag_id.in_(tagged)), DagRun.state.in_(STATES))
            .order_by(DagRun.run_after.desc(), DagRun.id.desc())
            .limit(LOOKED_AT)
        )
        with create_session(scoped=False) as session:
            found = {(dag_id, run_id): key for key, dag_id, run_id in session.execute(newest)}
            if not found:
                return []
            known = recorded(found)
            wanted = [key for run, key in found.items() if run not in known]
            runs = (
                select(DagRun, DagModel.is_paused)
                .join(DagModel, DagModel.dag_id == DagRun.dag_id)
                .where(DagRun.id.in_(wanted))
                .order_by(DagRun.run_after.desc(), DagRun.id.desc())
            )
            return [_run(run, bool(paused)) for run, paused in session.execute(runs)] if wanted else []


def _run(run: Any, paused: bool) -> AcceptedRun:
    created = run.queued_at or run.run_after
    return AcceptedRun(
        dag_id=run.dag_id,
        run_id=run.run_id,
        state=str(getattr(run.state, "value", run.state)),
        created_at=created,
        updated_at=run.end_date or run.start_date or created,
        user=run.triggering_user_name,
        paused=paused,
        conf=run.conf if isinstance(run.conf, dict) else {},
    )
