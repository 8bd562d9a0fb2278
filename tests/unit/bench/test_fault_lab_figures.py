"""What the figures of recovery say is what their samples say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.figures import control_plane, recovery
from benchmarks.figures.control_plane import Sample
from benchmarks.figures.recovery import Restart, read_steps
from benchmarks.results import Comparison, TableOf, Value


def restart(seconds: float, own: float, repeated: int = 3) -> Restart:
    """It takes the half of a second to repeat its steps."""
    renewed = 100.0 + seconds
    return Restart(100.0, started=renewed - own, stepped=renewed - 0.5, renewed=renewed, repeated=repeated)


def test_recovery_is_compared_pair_by_pair_with_the_parts_of_both_sides() -> None:
    pairs = [(restart(9.0, 6.0), restart(7.5, 6.5)), (restart(8.0, 6.0), restart(7.0, 6.0))]
    found = recovery.measured({"long": pairs, "short": pairs[:1]})
    comparison, short = found.comparisons
    assert short.pairs == ((9.0, 7.5),)
    assert isinstance(comparison, Comparison)
    assert comparison.pairs == ((9.0, 7.5), (8.0, 7.0))
    assert comparison.ratio == pytest.approx((9.0 / 7.5 + 8.0 / 7.0) / 2)
    assert comparison.met is True
    [table] = found.tables
    assert isinstance(table, TableOf)
    assert table.rows == (
        ("killed → successor's process, long start", 2.5, 1.0),
        ("successor's process → its first step, long start", 5.5, 5.75),
        ("its first step → its first new step, long start", 0.5, 0.5),
        ("killed → successor's process, short start", 3.0, 1.0),
        ("successor's process → its first step, short start", 5.5, 6.0),
        ("its first step → its first new step, short start", 0.5, 0.5),
    )
    assert found.doubts == ()
    assert {value.name: value.samples for value in found.values} == {
        "What the platform adds": (1.5, 1.0, 1.5),
        "Steps repeated on the platform": (3, 3, 3),
        "Steps repeated bare": (3, 3, 3),
    }


def test_bare_restarts_that_differ_much_are_doubted() -> None:
    bare = [restart(6.0, 5.0), restart(9.0, 8.0)]
    found = recovery.measured({"short": [(restart(9.0, 6.0), each) for each in bare]})
    assert found.doubts == ("the bare restarts of the program with a short start differ by 40% among themselves",)


def test_a_step_that_is_being_written_is_passed_over(tmp_path: Path) -> None:
    notes = tmp_path / "steps.jsonl"
    assert read_steps(notes) == []
    notes.write_text(json.dumps({"t": 1.0, "step": 1, "pid": 7}) + '\n{"t": 2.0, "st')
    assert read_steps(notes) == [{"t": 1.0, "step": 1, "pid": 7}]


def test_each_killed_part_has_a_row_beside_the_same_without_a_kill() -> None:
    def sample(part: str, lost: int = 0, serves: float | None = 4.0) -> Sample:
        return Sample(part, serves, current=1.0, verdict=9.0, lost_steps=lost, pause=0.3)

    found = control_plane.measured(
        [
            sample("nothing", serves=None),
            sample("nothing", serves=None),
            sample("triggerer"),
            sample("triggerer", lost=2),
        ]
    )
    [table] = found.tables
    assert table.rows == (("nothing", None, 1.0, 9.0, 0.3, 0.0), ("triggerer", 4.0, 1.0, 9.0, 0.3, 2.0))
    [lost] = found.values
    assert isinstance(lost, Value)
    assert (lost.samples, lost.met) == ((2.0,), False)
    assert found.settings == {"rounds": 2}
