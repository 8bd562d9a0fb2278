"""The commands of docs/howto/simulate.md, and what is wrong in their use."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pages
import pytest
from unit.cli.cli_fakes import Run

PAGE = "docs/howto/simulate.md"


def commands() -> list[list[str]]:
    blocks = [block for block in pages.blocks(PAGE) if block.language == "sh"]
    return [shlex.split(line)[1:] for block in blocks for line in block.text.splitlines()]


def test_the_page_shows_what_is_printed(run: Run) -> None:
    shown = next(block.text for block in pages.blocks(PAGE) if block.language == "text")
    found = run(*commands()[0])
    assert found.code == 0, found.err
    assert [line.split() for line in found.out.splitlines()] == [line.split() for line in shown.splitlines()]


def test_the_pages_trace_gives_a_report(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trace = next(block.text for block in pages.blocks(PAGE) if block.text.startswith("arrives"))
    (tmp_path / "jobs.csv").write_text(trace)
    found = run(*commands()[1])
    assert found.code == 0, found.err
    page = (tmp_path / "report" / "index.html").read_text()
    assert "report/index.html" in found.out.replace("\\", "/")
    assert page.count("<svg") == 1
    for policy in ("fifo", "tiresias", "genetic", "updraft"):
        assert f"<td>{policy}</td>" in page


def test_the_figures_are_one_document(run: Run) -> None:
    found = json.loads(run("simulate", "--jobs", "5", "--policy", "updraft", "--drop", "--json").out)
    assert (found["jobs"], found["devices"]) == (5, 40)
    assert found["policies"]["updraft"]["completed"] == 5
    assert found["policies"]["updraft"]["mean_seconds"] > 600


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--policy", "updaft"), "'updaft' is no policy; did you mean updraft? there are fifo, ffdl,"),
        (("--kind", "odd"), "'odd' is no kind; there are compute, balanced"),
        (("--devices", "4"), "4 are too few: job-"),
        (("--devices", "0"), "Invalid value for '--devices': Input should be greater than or equal to 1"),
        (("--per-hour", "0"), "Invalid value for '--per-hour'"),
        (("--batch", "huge"), "'huge' is not one of"),
        (("--trace", "none.csv"), "none.csv cannot be read as a trace"),
    ],
)
def test_wrong_use_is_named(run: Run, arguments: tuple[str, ...], problem: str) -> None:
    found = run("simulate", *arguments)
    assert found.code != 0
    assert problem in " ".join(found.err.replace("│", " ").split())


def test_an_empty_trace_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("arrives,seconds,learners\n")
    found = run("simulate", "--trace", str(tmp_path / "empty.csv"))
    assert found.code != 0
    assert "has no jobs" in found.err
