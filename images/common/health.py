"""Whether a service is well: `python3 -IS health.py`, the HEALTHCHECK of images with Python. Standard library only.

UPDRAFT_HEALTH_URL must answer below 500. With UPDRAFT_HEALTH_COMPONENT the answer is Airflow's report, in which that
component must be healthy. With UPDRAFT_HEALTH_DAG Airflow must know that DAG; it is asked until it does.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 8.0
KNOWN = Path("/tmp/updraft-dag-known")
# Other services of the same network: a proxy of the environment has no business here.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def main() -> int:
    url = os.environ["UPDRAFT_HEALTH_URL"]
    component = os.environ.get("UPDRAFT_HEALTH_COMPONENT")
    try:
        if component:
            report = ask(url).get(component) or {}
            if report.get("status") != "healthy":
                return unwell(f"{component} is {report.get('status')}")
        else:
            answers(url)
        dag = os.environ.get("UPDRAFT_HEALTH_DAG")
        if dag and not KNOWN.exists():
            knows(url, dag)
            KNOWN.touch()
    except (OSError, ValueError, KeyError) as exc:
        return unwell(f"{url}: {exc}")
    return 0


def answers(url: str) -> None:
    try:
        _open(url, timeout=TIMEOUT_SECONDS).close()
    except urllib.error.HTTPError as exc:
        if exc.code >= 500:
            raise


def knows(url: str, dag: str) -> None:
    """Raises HTTPError when Airflow does not know the DAG."""
    server = url.partition("/api/")[0]
    user, password = next(iter(json.loads(Path("/run/secrets/airflow_passwords.json").read_text()).items()))
    token = ask(f"{server}/auth/token", {"username": user, "password": password})["access_token"]
    ask(f"{server}/api/v2/dags/{dag}", token=token)


def ask(url: str, body: dict[str, str] | None = None, token: str | None = None) -> Any:
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    with _open(urllib.request.Request(url, data, headers), timeout=TIMEOUT_SECONDS) as answer:
        return json.load(answer)


def unwell(reason: str) -> int:
    print(reason)
    return 1


if __name__ == "__main__":
    sys.exit(main())
