"""The DAGs of the tenant default, for Airflow: `updraft.operators.tenant_dags` defines them."""

from __future__ import annotations

import airflow.providers.cncf.kubernetes.operators.pod  # noqa: F401 - pre-imported once by the DAG processor

from updraft.operators.tenant_dags import tenant_dags

globals().update(tenant_dags("default"))
