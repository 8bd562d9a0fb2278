"""`make clean` says what will be lost, asks, and knows UPDRAFT_HOME."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "clean.py"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "repo" / "scripts").mkdir(parents=True)
    shutil.copy(SCRIPT, tmp_path / "repo" / "scripts")
    home = tmp_path / "home"
    (home / "s3" / "updraft").mkdir(parents=True)
    (home / "config.json").write_text("{}")
    (home / "s3" / "updraft" / "model").write_bytes(b"x" * 10_000)
    return tmp_path


def clean(checkout: Path, verb: str, **environment: str) -> subprocess.CompletedProcess[str]:
    script = checkout / "repo" / "scripts" / "clean.py"
    variables = {**os.environ, "UPDRAFT_HOME": str(checkout / "home"), **environment}
    return subprocess.run(
        [sys.executable, str(script), verb],
        env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_without_a_terminal_nothing_is_removed_unless_yes(checkout: Path) -> None:
    asked = clean(checkout, "ask")
    assert asked.returncode == 1
    assert "models of all jobs" in asked.stdout
    assert "YES=1" in asked.stderr
    assert clean(checkout, "ask", YES="1").returncode == 0


def test_the_named_home_goes_too(checkout: Path) -> None:
    assert clean(checkout, "remove").returncode == 0
    assert not (checkout / "home").exists()


def test_a_folder_that_is_no_home_is_left_alone(checkout: Path) -> None:
    (checkout / "home" / "config.json").unlink()
    refused = clean(checkout, "remove")
    assert refused.returncode != 0
    assert "is no home of Updraft" in refused.stderr
    assert (checkout / "home").exists()
