"""One DAG per manifest in `jobs/`: its own page, history, form and cron.

A manifest that is wrong still gets its page: tagged `wrong-manifest`, with every wrong field in its documentation, and
an empty form, so that a run of it ends at once.
"""

from __future__ import annotations

from pathlib import Path

import airflow.providers.cncf.kubernetes.operators.pod  # noqa: F401 - pre-imported once by the DAG processor
from airflow.sdk import DAG

from updraft.lifecycle.workflow import job_dag
from updraft.manifest import load_jobs
from updraft.operators.wiring import DAG_ARGS, params, timetable, train_tasks

for job in load_jobs(Path(__file__).parent.parent / "jobs"):
    manifest = job.manifest
    with DAG(
        dag_id=job_dag(job.path.parent.name),
        description=(manifest.description or f"Trains {manifest.name}") if manifest else "The manifest is wrong",
        schedule=timetable(manifest, job_dag(job.path.parent.name)),
        tags=["updraft", "job"] if manifest else ["updraft", "job", "wrong-manifest"],
        doc_md=f"`{job.path.name}` in `jobs/{job.path.parent.name}`" if manifest else f"```\n{job.error}\n```",
        **DAG_ARGS,
    ) as dag:
        train_tasks(dag, params(manifest))
    globals()[dag.dag_id] = dag
