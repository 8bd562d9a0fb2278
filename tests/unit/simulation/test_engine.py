"""A simulation: work and time add up, no policy gets more devices than there are, and each job ends once."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from updraft.allocation.scalability import Limits, Speed, best_points
from updraft.simulation import Course, Outcome, Policy, Size, TrainingJob, View, simulate
from updraft.simulation.policies import Afs, ElasticTiresias, FfDL, Fifo, Tiresias
from updraft.simulation.sized import GeneticSearch, MostThroughput, Updraft
from updraft.simulation.traces import KINDS, MIX, generate

POLICIES = [
    Fifo, FfDL, Tiresias, ElasticTiresias, Afs, lambda: MostThroughput(batch=False), lambda: MostThroughput(batch=True),
    lambda: MostThroughput(batch=True, drop=True), lambda: MostThroughput(batch=True, period=60.0), Updraft,
    lambda: Updraft(drop=True), lambda: GeneticSearch(population=6, generations=4),
]  # fmt: skip
NAMES = [
    "fifo", "ffdl", "tiresias", "elastic-tiresias", "afs", "devices", "devices+batch", "drop", "period", "updraft",
    "updraft-drop", "genetic",
]  # fmt: skip
LINEAR = Speed(0.0, 0.01)


def job(name: str, arrives: float, seconds: float, learners: int = 1) -> TrainingJob:
    limits = Limits(1, 8, 8, 64)
    made = TrainingJob(name, arrives, 1.0, LINEAR, limits, Size(learners, 8))
    return TrainingJob(name, arrives, seconds * made.rate(made.fixed), LINEAR, limits, made.fixed)


def ends(jobs: list[TrainingJob], devices: int, policy: Policy, pause: float = 0.0) -> dict[str, float | None]:
    run = simulate(jobs, devices, policy, pause_seconds=pause)
    return {course.job.job_id: course.ended and round(course.ended, 6) for course in run.courses}


def test_jobs_of_fixed_size_run_one_after_the_other() -> None:
    jobs = [job("a", 0, 100, 4), job("b", 10, 50, 4), job("c", 20, 5)]
    assert ends(jobs, 4, Fifo(), pause=10) == {"a": 110, "b": 170, "c": 185}


def test_a_job_that_has_room_passes_one_that_has_none() -> None:
    jobs = [job("a", 0, 100, 3), job("b", 10, 50, 4), job("c", 20, 5)]
    assert ends(jobs, 4, Fifo()) == {"a": 100, "b": 150, "c": 155}
    assert ends(jobs, 4, FfDL()) == {"a": 100, "b": 150, "c": 25}


def test_the_job_that_has_had_least_comes_first() -> None:
    jobs = [job("long", 0, 4000), job("short", 3600, 100)]
    assert ends(jobs, 1, Fifo()) == {"long": 4000, "short": 4100}
    # it looks each minute: the long job starts after one, and has had an hour at the 61st
    assert ends(jobs, 1, Tiresias()) == {"long": 4180, "short": 3760}


def test_free_devices_make_jobs_faster_and_the_pause_is_paid() -> None:
    speed = Speed(0.0, 0.01, sync=0.02)
    whole, half = (TrainingJob("", 0, 1.0, speed, Limits(1, 8, 8, 64), Size(1, 8)).rate(Size(k, 64)) for k in (8, 4))
    a = TrainingJob("a", 0, 90 * whole, speed, Limits(1, 8, 8, 64), Size(1, 8))
    b = TrainingJob("b", 50, 100 * whole, speed, Limits(1, 8, 8, 64), Size(1, 8))
    found = ends([a, b], 8, MostThroughput(batch=True), pause=10)
    a_ends = 60 + (90 - 40) * whole / half  # it has trained for 40 s when b comes, and both then pause
    assert found["a"] == pytest.approx(a_ends)
    assert found["b"] == pytest.approx(a_ends + 10 + 100 - (a_ends - 60) * half / whole)


def test_a_start_may_take_longer_than_a_resize() -> None:
    run = simulate([job("a", 0, 100, 4), job("b", 0, 50, 4)], 4, Fifo(), pause_seconds=1, start_seconds=20)
    assert [course.ended for course in run.courses] == [120, 190]


def test_a_job_that_finds_no_room_is_dropped_only_where_the_policy_says_so() -> None:
    jobs = [job(f"job-{n}", 0, 100) for n in range(5)]
    queued = Outcome.of(simulate(jobs, 3, MostThroughput(batch=True)))
    dropped = Outcome.of(simulate(jobs, 3, MostThroughput(batch=True, drop=True)))
    assert (queued.completed, queued.dropped) == (5, 0)
    assert (dropped.completed, dropped.dropped) == (3, 2)


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from(range(len(POLICIES))), st.integers(8, 40), st.floats(1, 400))
def test_work_and_devices_add_up(seed: int, which: int, devices: int, per_hour: float) -> None:
    jobs = generate(25, per_hour, seed=seed)
    run = simulate(jobs, devices, POLICIES[which](), pause_seconds=30)
    for course in run.courses:
        assert course.dropped != (course.ended is not None)
        if course.ended is not None:
            fastest = max(
                course.job.rate(Size(k, b))
                for k in range(course.job.limits.min_learners, course.job.limits.max_learners + 1)
                for b in course.job.limits.batches(k)
            )
            assert course.ended >= course.job.arrives + course.job.work / fastest * (1 - 1e-9)
            assert course.left == 0
    assert all(0 <= used <= devices for _, used, _ in run.usage)
    held = sum(course.service for course in run.courses)
    outcome = Outcome.of(run)
    if run.usage:
        assert held == pytest.approx(outcome.used * devices * (outcome.ended - run.usage[0][0]), rel=1e-6)


@pytest.mark.parametrize("which", range(len(POLICIES)), ids=NAMES)
def test_the_same_trace_gives_the_same_result(which: int) -> None:
    jobs = generate(40, 100, seed=4)
    first, second = (Outcome.of(simulate(jobs, 16, POLICIES[which]())) for _ in range(2))
    assert first == second


def test_a_fixed_batch_gives_the_same_result_whether_it_may_be_chosen_or_not() -> None:
    jobs = generate(60, 60, mix=("restricted",), seed=2)
    fixed, free = (Outcome.of(simulate(jobs, 16, MostThroughput(batch=batch))) for batch in (False, True))
    assert fixed == free


class Greedy:
    period = None

    def decide(self, view: View) -> Mapping[Course, Size | None]:
        return {course: course.job.fixed for course in view.waiting}


class Never:
    def __init__(self, period: float | None) -> None:
        self.period = period

    def decide(self, view: View) -> Mapping[Course, Size | None]:
        return {}


class Wrong:
    period = None

    def decide(self, view: View) -> Mapping[Course, Size | None]:
        return {course: Size(3, 8) for course in view.waiting}


def test_a_policy_that_hands_out_too_much_is_refused() -> None:
    with pytest.raises(ValueError, match="Greedy hands out 1 devices more than there are"):
        simulate([job("a", 0, 10), job("b", 0, 10)], 1, Greedy())


@pytest.mark.parametrize("period", [None, 60.0])
def test_a_policy_that_starts_nothing_is_refused(period: float | None) -> None:
    with pytest.raises(ValueError, match="1 jobs wait for ever, among them a"):
        simulate([job("a", 0, 10)], 1, Never(period))


def test_a_size_that_the_job_does_not_allow_is_refused() -> None:
    with pytest.raises(ValueError, match="a cannot have 3 learners and a batch of 8"):
        simulate([job("a", 0, 10)], 4, Wrong())


def test_progress_counts_the_jobs_that_are_over() -> None:
    seen: list[int] = []
    simulate([job("a", 0, 10), job("b", 0, 10)], 4, FfDL(), progress=seen.append)
    assert seen == [1, 2]


@pytest.mark.parametrize("kind", MIX)
def test_kinds_scale_as_described(kind: str) -> None:
    points = {point.learners: point.goodput for point in best_points(KINDS[kind].speed, KINDS[kind].limits)}
    gain = points[8] / points[1]
    expected = {"compute": (7, 8), "balanced": (3.5, 5.5), "communication": (1.5, 4), "restricted": (4, 6.5)}
    low, high = expected[kind]
    assert low < gain < high, gain
