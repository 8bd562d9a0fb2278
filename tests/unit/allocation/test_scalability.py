"""How fast a job trains with learners and a batch: the best batch of each size, and the fit to what jobs report."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from updraft.allocation.scalability import (
    Exchange,
    Limits,
    Report,
    Speed,
    best_points,
    composed_reports,
    curve_points,
    fit_exchange,
    fit_speed,
    ignores_batch,
    ignores_learners,
)

speeds = st.builds(
    Speed,
    fixed=st.floats(0, 1),
    per_sample=st.floats(1e-5, 0.1),
    sync=st.floats(0, 1),
    sync_per_learner=st.floats(0, 0.1),
)
limits = st.builds(
    lambda low, more, batch, times, memory, noise: Limits(low, low + more, batch, batch * times, memory, noise),
    st.integers(1, 4), st.integers(0, 12), st.integers(1, 64), st.integers(1, 16),
    st.none() | st.integers(1, 128), st.none() | st.floats(1, 1e5),
)  # fmt: skip


@given(speeds, limits)
def test_no_batch_that_the_job_allows_is_better(speed: Speed, limits: Limits) -> None:
    points = {point.learners: point for point in best_points(speed, limits)}
    for learners in range(limits.min_learners, limits.max_learners + 1):
        allowed = [
            batch
            for batch in range(limits.min_batch, limits.max_batch + 1)
            if batch % learners == 0 and (limits.max_per_learner is None or batch // learners <= limits.max_per_learner)
        ]
        assert (learners in points) == bool(allowed)
        if allowed:
            best = max(b / speed.step_seconds(b, learners) * limits.efficiency(b) for b in allowed)
            assert points[learners].batch in allowed
            assert points[learners].goodput == pytest.approx(best, rel=1e-9)


def test_a_larger_batch_hides_the_exchange_of_gradients() -> None:
    speed = Speed(0.0, 0.01, sync=0.4)
    fixed = best_points(speed, Limits(1, 8, 64, 64))
    free = best_points(speed, Limits(1, 8, 64, 512, max_per_learner=64))
    assert [point.learners for point in fixed] == [1, 2, 4, 8]
    assert fixed[-1].goodput < 2 * fixed[0].goodput
    assert free[-1].goodput > 4 * free[0].goodput
    assert free[-1].batch == 512


def test_noise_keeps_the_batch_small() -> None:
    speed = Speed(0.05, 0.001)
    without = best_points(speed, Limits(1, 1, 32, 4096))[0]
    noisy = best_points(speed, Limits(1, 1, 32, 4096, noise=50.0))[0]
    assert without.batch == 4096
    assert noisy.batch == 50  # sqrt(0.05 * 50 / 0.001)
    assert Limits(1, 1, 32, 4096, noise=50.0).efficiency(32) == 1
    assert Limits(1, 1, 32, 4096, noise=50.0, reference_batch=64).efficiency(64) == 1


@given(speeds)
def test_reports_without_noise_give_the_speed_back(speed: Speed) -> None:
    reports = [Report(k, b, speed.step_seconds(b, k)) for k in (1, 2, 3, 4, 8) for b in (24, 48, 240)]
    found = fit_speed(reports)
    assert found is not None
    for each in reports:
        assert found.step_seconds(each.batch, each.learners) == pytest.approx(each.seconds, rel=1e-4)


def test_noise_changes_the_fit_little() -> None:
    chance, speed = random.Random(5), Speed(0.02, 0.004, 0.1, 0.005)
    reports = [
        Report(k, b, speed.step_seconds(b, k) * chance.uniform(0.9, 1.1))
        for k in (1, 2, 4, 8)
        for b in (32, 64, 128, 512)
        for _ in range(5)
    ]
    found = fit_speed(reports)
    assert found is not None
    for learners in (1, 2, 4, 8, 16):
        assert found.step_seconds(256, learners) == pytest.approx(speed.step_seconds(256, learners), rel=0.1)


def test_one_report_is_enough_to_begin_with() -> None:
    found = fit_speed([Report(1, 64, 0.5)])
    assert found is not None
    assert found.step_seconds(64, 1) == pytest.approx(0.5)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, 0.0, -1.0])
def test_a_report_that_cannot_be_true_is_left_out(seconds: float) -> None:
    assert fit_speed([Report(1, 32, seconds)]) is None
    good = [Report(1, 32, 0.1), Report(1, 64, 0.2)]
    assert fit_speed([*good, Report(1, 32, seconds)]) == fit_speed(good)


def test_nothing_reported_fits_nothing() -> None:
    assert fit_speed([]) is None


@pytest.mark.parametrize("parts", [(-1.0, 1.0), (math.nan, 1.0), (0.0, 0.0), (0.1, math.inf)])
def test_a_speed_that_cannot_be_is_refused(parts: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="must be finite, not negative"):
        Speed(*parts)


def test_a_job_that_has_reported_nothing_may_double_its_fewest_learners() -> None:
    points = curve_points(Limits(2, 16, 64, 512), ())
    assert [point.learners for point in points] == [2, 3, 4]
    assert points[-1].goodput == pytest.approx(2 * points[0].goodput)


def test_each_measured_size_lets_it_double() -> None:
    limits, speed = Limits(1, 16, 64, 512), Speed(0.0, 0.01, 0.2)
    points = curve_points(limits, [Report(k, 64 * k, speed.step_seconds(64 * k, k)) for k in (1, 2, 4)])
    assert points[-1].learners == 8
    assert {point.learners: point for point in best_points(speed, limits)}[4].goodput == pytest.approx(
        points[3].goodput, rel=1e-6
    )


def test_the_batch_may_be_the_programs_own_matter() -> None:
    points = curve_points(Limits(1, 4), [Report(1, None, 0.8), Report(2, None, 0.5)])
    assert [(point.learners, point.batch) for point in points] == [(1, None), (2, None), (3, None), (4, None)]
    assert points[1].goodput / points[0].goodput == pytest.approx(1.6, rel=1e-6)


@given(st.floats(1e-6, 1e-2), st.floats(1e-12, 1e-7))
def test_the_exchange_is_found_from_what_was_measured(latency: float, per_byte: float) -> None:
    true = Exchange(latency, per_byte)
    found = fit_exchange([(k, size, true.seconds(size, k)) for k in (2, 4) for size in (1e3, 1e7)])
    assert found is not None
    for learners in (2, 3, 8, 64):
        assert found.seconds(1e6, learners) == pytest.approx(true.seconds(1e6, learners), rel=1e-3)


@pytest.mark.parametrize("measured", [(1, 1e6, 0.1), (2, 1e6, math.nan), (2, 1e6, 0.0), (2, 0.0, 0.1)])
def test_an_exchange_that_cannot_be_is_left_out(measured: tuple[int, float, float]) -> None:
    assert fit_exchange([measured]) is None


def test_a_curve_is_composed_of_computation_and_exchange() -> None:
    limits, exchange = Limits(1, 16, 64, 1024), Exchange(1e-3, 1e-9)
    timings = [(16, 0.02), (64, 0.08)]
    points = curve_points(limits, (), composed_reports(limits, timings, 50e6, exchange))
    assert [point.learners for point in points] == list(range(1, 17))
    (eight,) = (point for point in points if point.learners == 8)
    true = 1024 / (1024 / 8 * 0.08 / 64 + exchange.seconds(50e6, 8))
    assert eight.goodput == pytest.approx(true, rel=0.15)


def test_what_trains_counts_more_than_what_was_composed() -> None:
    limits = Limits(1, 4, 64, 64)
    composed = composed_reports(limits, [(64, 0.1), (16, 0.025)], 1e6, Exchange(0.0, 0.0))
    reports = [Report(k, 64, 0.1, 1000.0) for k in (1, 2, 4)]  # it does not scale at all
    points = curve_points(limits, reports, composed)
    assert points[-1].goodput < 1.2 * points[0].goodput


def test_without_an_exchange_one_learner_is_spoken_for() -> None:
    found = composed_reports(Limits(1, 16, 64, 1024), [(32, 0.1)], None, None)
    assert [(each.learners, each.batch) for each in found] == [(1, 32)]
    assert composed_reports(Limits(1, 16), [(32, 0.1)], 1e6, Exchange(0, 0)) == []


@pytest.mark.parametrize(
    ("reports", "ignored"),
    [
        ([(1, 32, 0.1), (1, 256, 0.1)], True),
        ([(1, 32, 0.1), (1, 256, 0.8)], False),
        ([(1, 32, 0.1), (1, 256, 0.2)], False),
        ([(1, 32, 0.1), (1, 40, 0.1)], False),  # too little apart
        ([(1, 64, 0.1), (2, 128, 0.1)], False),  # each learner has the same batch
        ([(1, 64, 0.1), (2, 512, 0.1)], True),
        ([(1, 64, 0.1), (2, 64, 0.1)], False),  # the learners bring nothing
        ([], False),
        ([(1, None, 0.1), (2, None, 0.1)], False),
    ],
)
def test_a_batch_that_changes_nothing_is_noticed(reports: list[tuple[int, int, float]], ignored: bool) -> None:
    assert ignores_batch([Report(*each) for each in reports]) is ignored


def test_an_ignored_batch_stays_small_and_counts_steps() -> None:
    points = best_points(Speed(0.1, 0.0), Limits(1, 3, 64, 1024, batch_ignored=True))
    assert [point.batch for point in points] == [64, 64, 66]
    assert [point.goodput for point in points] == [pytest.approx(10)] * 3


@pytest.mark.parametrize(
    ("reports", "ignored"),
    [
        ([(1, 64, 0.1), (2, 64, 0.1)], True),
        ([(1, 64, 0.1), (2, 64, 0.06)], False),
        ([(1, 64, 0.1), (2, 128, 0.2)], True),  # each learner trains the whole batch
        ([(1, 64, 0.1), (2, 128, 0.1)], False),
        ([(4, 64, 0.1), (4, 128, 0.1)], False),
    ],
)
def test_learners_that_bring_nothing_are_noticed(reports: list[tuple[int, int, float]], ignored: bool) -> None:
    assert ignores_learners(Limits(1, 8, 64, 512), [Report(*each) for each in reports]) is ignored
