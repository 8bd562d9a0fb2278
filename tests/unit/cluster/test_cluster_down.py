"""`make cluster-down` ends what belongs to its cluster, and nothing of another's. Needs no root."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kubecluster.command import main
from kubecluster.layout import STATE_VARIABLE, Layout

from updraft.stack.layout import MARK_VARIABLE


@contextmanager
def part_of_platform(layout: Layout) -> Iterator[subprocess.Popen[bytes]]:
    """As a run of the tests that was killed leaves one; it has begun its program when this is entered."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)"],
        env={**os.environ, MARK_VARIABLE: str(layout.platform)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"here\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_platform_of_killed_tests_is_ended_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(STATE_VARIABLE, str(tmp_path / "one"))
    one, other = (Layout(tmp_path / name, tmp_path / "cache") for name in ("one", "other"))
    with part_of_platform(one) as left, part_of_platform(other) as foreign:
        assert main(["down"]) == 0
        assert left.wait(timeout=10) != 0
        assert foreign.poll() is None
