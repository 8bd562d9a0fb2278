"""The sizes of elastic jobs in one round: never more devices than there are, no change without a gain."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from updraft.allocation.elastic import Curve, ElasticJob, SizingRules, size_jobs
from updraft.allocation.scalability import Limits, Point, Speed, best_points
from updraft.allocation.sizing import NoSizesError

GOOD = Curve(best_points(Speed(0.0, 0.01, 0.01), Limits(1, 8, 8, 512, 64)))
POOR = Curve(best_points(Speed(0.0, 0.01, 0.6, 0.05), Limits(1, 8, 8, 512, 64)))
OLD = {"age_seconds": 36_000.0, "pause_seconds": 30.0}


@st.composite
def rounds(draw: st.DrawFn) -> tuple[list[ElasticJob], int, SizingRules]:
    jobs = [
        ElasticJob(
            f"job-{n}",
            draw(st.sampled_from([GOOD, POOR, Curve(GOOD.points[2:5]), Curve(POOR.points[:1])])),
            devices=draw(st.integers(1, 2)),
            current=draw(st.integers(0, 8)),
            age_seconds=draw(st.floats(0, 1e5)),
            pause_seconds=draw(st.floats(0, 300)),
            resizes=draw(st.integers(0, 20)),
            since_seconds=draw(st.floats(0, 1e4)),
        )
        for n in range(draw(st.integers(0, 6)))
    ]
    return jobs, draw(st.integers(0, 80)), SizingRules(draw(st.sampled_from([1.0, 0.5, 0.0, -1.0])))


@given(rounds())
def test_no_round_gives_more_than_there_is(given_: tuple[list[ElasticJob], int, SizingRules]) -> None:
    jobs, devices, rules = given_
    try:
        found = size_jobs(jobs, devices, rules)
    except NoSizesError:
        assert sum(job.curve.points[0].learners * job.devices for job in jobs) > devices
        return
    assert set(found.sizes) == {job.job_id for job in jobs}
    assert sum(found.sizes[job.job_id].learners * job.devices for job in jobs) <= devices
    for job in jobs:
        assert found.sizes[job.job_id] in job.curve.points
    resized = {each.job_id: each for each in found.resizes}
    for job in jobs:
        if job.job_id in resized:
            assert resized[job.job_id].before == job.current != resized[job.job_id].after.learners
        else:
            assert found.sizes[job.job_id].learners == job.current


def test_a_job_grows_into_free_devices() -> None:
    found = size_jobs([ElasticJob("a", GOOD, current=2, **OLD)], 8)
    assert found.sizes["a"].learners == 8
    assert found.resizes[0].reason == "grows into devices that are free, or that bring more here"
    assert found.gain > 1


def test_jobs_shrink_for_a_newcomer() -> None:
    found = size_jobs([ElasticJob("a", GOOD, current=8, **OLD), ElasticJob("b", GOOD)], 8)
    assert found.sizes["a"].learners + found.sizes["b"].learners == 8
    assert {each.job_id: each.reason for each in found.resizes} == {
        "a": "makes room for jobs that start",
        "b": "starts",
    }


def test_devices_go_where_they_bring_more() -> None:
    found = size_jobs([ElasticJob("good", GOOD, current=4, **OLD), ElasticJob("poor", POOR, current=4, **OLD)], 8)
    assert found.sizes["good"].learners > found.sizes["poor"].learners
    assert found.resizes[1].reason == "gives devices to jobs for which they bring more"


def test_a_small_gain_changes_nothing() -> None:
    flat = Curve([Point(1, 8, 100.0), Point(2, 8, 103.0)])
    found = size_jobs([ElasticJob("a", flat, current=1, **OLD)], 8)
    assert not found.resizes
    assert found.reason == "other sizes would be faster by 3.0%, less than 5%"
    assert size_jobs([ElasticJob("a", flat, current=1, **OLD)], 8, SizingRules(least_gain=0.01)).resizes


def test_a_resize_that_costs_more_than_it_brings_is_left_out() -> None:
    young = ElasticJob("a", GOOD, current=4, age_seconds=10.0, pause_seconds=30.0)
    assert young.restart_factor() == pytest.approx(0.25)
    assert size_jobs([young], 8).reason == "no other sizes are faster"
    often = ElasticJob("a", GOOD, current=4, age_seconds=600.0, pause_seconds=30.0, resizes=20)
    assert often.restart_factor() == 0
    assert not size_jobs([often], 8).resizes
    assert size_jobs([ElasticJob("a", GOOD, current=4, **OLD)], 8).resizes


def test_a_job_keeps_a_new_size_for_a_while() -> None:
    job = ElasticJob("a", GOOD, current=4, since_seconds=59.0, **OLD)
    assert size_jobs([job], 8).sizes["a"].learners == 4
    assert size_jobs([job, ElasticJob("b", GOOD)], 8).sizes["b"].learners == 4
    # but not if others could not start
    assert size_jobs([job, ElasticJob("b", GOOD)], 4).sizes["b"].learners >= 1


def test_fairness_spreads_devices() -> None:
    jobs = [ElasticJob("good", GOOD), ElasticJob("poor", POOR)]
    unequal, equal = size_jobs(jobs, 8), size_jobs(jobs, 8, SizingRules(fairness=-1.0))
    assert equal.sizes["good"].learners <= unequal.sizes["good"].learners


def test_a_size_that_is_no_longer_allowed_is_left() -> None:
    found = size_jobs([ElasticJob("a", Curve(GOOD.points[:4]), current=8, **OLD)], 8)
    assert found.sizes["a"].learners == 4


def test_more_jobs_than_devices_are_refused() -> None:
    with pytest.raises(NoSizesError, match="3 jobs need at least 3 devices, and there are 2"):
        size_jobs([ElasticJob(name, GOOD) for name in "abc"], 2)


@pytest.mark.parametrize("goodput", [math.nan, 0.0, -1.0, math.inf])
def test_a_goodput_that_cannot_be_is_refused(goodput: float) -> None:
    with pytest.raises(ValueError, match="finite and above 0"):
        Curve([Point(1, 8, goodput)])


@pytest.mark.parametrize("learners", [(), (2, 1), (1, 1), (0, 1)])
def test_sizes_that_do_not_ascend_are_refused(learners: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        Curve([Point(n, 8, 1.0) for n in learners])
