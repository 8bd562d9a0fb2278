"""What `make test-cluster` runs, with a program in pytest's place."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from kubecluster import suite
from kubecluster.layout import STATE_VARIABLE, Layout
from kubecluster.target import KUBECONFIG_VARIABLE

PROGRAM = f"""
import os, pathlib, sys
here = pathlib.Path(os.environ["SEEN"])
ends = sys.argv[1].endswith("test_cluster_ends.py")
(here / ("ends" if ends else "others")).write_text(" ".join([os.environ.get("{STATE_VARIABLE}", "-"), *sys.argv[1:]]))
print("ends say this" if ends else "others say this")
sys.exit(int(os.environ["ENDS" if ends else "OTHERS"]))
"""


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.setattr(suite, "PYTEST", (sys.executable, "-c", PROGRAM))
    monkeypatch.setattr(suite, "kept_running", lambda layout, say: nullcontext())
    monkeypatch.setattr(suite, "why_not", lambda layout: None)
    monkeypatch.delenv(KUBECONFIG_VARIABLE, raising=False)
    for name, value in (("SEEN", str(tmp_path)), ("ENDS", "0"), ("OTHERS", "0")):
        monkeypatch.setenv(name, value)
    return Layout(tmp_path / "cluster", tmp_path / "cache")


def seen(layout: Layout) -> dict[str, list[str]]:
    return {file.name: file.read_text().split() for file in layout.root.parent.iterdir() if file.is_file()}


def test_tests_that_end_clusters_run_beside_the_others(layout: Layout, capfd: pytest.CaptureFixture[str]) -> None:
    assert suite.run(layout, [], print) == 0
    assert seen(layout) == {
        "others": [str(layout.root), "tests/cluster", "--ignore=tests/cluster/test_cluster_ends.py"],
        "ends": [f"{layout.root}-beside", "tests/cluster/test_cluster_ends.py"],
    }
    said = capfd.readouterr().out
    assert said.index("others say this") < said.index("ends say this")  # each in one piece


@pytest.mark.parametrize(("fails", "code"), [("ENDS", 3), ("OTHERS", 4)])
def test_either_fails_the_whole(layout: Layout, monkeypatch: pytest.MonkeyPatch, fails: str, code: int) -> None:
    monkeypatch.setenv(fails, str(code))
    assert suite.run(layout, [], print) == code


def test_chosen_tests_are_one_run(layout: Layout) -> None:
    assert suite.run(layout, ["-k", "a or b"], print) == 0
    assert {name: words[1:] for name, words in seen(layout).items()} == {
        "others": ["tests/cluster", "-k", "a", "or", "b"]
    }


def test_a_named_cluster_is_one_run(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KUBECONFIG_VARIABLE, "/somewhere/kubeconfig")
    assert suite.run(layout, [], print) == 0
    assert list(seen(layout)) == ["others"]


def test_where_no_cluster_can_be_started_the_tests_say_why(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "why_not", lambda layout: "only root")
    assert suite.run(layout, [], print) == 0
    assert list(seen(layout)) == ["others"]
