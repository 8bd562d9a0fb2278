"""The published page is made of the results alone; ratios, budgets and doubts are what the samples say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks import cli, report, results
from benchmarks.figures import orchestration, throughput
from benchmarks.machine import REPOSITORY
from benchmarks.options import Options
from benchmarks.pods import PodTimes, note
from benchmarks.results import (
    Budget,
    Comparison,
    Machine,
    Measured,
    Noise,
    Result,
    TableOf,
    Value,
)

from updraft.recovery.facts import pod_facts

QUIET = Noise(jitter_before=0.01, jitter_after=0.02, others_before=0.0, others_after=0.01)


def a_result(**changes: Any) -> Result:
    fields: dict[str, Any] = {
        "name": "some",
        "title": "Some figure",
        "quick": False,
        "at": "2030-01-02T03:04:05+00:00",
        "commit": "0123456789ab",
        "changed": False,
        "seconds": 12.3,
        "machine": Machine(system="Linux 6", python="3.11.7", processor="a chip", cores=2, memory_mib=24 * 1024),
        "noise": QUIET,
        "measured": Measured(
            settings={"rounds": 3},
            comparisons=(
                Comparison(
                    name="Speed",
                    unit="samples/s",
                    a="on it",
                    b="bare",
                    pairs=((99, 100), (98, 100), (100, 100)),
                    budget=Budget(at="least", value=0.99),
                ),
            ),
            values=(Value(name="Size", unit="MB", samples=(3000.0,), budget=Budget(at="most", value=2500)),),
            tables=(TableOf(title="Parts", columns=("part", "MB"), rows=(("one", 1.5), ("two", None))),),
            notes=("A note.",),
        ),
    }
    return Result.model_validate({**fields, **changes})


def test_the_page_is_the_one_that_the_results_make() -> None:
    figures = [(name, cli.figure_of(name).TITLE) for name in cli.FIGURES]
    assert report.PAGE.read_text(encoding="utf-8") == report.page(figures), "run: python bench report"


@pytest.mark.parametrize("path", sorted(results.FOLDER.glob("*.json")), ids=lambda p: p.stem)
def test_a_published_result_is_whole_and_no_smoke_run(path: Path) -> None:
    result = Result.model_validate_json(path.read_text(encoding="utf-8"))
    assert (result.name, result.quick) == (path.stem, False)
    assert result.name in cli.FIGURES


def test_a_section_says_when_where_and_whether_the_budget_was_met() -> None:
    assert report.section(a_result()) == (
        "`python bench some`, 2030-01-02, commit `0123456789ab`, on 2 cores (a chip), 24 GiB memory, Linux 6, "
        "Python 3.11.7; took 12 s.\n"
        "\n"
        "| compared | unit | A | B | A / B | min to max | pairs | budget |  |\n"
        "|---|---|---|---|---|---|---|---|---|\n"
        "| Speed: on it / bare | samples/s | 98 to 100 | 100 | 0.99 | 0.98 to 1 | 3 | ≥ 0.99 | met |\n"
        "\n"
        "| value | median | min to max | samples | budget |  |\n"
        "|---|---|---|---|---|---|\n"
        "| Size | 3000 MB |  | 1 | ≤ 2500 | **missed** |\n"
        "\n"
        "Parts:\n"
        "\n"
        "| part | MB |\n"
        "|---|---|\n"
        "| one | 1.5 |\n"
        "| two |  |\n"
        "\n"
        "- A note.\n"
        "- Settings: rounds 3.\n"
    )


def test_a_noisy_machine_is_named_in_section_and_summary() -> None:
    noisy = a_result(noise=Noise(jitter_before=0.01, jitter_after=0.5, others_before=1.25, others_after=0.0))
    assert noisy.doubts == (
        "the machine was noisy: the same piece of work varied by 50% (limit 10%)",
        "others used 1.25 cores beside the measurement (limit 0.15)",
    )
    assert "> Do not rely on this run: others used 1.25 cores" in report.section(noisy)
    assert a_result().doubts == ()


def test_a_result_survives_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    monkeypatch.setattr(results, "QUICK_FOLDER", tmp_path / "quick")
    kept, quick = a_result(), a_result(quick=True, seconds=1)
    results.save(kept)
    results.save(quick)
    assert (results.load("some"), results.load("some", quick=True)) == (kept, quick)
    assert results.load("another") is None
    assert json.loads((tmp_path / "some.json").read_text())["measured"]["comparisons"][0]["pairs"][0] == [99.0, 100.0]


def test_options_prefer_what_was_asked_for() -> None:
    assert (Options().pairs(5), Options(quick=True).pairs(5), Options(quick=True, rounds=3).pairs(5)) == (5, 1, 3)
    assert (Options().span(60, 8), Options(quick=True).span(60, 8), Options(seconds=9).span(60, 8)) == (60, 8, 9)


def test_work_that_overlaps_is_taken_off_once() -> None:
    assert orchestration.union_seconds([(5, 6), (0, 2), (1, 3), (1.5, 1.7)]) == 4
    assert orchestration.union_seconds([]) == 0


def test_a_logged_span_reaches_from_the_first_begin_to_the_last_end() -> None:
    lines = [
        (1.0, "Task begins"),
        (2.0, "Staging a"),
        (3.0, "Staged a: 1 files"),
        (4.0, "Staging b"),
        (7.0, "Staged b"),
    ]
    assert orchestration.logged_span(lines, "Staging ", "Staged ") == (2.0, 7.0)
    assert orchestration.logged_span(lines, "Validating ", "evaluated") is None


def test_a_pods_moments_are_those_at_which_they_were_seen_first() -> None:
    def pod(phase: str, main: dict[str, Any]) -> Any:
        return pod_facts(
            {
                "metadata": {"name": "p", "labels": {}},
                "status": {"phase": phase, "containerStatuses": [{"name": "base", "state": main}]},
            }
        )

    times = PodTimes()
    note(times, pod("Pending", {"waiting": {}}), "ADDED", 1.0)
    note(times, pod("Running", {"running": {}}), "MODIFIED", 2.0)
    note(times, pod("Running", {"running": {}}), "MODIFIED", 3.0)
    note(times, pod("Succeeded", {"terminated": {"exitCode": 0}}), "MODIFIED", 5.0)
    note(times, pod("Succeeded", {"terminated": {"exitCode": 0}}), "DELETED", 6.0)
    assert times.at == {"created": 1, "main started": 2, "main ended": 5, "ended": 5, "deleted": 6}
    assert times.span("main started", "main ended") == (2, 5)
    assert times.span("stage started", "stage ended") is None


def test_a_trainer_that_lost_its_core_and_turns_that_differ_are_doubts() -> None:
    def run(*samples: float, cpu_seconds: float = 5.0) -> list[dict[str, Any]]:
        """One side's turns; the first is warm-up and would spoil everything."""
        rest = {"seconds": 5.0, "cpu_seconds": cpu_seconds, "checkpoints": 1}
        turns = [{"turn": 4 + 2 * n, "samples": s, **rest} for n, s in enumerate(samples)]
        return [{"turn": 0, "samples": 1, **rest}, *turns]

    params = {"turns": 12, "turn_seconds": 5, "core": 1}
    quiet = throughput.measured([run(1000, 1200, 900, 1001)], [run(1001, 1202, 901, 1002)], params)
    assert quiet.doubts == ()
    assert quiet.comparisons[0].pairs == ((4101 / 20, 4106 / 20),)
    assert quiet.comparisons[0].met is True
    noisy = throughput.measured([run(1000, 1200, cpu_seconds=4.0)], [run(1000, 1100)], params)
    assert noisy.doubts == (
        "the turns differ so much that 8.7% of the ratio are unknown, more than the 1% to be seen",
        "the trainers had their core only 90% of the time",
    )


@pytest.mark.parametrize("turns", [4, 5, 12])
def test_turns_are_handed_over_so_that_one_works_at_a_time(tmp_path: Path, turns: int) -> None:
    script = """
import sys
from turns import my_turns
folder, side, count, noted = sys.argv[1:]
for number in my_turns(folder, int(side), int(count)):
    for what in ("begin", "end"):
        with open(noted, "a") as file:
            file.write(f"{what} {number}\\n")
"""
    noted = tmp_path / "noted"
    with throughput.pipes(tmp_path / "pipes") as made:
        sides = [
            subprocess.Popen(
                [sys.executable, "-c", script, made, side, str(turns), str(noted)],
                cwd=REPOSITORY / "bench" / "jobs" / "throughput",
            )
            for side in ("1", "0")
        ]
        assert [side.wait(30) for side in sides] == [0, 0]
    assert noted.read_text().splitlines() == [f"{what} {n}" for n in range(turns) for what in ("begin", "end")]
