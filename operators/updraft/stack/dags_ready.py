"""`python -m updraft.stack.dags_ready`: wait until Airflow knows the DAGs in which jobs run.

Otherwise the platform would count as up but refuse every job. Airflow's own errors (import errors) are in the log.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
from tenacity import RetryCallState, Retrying, nap, retry_if_exception_type, stop_after_delay, wait_fixed

from updraft.lifecycle.workflow import DEFAULT_TENANT, TRAIN_DAG, tenant_dag
from updraft.stack.config import ADMIN_USER, load_config, load_secrets
from updraft.stack.layout import StackError, find_home
from updraft.tenants import tenants_at_start

WAIT_SECONDS = 150.0
POLL_SECONDS = 0.5


class _NotReadError(Exception):
    """Airflow answers, but has not read the DAG yet."""


def wait_for_dags(
    client: httpx.Client,
    password: str,
    tenants: Sequence[str] = (DEFAULT_TENANT,),
    *,
    wait_seconds: float = WAIT_SECONDS,
    sleep: Callable[[float], None] = nap.sleep,
) -> None:
    """Wait until Airflow has parsed the tenants' DAGs. A request that fails is repeated until the time is over.

    Raises:
        StackError: with the import errors of a DAG's file, or with what was missing when the time was over.
    """
    retrying = Retrying(
        retry=retry_if_exception_type((_NotReadError, httpx.HTTPError)),
        stop=stop_after_delay(wait_seconds),
        wait=wait_fixed(POLL_SECONDS),
        sleep=sleep,
        retry_error_callback=lambda state: _give_up(state, wait_seconds),
    )
    login = {"username": ADMIN_USER, "password": password}
    for tenant in tenants:
        retrying(_check, client, login, tenant)


def _check(client: httpx.Client, login: dict[str, str], tenant: str) -> None:
    if "Authorization" not in client.headers:
        token = client.post("/auth/token", json=login).raise_for_status().json()["access_token"]
        client.headers["Authorization"] = f"Bearer {token}"
    dag_id = tenant_dag(TRAIN_DAG, tenant)
    if client.get(f"/api/v2/dags/{dag_id}").status_code == httpx.codes.OK:
        return
    errors = import_errors(client.get("/api/v2/importErrors").raise_for_status().json(), tenant)
    if errors:
        raise StackError(f"Airflow cannot load the DAG {dag_id}:\n{errors}")
    raise _NotReadError


def _give_up(state: RetryCallState, wait_seconds: float) -> None:
    cause = state.outcome.exception() if state.outcome else None
    if isinstance(cause, httpx.HTTPStatusError):
        answer = f"its last answer was {cause.response.status_code} to {cause.request.url.path}"
    elif isinstance(cause, httpx.HTTPError):
        answer = f"it did not answer the last request ({type(cause).__name__})"
    else:
        answer = "it answers, but does not list the DAG"
    raise StackError(f"Airflow has not read the DAG {TRAIN_DAG} within {wait_seconds:.0f} s: {answer}.") from cause


def import_errors(report: dict[str, Any], tenant: str = DEFAULT_TENANT) -> str:
    """Return the import errors of the tenant's DAG file; another file's errors do not stop the platform."""
    found = [e for e in report.get("import_errors", ()) if Path(str(e.get("filename", ""))).stem == tenant]
    return "\n".join(str(e.get("stack_trace", "")).strip() for e in found)


def main() -> int:
    home = find_home()
    if not (home.repository / "dags" / f"{DEFAULT_TENANT}.py").is_file():
        return 0
    url = load_config(home).ports.url("airflow")
    password = load_secrets(home).airflow_password.get_secret_value()
    try:
        with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
            wait_for_dags(client, password, tenants_at_start(os.environ).names)
    except StackError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
