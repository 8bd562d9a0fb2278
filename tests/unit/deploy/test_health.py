"""images/common/health.py: which failures count, and that the last of them ends a process that may be stopped."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[3]
COMMON = REPOSITORY / "images" / "common"
LIMIT = 3


class Airflow:
    """Answers as the api-server does about its parts' health."""

    def __init__(self) -> None:
        self.code = 200
        self.report: dict[str, Any] = {"metadatabase": {"status": "healthy"}, "scheduler": {"status": "healthy"}}


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Airflow]:
    told = Airflow()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(told.code)
            self.end_headers()
            self.wfile.write(json.dumps(told.report).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("UPDRAFT_HEALTH_URL", f"http://127.0.0.1:{server.server_port}/api/v2/monitor/health")
    yield told
    server.shutdown()
    server.server_close()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    yield started
    started.kill()
    started.wait()


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: subprocess.Popen[bytes]) -> Callable[[], int]:
    """One check, with files of its own."""
    spec = importlib.util.spec_from_file_location("image_health", COMMON / "health.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    files = module.Files(*(tmp_path / name for name in module.Files._fields))
    files.main.write_text(f"{process.pid}\n")
    monkeypatch.setenv("UPDRAFT_HEALTH_FAILURES", str(LIMIT))
    for name in ("UPDRAFT_HEALTH_COMPONENT", "UPDRAFT_HEALTH_DAG"):
        monkeypatch.delenv(name, raising=False)
    return partial(module.main, files)


def test_a_stopped_scheduler_is_killed_after_so_many_failures_in_a_row(
    check: Callable[[], int],
    airflow: Airflow,
    process: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("UPDRAFT_HEALTH_COMPONENT", "scheduler")
    os.kill(process.pid, signal.SIGSTOP)
    for turn in ("unhealthy", "unhealthy", "healthy", "unhealthy", "unhealthy"):
        airflow.report["scheduler"] = {"status": turn}
        assert check() == (0 if turn == "healthy" else 1)
    assert process.poll() is None

    assert check() == 1
    assert process.wait(timeout=20) == -signal.SIGKILL
    assert "scheduler is unhealthy, 3 times in a row" in (tmp_path / "log").read_text()


def test_what_was_never_well_is_left_to_start(
    check: Callable[[], int], airflow: Airflow, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPDRAFT_HEALTH_COMPONENT", "scheduler")
    airflow.report["scheduler"] = {"status": "unhealthy"}
    assert [check() for _ in range(2 * LIMIT)] == [1] * 2 * LIMIT
    assert process.poll() is None


@pytest.mark.parametrize("code", [200, 503], ids=["the database is away", "the api-server fails"])
def test_what_others_fail_in_does_not_count(
    check: Callable[[], int],
    airflow: Airflow,
    process: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    code: int,
) -> None:
    monkeypatch.setenv("UPDRAFT_HEALTH_COMPONENT", "scheduler")
    assert check() == 0
    airflow.code = code
    airflow.report = {"metadatabase": {"status": "unhealthy"}, "scheduler": {"status": "unhealthy"}}
    assert [check() for _ in range(2 * LIMIT)] == [1] * 2 * LIMIT
    assert process.poll() is None


def test_a_server_that_does_not_answer_is_killed(
    check: Callable[[], int], airflow: Airflow, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check() == 0
    monkeypatch.setenv("UPDRAFT_HEALTH_URL", "http://127.0.0.1:9/")
    assert [check() for _ in range(LIMIT)] == [1] * LIMIT
    assert process.wait(timeout=20) == -signal.SIGKILL


def test_without_the_variable_nothing_is_written_or_killed(
    check: Callable[[], int],
    airflow: Airflow,
    process: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.delenv("UPDRAFT_HEALTH_FAILURES")
    assert check() == 0
    airflow.code = 500
    assert [check() for _ in range(2 * LIMIT)] == [1] * 2 * LIMIT
    assert process.poll() is None
    assert [path.name for path in tmp_path.iterdir()] == ["main"]


def test_the_entrypoint_notes_the_program_and_forgets_earlier_failures(tmp_path: Path) -> None:
    script = (COMMON / "entrypoint.sh").read_text()
    for name in ("updraft-health-failures", "updraft-main-process"):
        assert f'"/tmp/{name}"' in (COMMON / "health.py").read_text()
        assert f"/tmp/{name}" in script
    here = tmp_path / "entrypoint.sh"
    here.write_text(script.replace("/tmp/", f"{tmp_path}/"))
    (tmp_path / "updraft-health-failures").write_text("5")
    command = ["sh", str(here), "sh", "-c", "echo $$"]
    environment = {"PATH": os.environ["PATH"], "UPDRAFT_HEALTH_FAILURES": "6"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (tmp_path / "updraft-main-process").read_text() == run.stdout
    assert not (tmp_path / "updraft-health-failures").exists()


def test_compose_ends_a_service_when_docker_calls_it_unhealthy_and_starts_it_again() -> None:
    compose = yaml.safe_load((REPOSITORY / "docker-compose.yaml").read_text())
    services = {
        name: service
        for name, service in compose["services"].items()
        if service.get("restart") and "UPDRAFT_HEALTH_FAILURES" in (service.get("environment") or {})
    }
    assert set(services) == {
        "airflow-api",
        "airflow-scheduler",
        "airflow-dag-processor",
        "airflow-triggerer",
        "mlflow",
    }
    for name, service in services.items():
        assert service["restart"] == "unless-stopped", name
        assert service["init"] is True, name  # the kernel keeps SIGKILL from a process with the number 1
        assert "/tmp:mode=1777" in service["tmpfs"], name
        retries = service.get("healthcheck", compose["x-health"])["retries"]
        assert service["environment"]["UPDRAFT_HEALTH_FAILURES"] == str(retries), name
