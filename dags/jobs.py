"""One DAG per manifest in `jobs/`: its own page, history, form and schedule. For Airflow."""

from __future__ import annotations

from pathlib import Path

import airflow.providers.cncf.kubernetes.operators.pod  # noqa: F401 - pre-imported once by the DAG processor

from updraft.operators.tenant_dags import manifest_dags

globals().update(manifest_dags(Path(__file__).parent.parent / "jobs"))
