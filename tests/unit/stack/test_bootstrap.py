from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from updraft.stack.layout import find_repository

SCRIPT = find_repository() / "scripts" / "bootstrap.py"


@pytest.fixture
def bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setenv("UPDRAFT_HOME", str(tmp_path))
    spec = importlib.util.spec_from_file_location("bootstrap_under_test", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("updraft_footprint", None)


def test_a_python_that_does_not_fit_is_named_with_the_way_out(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SystemExit, match=r"needs Python 3\.11, 3\.12 or 3\.13\. This is 3\.9 (.|\n)*make PYTHON="):
        bootstrap.use_fitting_python((3, 9))


def test_a_placeholder_of_a_version_manager_is_no_python(bootstrap: ModuleType, tmp_path: Path) -> None:
    placeholder = tmp_path / "python3.12"
    placeholder.write_text("#!/bin/sh\nexit 127\n")
    placeholder.chmod(0o755)

    assert bootstrap.runs(str(placeholder), 12) is False
    assert bootstrap.runs(sys.executable, sys.version_info[1]) is True


def test_an_old_uv_is_not_used(bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uv = tmp_path / "uv"
    uv.write_text("#!/bin/sh\necho 'uv 0.4.30'\n")
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert bootstrap.find_uv(tmp_path / ".tools") is None

    uv.write_text("#!/bin/sh\necho 'uv 0.13.1 (somewhere)'\n")
    assert bootstrap.find_uv(tmp_path / ".tools") == str(uv)


def test_git_is_asked_for_when_it_is_missing(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(SystemExit, match="git was not found"):
        bootstrap.check_tools()


def test_a_program_keeps_bytecode_and_finds_its_environment_first(
    bootstrap: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("VIRTUAL_ENV", "/somebody/elses")
    monkeypatch.setenv("PATH", "/usr/bin")

    environment = bootstrap.program_environment(tmp_path, "/tools/uv")

    assert not {"PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV"} & set(environment)
    assert (environment["PATH"], environment["UPDRAFT_UV"]) == (f"{tmp_path}:/usr/bin", "/tools/uv")


def test_stop_ends_a_program_that_run_became(bootstrap: ModuleType, tmp_path: Path) -> None:
    code = (
        f"import importlib.util, os, sys; s = importlib.util.spec_from_file_location('b', {str(SCRIPT)!r});"
        "m = importlib.util.module_from_spec(s); s.loader.exec_module(m); m.be_stoppable();"
        "os.execv(sys.executable, [sys.executable, '-c', 'print(1, flush=True); import time; time.sleep(600)'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "UPDRAFT_HOME": str(tmp_path)}, stdout=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"1\n"

        assert bootstrap.stop() == 0

        assert run.wait(timeout=5) == -9
    assert list((tmp_path / "run").glob("command-*.lock")) == []


@pytest.mark.parametrize("shell", ["echo ready; exec sleep 600", "trap '' TERM; echo ready; sleep 600; sleep 600"])
def test_stop_ends_an_installer_whose_starter_was_killed_and_waits_for_its_end(
    bootstrap: ModuleType, tmp_path: Path, shell: str
) -> None:
    code = (
        f"import importlib.util, os; s = importlib.util.spec_from_file_location('b', {str(SCRIPT)!r});"
        "m = importlib.util.module_from_spec(s); s.loader.exec_module(m);"
        f"m.guarded(['/bin/sh', '-c', {shell!r}], os.environ)"
    )
    environment = {**os.environ, "UPDRAFT_HOME": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
        run.kill()

        bootstrap.stop(term_seconds=0.5)

        assert not bootstrap.held(tmp_path / "run" / "bootstrap.lock")
        assert run.stdout.read() == b""  # its end of the pipe is closed only when the installer is gone too


def test_the_footprint_can_be_loaded_before_any_package_is_there() -> None:
    code = (
        f"import pathlib, runpy; load = runpy.run_path({str(SCRIPT)!r})['load_footprint'];"
        "load().announcement([], pathlib.Path('/'), pathlib.Path('/'), {})"
    )
    subprocess.run([sys.executable, "-S", "-I", "-c", code], check=True, timeout=30)
