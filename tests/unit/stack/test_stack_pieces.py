"""Back-off, probes, footprint, display of times, the demo's end."""

from __future__ import annotations

import http.server
import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from updraft.stack import control, demo, display, footprint
from updraft.stack.backoff import CALM_SECONDS, RESTARTS, deaths_in_a_row
from updraft.stack.config import load_secrets
from updraft.stack.dags_ready import import_errors
from updraft.stack.layout import Home
from updraft.stack.parts import Probe
from updraft.stack.probes import not_ready_because
from updraft.stack.status import StackStatus, stack_status
from updraft_learner.catalogue import READY_MARKER, environment_path


# --- back-off ---------------------------------------------------------------------------------------
def test_a_part_that_was_well_for_a_while_starts_over() -> None:
    assert [RESTARTS.seconds(n) for n in (1, 2, 3, 7)] == [1, 2, 4, 60]
    assert deaths_in_a_row(5, CALM_SECONDS) == 1
    assert deaths_in_a_row(5, CALM_SECONDS - 1) == 6


# --- probes -----------------------------------------------------------------------------------------
@contextmanager
def answering(status: int, body: str = "") -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_refusal_is_an_answer_only_where_one_is_expected() -> None:
    with answering(403) as url:
        assert not_ready_because(Probe(url, any_answer=True)) is None
        assert not_ready_because(Probe(url)) == f"{url} answers 403"
    assert "does not answer" in str(not_ready_because(Probe(url)))


def test_a_broken_server_is_not_ready() -> None:
    with answering(500) as url:
        assert not_ready_because(Probe(url, any_answer=True)) == f"{url} answers 500"


@pytest.mark.parametrize(
    ("report", "since", "reason"),
    [
        ('{"scheduler": {"status": "healthy", "latest_scheduler_heartbeat": "2026-01-01T00:00:10+00:00"}}', 0, None),
        (
            '{"scheduler": {"status": "healthy", "latest_scheduler_heartbeat": "2026-01-01T00:00:10Z"}}',
            4e9,
            "scheduler has sent no heartbeat since its start",
        ),
        (
            '{"scheduler": {"status": "unhealthy", "latest_scheduler_heartbeat": null}}',
            0,
            "scheduler has sent no heartbeat",
        ),
        ("{}", 0, "Airflow's health report has no scheduler"),
        ("nonsense", 0, "Airflow's health report has no scheduler"),
    ],
)
def test_a_component_is_ready_when_its_own_heartbeat_says_so(report: str, since: float, reason: str | None) -> None:
    with answering(200, report) as url:
        assert not_ready_because(Probe(url, component="scheduler"), since=since) == reason


# --- footprint --------------------------------------------------------------------------------------
def test_the_announcement_names_each_download_and_leaves_out_what_is_there(tmp_path: Path) -> None:
    keys = [f.key for f in footprint.DEMO]
    there = footprint.location(footprint.MLFLOW.key, tmp_path, tmp_path)
    there.mkdir(parents=True)
    (there / footprint.READY_MARKER).touch()

    text = footprint.announcement(keys, tmp_path, tmp_path, {})

    assert [f.title in text for f in footprint.DEMO] == [True] * len(keys)
    assert "already there" in next(line for line in text.splitlines() if footprint.MLFLOW.title in line)


def test_nothing_is_announced_when_all_is_there(tmp_path: Path) -> None:
    assert footprint.announcement([], tmp_path, tmp_path, {}).startswith("Nothing has to be downloaded")


def test_a_full_disk_is_told_before_anything_begins(tmp_path: Path) -> None:
    keys = [f.key for f in footprint.DEMO]
    environment = {"UV_CACHE_DIR": str(tmp_path / "cache")}

    text = footprint.missing_space(keys, tmp_path, tmp_path, environment, free_bytes=lambda _: 3_000 * footprint.MB)

    assert text is not None
    assert text.startswith(f"Not enough disk: {tmp_path} has 3.0 GB free, ")
    assert "UPDRAFT_HOME" in text


def test_what_is_already_there_needs_no_room(tmp_path: Path) -> None:
    assert footprint.missing_space([], tmp_path, tmp_path, {}, free_bytes=lambda _: 3_000 * footprint.MB) is None


def test_another_index_makes_the_learner_smaller() -> None:
    index = {"UPDRAFT_TORCH_INDEX": "https://example.org/cpu"}
    key = footprint.PYTORCH.key

    assert footprint.known(index)[key].disk_bytes < 3_000 * footprint.MB
    assert footprint.known({})[key] == footprint.PYTORCH


def test_the_footprint_and_the_local_node_agree_where_an_image_lies(tmp_path: Path) -> None:
    for key in (footprint.SIDECAR.key, footprint.PYTORCH.key, footprint.SKLEARN.key):
        assert footprint.location(key, tmp_path, tmp_path) == environment_path(tmp_path / "images", key)
    assert footprint.READY_MARKER == READY_MARKER


# --- status and demo --------------------------------------------------------------------------------
def test_a_home_that_is_not_set_up_has_a_status(home: Home) -> None:
    assert stack_status(home) == StackStatus(str(home.root), False, "absent", (), None, None)


def test_a_stack_that_is_down_shows_every_part_as_stopped(home: Home) -> None:
    control.initialise(home)
    status = stack_status(home, cpu_sample_seconds=0)

    assert status.phase == "stopped"
    assert {p.state for p in status.parts} == {"stopped"}
    assert status.as_dict()["ready"] is False


@pytest.mark.parametrize(("seconds", "text"), [(None, ""), (5.9, "5s"), (65, "1m05s"), (3 * 3600 + 65, "3h01m")])
def test_durations_are_short(seconds: float | None, text: str) -> None:
    assert display.duration(seconds) == text


MODEL = {"name": "digits-cnn", "version": "2", "alias": "champion"}


@pytest.mark.parametrize(
    ("job", "code", "expected"),
    [
        ({"state": "COMPLETED", "model": MODEL}, 0, 0),
        ({"state": "COMPLETED", "model": None}, 0, 1),
        ({"state": "FAILED", "model": None, "reason": "The data failed its suite."}, 1, 1),
        ({"state": "COMPLETED", "model": MODEL}, 4, 1),
        (None, 0, 1),
    ],
)
def test_the_demo_succeeds_only_with_a_model_in_the_registry(
    home: Home, job: dict[str, object] | None, code: int, expected: int
) -> None:
    control.initialise(home)
    output = io.StringIO()

    assert demo.conclude(home, job, code, Console(file=output, width=200)) == expected
    shown = output.getvalue()
    assert ("version 2, known as @champion" in shown) == (expected == 0)
    assert "log in as admin" in shown
    assert str(home.secrets_file) in shown
    if job is not None and job.get("reason"):
        assert str(job["reason"]) in shown


class Output(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize("terminal", [True, False])
def test_passwords_are_shown_on_a_terminal_only(home: Home, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # CI sets it, and keeps its logs
    control.initialise(home)
    output = Output(terminal)
    display.show_addresses(home, Console(file=output, width=500))
    secrets = load_secrets(home)
    for password in (secrets.airflow_password, secrets.mlflow_admin_password):
        assert (password.get_secret_value() in output.getvalue()) == terminal


def test_timings_keep_the_first_time_of_each_state() -> None:
    job = {
        "transitions": [
            {"at": "1970-01-01T00:01:41Z", "state": "PENDING"},
            {"at": "1970-01-01T00:01:50+00:00", "state": "PROCESSING"},
            {"at": "1970-01-01T00:02:00Z", "state": "PROCESSING"},
        ]
    }

    assert demo.transitions(job, 100.0) == {"PENDING": 1.0, "PROCESSING": 10.0}


def test_only_import_errors_of_the_platforms_own_dag_stop_the_start() -> None:
    report = {
        "import_errors": [
            {"filename": "mine.py", "stack_trace": "theirs"},
            {"filename": "dags/default.py", "stack_trace": "SyntaxError\n"},
        ]
    }

    assert import_errors(report) == "SyntaxError"
