"""`python -m updraft.stack.dags_ready`: wait until Airflow knows the DAG in which jobs run.

Otherwise the platform would count as up but refuse every job. Airflow's own errors (import errors) are in the log.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import httpx

from updraft.lifecycle.workflow import TRAIN_DAG
from updraft.stack.config import ADMIN_USER, load_config, load_secrets
from updraft.stack.layout import Home, StackError, find_home

WAIT_SECONDS = 150.0
POLL_SECONDS = 0.5


def wait_for_dag(home: Home, *, wait_seconds: float = WAIT_SECONDS) -> None:
    """Wait until Airflow has parsed the DAG. Raises StackError with the import errors, or when the time is over."""
    url = load_config(home).ports.url("airflow")
    login = {"username": ADMIN_USER, "password": load_secrets(home).airflow_password.get_secret_value()}
    deadline = time.monotonic() + wait_seconds
    with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
        try:
            token = client.post("/auth/token", json=login).raise_for_status().json()["access_token"]
            client.headers["Authorization"] = f"Bearer {token}"
            while client.get(f"/api/v2/dags/{TRAIN_DAG}").status_code != httpx.codes.OK:
                errors = import_errors(client.get("/api/v2/importErrors").raise_for_status().json())
                if errors:
                    raise StackError(f"Airflow cannot load the DAG {TRAIN_DAG}:\n{errors}")
                if time.monotonic() > deadline:
                    raise StackError(f"Airflow has not read the DAG {TRAIN_DAG} within {wait_seconds:.0f} s.")
                time.sleep(POLL_SECONDS)
        except httpx.HTTPError as exc:
            raise StackError(f"Airflow did not answer while its DAGs were awaited ({type(exc).__name__}).") from exc


def import_errors(report: dict[str, Any]) -> str:
    """Return the import errors of the file that defines the DAG; another file's errors do not stop the platform."""
    found = [e for e in report.get("import_errors", ()) if str(e.get("filename", "")).endswith(f"{TRAIN_DAG}.py")]
    return "\n".join(str(e.get("stack_trace", "")).strip() for e in found)


def main() -> int:
    home = find_home()
    if not (home.repository / "dags" / f"{TRAIN_DAG}.py").is_file():
        return 0
    try:
        wait_for_dag(home)
    except StackError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
