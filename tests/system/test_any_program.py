"""A program whose packages are not in its image runs with those that its manifest names, as
docs/howto/dependencies.md says."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from learner.package_index import package_index, wheel
from system_helpers import Stack, pretty

pytestmark = [pytest.mark.system, pytest.mark.turn(1), pytest.mark.timeout(900)]


def job(name: str, index: str) -> dict[str, Any]:
    return {
        "name": name,
        "framework": {"name": "sklearn"},
        "code": ".",
        "command": "python train.py && tinya-run",
        "resources": {"learners": 1, "cpus": 0.5, "memory": "512MiB"},
        "environment": {"requirements": "requirements.txt", "index": {"url": index}},
    }


def test_packages_are_built_and_imported(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("tinya\n")
    (tmp_path / "train.py").write_text("import tinya\nprint('has', tinya.VERSION)\n")
    with package_index(wheel("tinya", "1.0")) as index:
        detail = stack.end(stack.submit(job("packages", index), base=tmp_path))
    assert detail.state == "COMPLETED", pretty(detail)
    assert {learner.role for learner in detail.learners} == {"build", "train"}
    again = stack.end(stack.submit(job("packages", index), base=tmp_path))  # the index is gone by now
    assert again.state == "COMPLETED", pretty(again)
    assert {learner.role for learner in again.learners} == {"train"}
    assert {"has 1.0", "tinya 1.0"} <= set(stack.log(again.id).splitlines())


def test_a_build_is_cancelled_and_is_halted_and_resumed(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("tinyb\n")
    (tmp_path / "train.py").write_text("import tinyb\nprint('has', tinyb.VERSION)\n")
    asked, answers = threading.Event(), threading.Event()
    with package_index(wheel("tinyb", "1.0"), asked=asked, answers=answers) as index:
        try:
            first = {**job("cancelled", index), "command": "python train.py"}
            cancelled = stack.submit(first, base=tmp_path)
            assert asked.wait(240), pretty(stack.client.job(cancelled))
            stack.client.cancel(cancelled, wait=True, timeout_seconds=120)
            assert processes_of(cancelled) == []
            asked.clear()
            halted = stack.submit({**first, "name": "halted"}, base=tmp_path)
            assert asked.wait(240), pretty(stack.client.job(halted))
            stack.client.halt(halted, wait=True, timeout_seconds=120)
            assert stack.client.job(halted).state == "HALTED"
            assert processes_of(halted) == []
        finally:
            answers.set()
        stack.client.resume(halted)
        detail = stack.end(halted)
    assert detail.state == "COMPLETED", pretty(detail)
    assert "has 1.0" in stack.log(halted)


def processes_of(job_id: str) -> list[str]:
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        if (process.info["environ"] or {}).get("TRAINING_ID") == job_id:
            found.append(" ".join(process.info["cmdline"] or []))
    return found
