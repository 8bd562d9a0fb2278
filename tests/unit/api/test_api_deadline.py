"""No part is waited for longer than its time, and only its own time is counted."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from updraft.api import deadline
from updraft.api.deadline import ClientImports, Deadline
from updraft.schemas import PART_TITLES


def test_a_slow_first_import_is_not_held_against_the_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_client_of_a_part.py").write_text("import time\ntime.sleep(1.2)\n")
    monkeypatch.syspath_prepend(tmp_path)
    imports = ClientImports({"mlflow": ("slow_client_of_a_part",)})
    assert Deadline(seconds=1, imports=imports).call("mlflow", lambda: "answered") == "answered"


def test_every_part_says_what_its_client_is_and_it_can_be_imported() -> None:
    assert set(deadline.CLIENTS) == set(PART_TITLES)
    for names in deadline.CLIENTS.values():
        assert all(importlib.util.find_spec(name) for name in names)


def test_callers_at_once_import_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "circular_a.py").write_text("import time\ntime.sleep(0.1)\nimport circular_b\nDONE = circular_b.DONE\n")
    (tmp_path / "circular_b.py").write_text("import circular_a\nDONE = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    imports = ClientImports({"mlflow": ("circular_a", "circular_b")})
    guard = Deadline(imports=imports)
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(guard.call, part, lambda: "answered") for part in ("mlflow",) * 8]
    assert {call.result() for call in calls} == {"answered"}
