"""Whether a service is well: `python3 -IS health.py`, the HEALTHCHECK of images with Python. Standard library only.

UPDRAFT_HEALTH_URL must answer below 500. With UPDRAFT_HEALTH_COMPONENT the answer is Airflow's report, in which that
component must be healthy. With UPDRAFT_HEALTH_DAG Airflow must know that DAG; it is asked until it does.

Docker restarts a container that ended, not one that is unhealthy. With UPDRAFT_HEALTH_FAILURES=n the main process of
the container is killed after n failures in a row, once it was well. Failures of others do not count: of an api-server
that should tell about a component, or of Airflow's database. In a pod, where that process has the number 1, the kernel
ignores the signal, and the kubelet restarts what fails its probe.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

TIMEOUT_SECONDS = 8.0
# Other services of the same network: a proxy of the environment has no business here.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class Files(NamedTuple):
    """What one check leaves to the next, and whom it ends."""

    known: Path = Path("/tmp/updraft-dag-known")
    failures: Path = Path("/tmp/updraft-health-failures")  # in a row; there is none until it was well
    main: Path = Path("/tmp/updraft-main-process")  # written by entrypoint.sh
    log: Path = Path("/proc/1/fd/1")  # the container's


FILES = Files()


class UnwellError(Exception):
    """This container fails, whatever the others do."""


def main(files: Files = FILES) -> int:
    url = os.environ["UPDRAFT_HEALTH_URL"]
    component = os.environ.get("UPDRAFT_HEALTH_COMPONENT")
    try:
        if component:
            healthy(component, ask(url))
        else:
            answers(url)
        dag = os.environ.get("UPDRAFT_HEALTH_DAG")
        if dag and not files.known.exists():
            knows(url, dag)
            files.known.touch()
    except UnwellError as exc:
        count(str(exc), files)
        return unwell(str(exc))
    except (OSError, ValueError, KeyError) as exc:
        if files.failures.exists():
            files.failures.write_text("0")
        return unwell(f"{url}: {exc}")
    if os.environ.get("UPDRAFT_HEALTH_FAILURES"):
        files.failures.write_text("0")
    return 0


def healthy(component: str, report: Any) -> None:
    """Raises UnwellError; ValueError when Airflow's database does not answer, so that the report says nothing."""
    if report["metadatabase"]["status"] != "healthy":
        raise ValueError("Airflow's database does not answer")
    status = (report.get(component) or {}).get("status")
    if status != "healthy":
        raise UnwellError(f"{component} is {status}")


def count(reason: str, files: Files) -> None:
    """One more failure; the last one kills the container's main process."""
    limit = int(os.environ.get("UPDRAFT_HEALTH_FAILURES") or 0)
    if not limit or not files.failures.exists():
        return
    failures = int(files.failures.read_text() or 0) + 1
    files.failures.write_text(str(failures))
    if failures < limit:
        return
    files.failures.unlink()
    with suppress(OSError):
        files.log.write_text(
            f"health check: {reason}, {failures} times in a row; the container is ended and started again\n"
        )
    with suppress(OSError, ValueError):
        os.kill(int(files.main.read_text()), signal.SIGKILL)  # it may be stopped, and its init passes on no SIGKILL


def answers(url: str) -> None:
    """Raises UnwellError."""
    try:
        _open(url, timeout=TIMEOUT_SECONDS).close()
    except urllib.error.HTTPError as exc:
        if exc.code >= 500:
            raise UnwellError(f"{url}: {exc}") from exc
    except OSError as exc:
        raise UnwellError(f"{url}: {exc}") from exc


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
