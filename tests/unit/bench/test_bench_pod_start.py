"""The pure parts of the figure of a pod's start."""

from __future__ import annotations

import pytest
from benchmarks.figures import pod_start
from benchmarks.figures.pod_start import Start


def test_the_first_line_is_found_among_others() -> None:
    log = "2026-01-02T03:04:05.123456789Z something else\n2026-01-02T03:04:06.5Z first line\n"
    (found,) = pod_start.line_times(log)
    assert found == pytest.approx(1767323046.5)


def test_what_has_no_time_yet_is_no_line() -> None:
    assert pod_start.line_times("first line\n") == []


def test_starts_become_a_ratio_and_its_parts() -> None:
    marks = {"sidecar started": 4.0, "main started": 5.5}
    ours, bare = Start(0.5, 1.0, 5.0, marks), Start(0.0, 1.0, 3.0)
    made = pod_start.measured([(ours, bare, Start(0.0, 1.0, 4.0))])
    assert [c.pairs for c in made.comparisons] == [((4.0, 2.0),), ((4.5, 3.0),), ((3.0, 2.0),)]
    assert [c.met for c in made.comparisons] == [False, None, None]
    assert [value.samples for value in made.values] == [(2.0,), (1.0,)]
    phases = {row[0]: row[1] for row in made.tables[0].rows}
    assert next(iter(phases)) == "asked → posted"
