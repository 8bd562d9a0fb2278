"""What `status`, `doctor` and errors print: nothing is cut, and each command can be typed as it stands."""

from __future__ import annotations

import io
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from updraft.cli.app import app
from updraft.cli.console import report
from updraft.exceptions import RefusedError
from updraft.stack import __main__ as stack_main
from updraft.stack import control, display, processes, records
from updraft.stack.doctor import Check
from updraft.stack.layout import Home
from updraft.stack.records import Phase, SupervisorRecord
from updraft.stack.status import PartStatus, StackStatus, stack_status

PROGRAM = ".venv/bin/updraft"
BARE = re.compile(r"(?<![\w./-])updraft (?=[a-z])")  # not the end of a path
PHASES = (*map(str, Phase), "unsupervised")


@pytest.fixture(autouse=True)
def _off_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPDRAFT_PROGRAM", PROGRAM)


def part(state: str) -> PartStatus:
    return PartStatus(
        "airflow-dag-processor", "Airflow DAG processor", state, 4194303, 65535, 35_999, 599, 12, 34, 1234.4, 123.4,
        "/home/logs/x.log", "exit code 1",
    )  # fmt: skip


def drawn(home: Home, phase: str, width: int) -> str:
    states = ("ready", "starting", "waiting", "backoff", "failed", "stopped")
    status = StackStatus(
        str(home.root), True, phase, tuple(map(part, states)), control.addresses(home), 1.0, "1 task is queued"
    )
    output = io.StringIO()
    display.show_status(status, Console(file=output, width=width, force_terminal=True, color_system=None))
    return output.getvalue()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("phase", PHASES)
def test_status_cuts_nothing(home: Home, width: int, phase: str) -> None:
    control.initialise(home)
    text = drawn(home, phase, width)
    table = text.splitlines()[: text.splitlines().index(next(line for line in text.splitlines() if "all" in line)) + 1]
    assert max(map(len, table)) <= width, text
    assert "…" not in text
    rows = [line for line in table if line.startswith("Airflow DAG processor")]
    assert len(rows) == 6
    for row in rows:
        assert re.search(r"Airflow DAG processor  [a-z]+ +4194303  65535  9h59m  1234 MiB  123\.4 %", row), text
    words = " ".join(text.split())
    assert ("processes 34; start 9m59s; again 12 x" if width == 80 else "34 9m59s 12 x") in words, text
    assert re.search(rf"^all +{phase} +7406 MiB  740\.4 %", text, re.M), text


def test_each_command_that_is_printed_can_be_typed(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = io.StringIO()
    console = Console(file=output, width=200)
    display.show_status(stack_status(home, cpu_sample_seconds=0), console)
    control.initialise(home)
    for phase in PHASES:
        display.show_status(replace(stack_status(home, cpu_sample_seconds=0), phase=phase), console)
    advice = "stop that program, or `updraft up --port-s3 N`"
    display.show_checks([Check("home", True, "not set up yet; `updraft up` does it"), Check("x", False, "y", advice)])
    report(RefusedError("no platform is set up; run `updraft up`, or set UPDRAFT_AIRFLOW_URL"), as_json=False)

    own = processes.identify(os.getpid())
    assert own is not None
    records.write_supervisor(home, SupervisorRecord(own.pid, own.create_time, Phase.RUNNING, started=0.0))
    monkeypatch.setenv("UPDRAFT_HOME", str(home.root))
    assert stack_main.main(["up", "--gpus", "2"]) == 1
    printed = capsys.readouterr()
    assert f"run `{PROGRAM} down` first" in printed.err
    text = output.getvalue() + printed.out + printed.err
    assert not BARE.search(text), text
    assert text.count(f"`{PROGRAM} ") >= 8


def test_errors_and_doctor_of_the_command_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPDRAFT_HOME", str(tmp_path / "none"))
    monkeypatch.delenv("UPDRAFT_AIRFLOW_URL", raising=False)
    for arguments in (["list"], ["status"], ["doctor"]):
        ran = CliRunner().invoke(app, arguments, prog_name="updraft")
        assert not BARE.search(ran.output), ran.output
        assert f"`{PROGRAM} up`" in ran.output
    ran = CliRunner().invoke(app, ["list", "--json"], prog_name="updraft")
    assert "run `updraft up`" in ran.output  # for programs, wherever they are


@pytest.mark.parametrize("folder", [".", "jobs"])
def test_the_path_to_activate_is_that_from_where_one_stands(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    control.initialise(home)
    script = tmp_path / ".venv" / "bin" / "activate"
    script.parent.mkdir(parents=True)
    script.touch()
    (tmp_path / "jobs").mkdir()
    monkeypatch.chdir(tmp_path / folder)

    def shown() -> str:
        output = io.StringIO()
        display.show_addresses(home, Console(file=output, width=500), prefix=str(tmp_path / ".venv"))
        return output.getvalue()

    assert f"`. {os.path.relpath(script)}` puts `updraft` on the PATH." in shown()
    assert f"Stop everything with `{PROGRAM} down`." in shown()
    assert f"MLflow    {control.addresses(home).mlflow}/#/experiments?workflowType=machine_learning\n" in shown()
    monkeypatch.setenv("UPDRAFT_PROGRAM", "updraft")
    assert "on the PATH" not in shown()
