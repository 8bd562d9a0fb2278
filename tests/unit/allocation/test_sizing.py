"""The sizes of all elastic jobs at once: the same total as the recurrence, as brute force and as a mixed-integer
program, whatever the curves are."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import lil_array

from updraft.allocation.sizing import NoSizesError, Options, choose_sizes


def options(pairs: list[tuple[int, float]]) -> Options:
    return Options(np.array([size for size, _ in pairs], np.int64), np.array([score for _, score in pairs], float))


def value(jobs: list[Options], chosen: tuple[int, ...]) -> float:
    return sum(float(job.scores[list(job.sizes).index(size)]) for job, size in zip(jobs, chosen, strict=True))


def best_of_all(jobs: list[Options], devices: int) -> float:
    """The largest total over every combination."""
    best = -np.inf
    for picks in itertools.product(*(range(len(job.sizes)) for job in jobs)):
        if sum(int(job.sizes[n]) for job, n in zip(jobs, picks, strict=True)) <= devices:
            best = max(best, sum(float(job.scores[n]) for job, n in zip(jobs, picks, strict=True)))
    return best


def recurrence(jobs: list[Options], devices: int) -> float:
    """The dynamic program of the paper, in plain NumPy."""
    before = np.zeros(devices + 1)
    for job in jobs:
        after = np.full(devices + 1, -np.inf)
        for size, score in zip(job.sizes, job.scores, strict=True):
            if size <= devices:
                np.maximum(after[size:], before[: devices + 1 - size] + score, out=after[size:])
        before = after
    return float(before.max())


whole_numbers = st.integers(-20, 40).map(float)
fractions = st.floats(-1e3, 1e3, allow_nan=False, width=32).map(float)


@st.composite
def job(draw: st.DrawFn, scores: st.SearchStrategy[float]) -> Options:
    sizes = sorted(draw(st.sets(st.integers(0, 9), min_size=1, max_size=5)))
    return options([(size, draw(scores)) for size in sizes])


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[Options], int]:
    scores = draw(st.sampled_from([whole_numbers, fractions, st.sampled_from([0.0, 1.0])]))
    return draw(st.lists(job(scores), max_size=5)), draw(st.integers(0, 30))


@settings(max_examples=1500)
@given(problems())
def test_no_combination_is_better(problem: tuple[list[Options], int]) -> None:
    jobs, devices = problem
    if sum(int(job.sizes[0]) for job in jobs) > devices:
        with pytest.raises(NoSizesError, match=f"there are {devices}"):
            choose_sizes(jobs, devices)
        return
    found = choose_sizes(jobs, devices)
    assert sum(found.chosen) <= devices
    assert found.total == pytest.approx(value(jobs, found.chosen), abs=1e-9)
    assert found.total == pytest.approx(best_of_all(jobs, devices), rel=1e-9, abs=1e-6)
    assert found.price >= 0


def curve(chance: random.Random, shape: str, most: int) -> list[tuple[int, float]]:
    if shape == "noise":
        return [(k, chance.random()) for k in range(1, most + 1)]
    if shape == "concave":
        rate = chance.uniform(0.5, 1)
        return [(k, k**rate) for k in range(1, most + 1)]
    if shape == "powers of two":
        rate = chance.uniform(0.5, 1)
        return [(2**n, (2**n) ** rate) for n in range(most.bit_length())]
    if shape == "alike":
        return [(2**n, float(2**n)) for n in range(most.bit_length())]
    steps = [0.0]
    for _ in range(most):
        steps.append(steps[-1] + chance.choice((0, 0, 0, 1, 3)) * chance.random())
    return list(enumerate(steps))  # steps, and 0 devices


@pytest.mark.parametrize("shape", ["noise", "concave", "powers of two", "alike", "steps"])
@pytest.mark.parametrize("load", [1.02, 2, 6, 12])
def test_the_recurrence_finds_nothing_better(shape: str, load: float) -> None:
    chance = random.Random(f"{shape} {load}")
    for count, most in ((1, 8), (7, 16), (40, 16), (90, 64)):
        jobs = [options(curve(chance, shape, most)) for _ in range(count)]
        devices = max(int(load * count), sum(int(job.sizes[0]) for job in jobs))
        found = choose_sizes(jobs, devices)
        assert sum(found.chosen) <= devices
        assert found.total == pytest.approx(recurrence(jobs, devices), rel=1e-9)
        assert found.total == pytest.approx(value(jobs, found.chosen), rel=1e-9)


@pytest.mark.parametrize("shape", ["noise", "steps", "powers of two"])
def test_a_mixed_integer_program_finds_nothing_better(shape: str) -> None:
    chance = random.Random(shape)
    jobs = [options(curve(chance, shape, 16)) for _ in range(30)]
    devices = 120
    columns = [
        (row, int(size), float(score))
        for row, job in enumerate(jobs)
        for size, score in zip(job.sizes, job.scores, strict=True)
    ]
    one_each = lil_array((len(jobs), len(columns)))
    for n, (row, _, _) in enumerate(columns):
        one_each[row, n] = 1
    result = milp(
        [-score for _, _, score in columns],
        constraints=[
            LinearConstraint(one_each.tocsr(), 1, 1),
            LinearConstraint(np.array([[size for _, size, _ in columns]]), -np.inf, devices),
        ],
        integrality=np.ones(len(columns)),
        bounds=(0, 1),
        options={"mip_rel_gap": 1e-9},
    )
    assert result.success
    assert choose_sizes(jobs, devices).total == pytest.approx(-result.fun, rel=1e-6)


def test_concave_curves_get_device_by_device_what_adds_most() -> None:
    chance = random.Random(7)
    jobs = [options(curve(chance, "concave", 12)) for _ in range(25)]
    sizes = [1] * len(jobs)
    for _ in range(110 - len(jobs)):
        gains = [
            float(job.scores[k] - job.scores[k - 1]) if k < 12 else -1.0 for job, k in zip(jobs, sizes, strict=True)
        ]
        sizes[gains.index(max(gains))] += 1
    assert choose_sizes(jobs, 110).total == pytest.approx(value(jobs, tuple(sizes)), rel=1e-9)


def test_devices_that_bring_nothing_stay_free() -> None:
    falls = options([(1, 1.0), (2, 1.5), (3, 1.2), (8, 0.5)])
    found = choose_sizes([falls, falls], 16)
    assert found.chosen == (2, 2)
    assert found.price == 0


def test_the_price_is_what_one_device_more_adds() -> None:
    jobs = [options([(1, 1.0), (2, 1.8), (3, 2.4), (4, 2.8)]) for _ in range(3)]
    found = choose_sizes(jobs, 6)
    assert found.chosen == (2, 2, 2)
    assert found.price == pytest.approx(0.6)
    assert choose_sizes(jobs, 7).total - found.total == pytest.approx(found.price)


def test_the_order_of_the_jobs_does_not_change_the_total() -> None:
    chance = random.Random(3)
    jobs = [options(curve(chance, "noise", 16)) for _ in range(20)]
    assert choose_sizes(jobs, 70).total == pytest.approx(choose_sizes(jobs[::-1], 70).total, rel=1e-12)
    assert choose_sizes(jobs, 70) == choose_sizes(jobs, 70)


def test_no_jobs_need_no_devices() -> None:
    assert choose_sizes([], 0).chosen == ()


@pytest.mark.parametrize(
    ("sizes", "scores", "problem"),
    [
        ([1, 2], [1.0], "each size needs one score"),
        ([], [], "each size needs one score"),
        ([2, 1], [1.0, 2.0], "ascend"),
        ([1, 1], [1.0, 2.0], "ascend"),
        ([-1, 1], [1.0, 2.0], "at least 0"),
        ([1, 2], [1.0, float("nan")], "finite"),
        ([1, 2], [1.0, float("inf")], "finite"),
    ],
)
def test_options_that_mean_nothing_are_refused(sizes: list[int], scores: list[float], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        choose_sizes([options([(1, 1.0)]), Options(np.array(sizes, np.int64), np.array(scores, float))], 8)
