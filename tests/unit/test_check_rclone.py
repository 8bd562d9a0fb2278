"""What the comparison of rclone with its public sources finds."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_rclone.py"
PRINTED = """bin/rclone: go1.26.9
\tpath\tgithub.com/rclone/rclone
\tmod\tgithub.com/rclone/rclone\tv1.75.2+dirty\t
\tdep\tbazil.org/fuse\tv0.1.0\th1:A0=
\tdep\tgolang.org/x/net\tv0.60.0\th1:B0=
\tbuild\t-trimpath=true
"""
SUMS = {"bazil.org/fuse@v0.1.0": "h1:A0=", "golang.org/x/net@v0.60.0": "h1:B0="}
GO_SUM = frozenset({"bazil.org/fuse v0.1.0 h1:A0=", "golang.org/x/net v0.60.0 h1:B0=", "x v1 h1:C0="})


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("updraft_check_rclone", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def judge(script: Any, printed: str = PRINTED, sums: dict[str, str] = SUMS, go_sum: Any = GO_SUM) -> list[str]:
    found: list[str] = script.differences(script.parse(printed), "1.75.2", script.Known(sums, go_sum))
    return found


def test_a_release_of_public_modules_has_no_difference(script: Any) -> None:
    assert judge(script) == []
    assert judge(script, sums={}, go_sum=None) == []  # what cannot be compared is told by `main`


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("h1:B0=", "h1:evil=", "golang.org/x/net@v0.60.0 is h1:evil= in the binary, and h1:B0= in public"),
        ("v0.60.0", "v0.59.0", "golang.org/x/net@v0.59.0 is not in the go.sum of rclone 1.75.2"),
        ("v1.75.2+dirty", "v1.75.1", "the binary is version v1.75.1, the package 1.75.2"),
        ("path\tgithub.com/rclone", "path\tgithub.com/other", "not github.com/rclone/rclone"),
        ("h1:B0=\n", "h1:B0=\n\t=>\texample.org/net\tv1\th1:X=\n", "example.org/net is built from other code"),
        ("h1:B0=\n", "\n\t=>\t./net\t(devel)\t\n", "golang.org/x/net is built from other code than its own"),
        ("bin/rclone", "bin/rclone: no Go\n\n", None),
    ],
)
def test_a_difference_is_named(script: Any, before: str, after: str, told: str | None) -> None:
    assert before in PRINTED
    found = judge(script, PRINTED.replace(before, after, 1))
    assert [text for text in found if told in text] if told else found == []


def test_without_go_the_comparison_is_skipped_and_says_so(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert script.main([]) == 0
    assert capsys.readouterr().out.startswith("SKIPPED: rclone was not compared")


def test_json_documents_that_follow_each_other_are_all_read(script: Any) -> None:
    assert script.documents('{"Path": "a"}\n{"Path": "b"}\n') == [{"Path": "a"}, {"Path": "b"}]
