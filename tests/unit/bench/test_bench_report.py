"""The published page is made of the results alone; ratios, budgets and doubts are what the samples say."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest
from benchmarks import cli, report, results
from benchmarks.figures import heartbeat, orchestration, throughput
from benchmarks.figures.heartbeat import Run, Turn
from benchmarks.figures.throughput import Side
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
from benchmarks.stack import BenchmarkError
from benchmarks.training import Told

from updraft.kubernetes.pod_status import pod_facts

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


def test_a_noisy_run_is_repeated_and_the_quietest_try_is_kept() -> None:
    def with_jitter(jitter: float) -> Result:
        return a_result(noise=QUIET.model_copy(update={"jitter_after": jitter}))

    def measured(tries: int, *jitters: float) -> Result:
        coming = map(with_jitter, jitters)
        return cli.run_until_quiet("some", Options(), tries, lambda _name, _options: next(coming))

    quiet = measured(5, 0.6, 0.3, 0.01, 0.9)
    assert (quiet.noise.jitter_after, quiet.tries, quiet.doubts) == (0.01, 3, ())
    noisy = measured(2, 0.6, 0.3)
    assert (noisy.noise.jitter_after, noisy.tries) == (0.3, 2)
    assert "took 12 s, the quietest of 2 tries." in report.section(noisy)


def test_a_result_survives_its_file(tmp_path: Path) -> None:
    kept, quick = a_result(), a_result(quick=True, seconds=1)
    for result in (kept, quick):
        results.save(result, tmp_path)
    assert (results.load("some", tmp_path), results.load("some", tmp_path, quick=True)) == (kept, quick)
    assert results.load("another", tmp_path) is None
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


def a_run(*speeds: float, cpu_share: float = 1.0) -> Run:
    """Turns of 2 s, A B B A, with so many batches a second in each; batches of 10."""
    batches, turns, at = [(-1e-6, -1e-6 * cpu_share)], [], 0.0
    for number, speed in enumerate(speeds):
        turns.append(Turn((number + 1) // 2 % 2 == 0, at, at + 2))
        batches += [(at + (n + 1) / speed, (at + (n + 1) / speed) * cpu_share) for n in range(round(2 * speed))]
        at += 2
    return Run(tuple(turns), 10, (*batches, (at + 1, (at + 1) * cpu_share)), (1.0,))


def test_a_program_beside_its_sidecar_is_compared_with_itself_while_the_sidecar_stands_still() -> None:
    quiet = heartbeat.measured([a_run(200, 201, 201, 200), a_run(180, 181, 181, 180)], 0.2, 4, 1)
    assert [pytest.approx(pair, rel=1e-3) for pair in ((2000, 2010), (1800, 1810))] == list(quiet.comparisons[0].pairs)
    added = next(value for value in quiet.values if value.unit == "ms")
    assert added.samples == pytest.approx((1000 / 200 - 1000 / 201, 1000 / 180 - 1000 / 181), rel=0.05)
    noisy = heartbeat.measured([a_run(100, 120, 100, 100)], 0.2, 4, 1)
    assert noisy.doubts == (
        "the turns differ so much that 18.2% of the ratio are unknown, more than the 0.5% to be seen",
    )


def test_three_models_are_compared_with_the_machine_without_the_platform_and_say_what_is_unknown() -> None:
    quiet = [(Side(999, 1.0), Side(1000, 1.0)), (Side(998, 1.0), Side(1000, 1.0))]
    noisy = [(Side(900, 0.5), Side(1000, 1.0)), (Side(1000, 1.0), Side(1000, 1.0))]
    found = throughput.measured({"cnn": quiet, "sklearn": noisy}, 60, 1)
    assert [(c.name, c.met) for c in found.comparisons] == [
        ("Training throughput, cnn", True),
        ("Training throughput, sklearn", False),
    ]
    assert found.doubts == (
        "sklearn: the pairs differ so much that 10.5% of the ratio are unknown, more than the 0.5% to be seen",
        "sklearn: a trainer had its core only 50% of the time",
    )


def test_a_speed_is_of_a_span_after_the_warm_up() -> None:
    slow = tuple((float(n), float(n)) for n in range(10))  # a batch a second, then ten
    told = Told(10, (*slow, *((9 + n / 10, 9 + n / 10) for n in range(1, 101))))
    assert told.speed(warm_up=10, seconds=5) == pytest.approx(100)
    assert told.share() == pytest.approx(1)
    with pytest.raises(BenchmarkError, match="did not train for 30 s"):
        told.speed(warm_up=10, seconds=20)


def test_turns_come_in_pairs_of_equal_length_until_each_side_has_its_time() -> None:
    lengths = heartbeat.drawn(30, Random(1))
    assert lengths[::2] == lengths[1::2]
    assert 30 <= sum(lengths[::2]) < 30 + heartbeat.TURN_SECONDS[1]


def test_while_they_stand_still_all_helpers_are_stopped_but_not_the_trainer() -> None:
    words = [sys.executable, "-c", "import time; time.sleep(60)"]
    started = [subprocess.Popen(words) for _ in range(3)]
    try:
        trainer, *others = [psutil.Process(each.pid) for each in started]
        with heartbeat.standing_still(others):
            deadline = time.monotonic() + 10
            while {each.status() for each in others} != {psutil.STATUS_STOPPED}:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert trainer.status() != psutil.STATUS_STOPPED
        deadline = time.monotonic() + 10
        while psutil.STATUS_STOPPED in {each.status() for each in others}:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        for each in started:
            each.kill()
            each.wait()
