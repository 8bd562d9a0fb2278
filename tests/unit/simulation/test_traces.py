"""Traces: made ones are the same for a seed, and a file that is wrong is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from updraft.simulation.traces import TraceError, generate, read

GOOD = "job_id,arrives,seconds,learners,kind\na,0,600,4,balanced\nb,30.5,60,1,\n"


def test_a_seed_gives_the_same_trace() -> None:
    assert generate(50, 30, seed=1) == generate(50, 30, seed=1)
    assert generate(50, 30, seed=1) != generate(50, 30, seed=2)


def test_jobs_arrive_as_often_as_asked() -> None:
    jobs = generate(4000, 120, seed=1)
    assert jobs[-1].arrives == pytest.approx(4000 * 30, rel=0.06)


@pytest.mark.parametrize("batch", ["smallest", "largest", "random"])
def test_fixed_sizes_are_among_those_that_the_job_allows(batch: str) -> None:
    for job in generate(300, 30, batch=batch, seed=3):  # type: ignore[arg-type]
        assert job.fixed.batch in job.limits.batches(job.fixed.learners)


def test_the_trace_differs_only_in_the_batch() -> None:
    small, large = generate(20, 30, batch="smallest"), generate(20, 30, batch="largest")
    assert [(job.arrives, job.work) for job in small] == [(job.arrives, job.work) for job in large]
    assert all(a.fixed.batch <= b.fixed.batch for a, b in zip(small, large, strict=True))


@pytest.mark.parametrize(("count", "per_hour"), [(-1, 1), (1, 0), (1, float("nan"))])
def test_a_trace_without_arrivals_is_refused(count: int, per_hour: float) -> None:
    with pytest.raises(ValueError, match="must arrive"):
        generate(count, per_hour)


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(GOOD)
    first, second = read(path)
    assert (first.job_id, first.arrives, first.fixed.learners) == ("a", 0, 4)
    assert first.seconds_alone() == pytest.approx(600)
    assert second.seconds_alone() == pytest.approx(60)
    assert first.fixed.batch in first.limits.batches(4)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("arrives,seconds\n0,1\n", "column learners is missing; it has arrives, seconds"),
        ("", "column arrives, seconds, learners is missing; it has none"),
        (GOOD.replace("30.5", "soon"), "line 3: arrives is 'soon'; a number of at least 0 is needed"),
        (GOOD.replace(",4,", ",0,"), "line 2: learners is '0'; a number of at least 1"),
        (GOOD.replace(",600,", ",nan,"), "line 2: seconds is 'nan'"),
        (GOOD.replace(",600,", ",,"), "line 2: seconds is ''"),
        (GOOD.replace("balanced", "odd"), "line 2: kind is 'odd'; there are compute, balanced"),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(TraceError, match=problem):
        read(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.csv cannot be read"):
        read(tmp_path / "none.csv")
