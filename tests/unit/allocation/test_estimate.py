"""Estimated starts of the jobs that wait."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from updraft.allocation import Capacity, GangRequest, Grant, Node, estimate_starts, plan_admissions

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TWO_CPUS = Capacity((Node("local", 2, 4096),))


def request(job_id: str, learners: int = 1, second: float = 0) -> GangRequest:
    return GangRequest(job_id, learners, 1, 0, 0, None, NOON + timedelta(seconds=second))


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def test_a_gang_starts_when_enough_of_the_others_have_ended() -> None:
    running = [Grant(request("a"), NOON), Grant(request("b"), NOON)]
    queue = [request("pair", 2, 1), request("last", 1, 2)]
    starts = estimate_starts(queue, running, TWO_CPUS, {"a": 10, "b": 30, "pair": 5}, after(1))
    assert starts == {"pair": after(30), "last": after(35)}


def test_what_depends_on_a_job_of_unknown_length_is_unknown() -> None:
    running = [Grant(request("a"), NOON), Grant(request("b"), NOON)]
    queue = [request("one", 1, 1), request("pair", 2, 2)]
    assert estimate_starts(queue, running, TWO_CPUS, {"a": 10, "one": 5}, NOON) == {"one": after(10)}


def test_a_job_that_takes_longer_than_expected_is_expected_to_end_now() -> None:
    running = [Grant(request("a", 2), NOON)]
    assert estimate_starts([request("b")], running, TWO_CPUS, {"a": 10}, after(60)) == {"b": after(60)}


def test_only_the_first_ones_get_an_estimate() -> None:
    queue = [request(f"job-{n:02}", 2, n) for n in range(30)]
    seconds = {each.job_id: 1.0 for each in queue}
    assert list(estimate_starts(queue, [], TWO_CPUS, seconds, NOON, most=7)) == [f"job-{n:02}" for n in range(7)]


JOBS = st.lists(st.tuples(st.integers(1, 2), st.integers(1, 100)), max_size=8)


@given(jobs=JOBS)
def test_an_estimate_is_what_happens_if_each_job_takes_as_long_as_expected(jobs: list[tuple[int, int]]) -> None:
    queue = [request(f"job-{n}", learners, n) for n, (learners, _) in enumerate(jobs)]
    seconds = {f"job-{n}": float(length) for n, (_, length) in enumerate(jobs)}
    found = estimate_starts(queue, [], TWO_CPUS, seconds, NOON)
    started: dict[str, datetime] = {}
    for second in range(sum(length for _, length in jobs) + 1):
        now = after(second)
        running = [
            Grant(each, started[each.job_id])
            for each in queue
            if each.job_id in started and now < started[each.job_id] + timedelta(seconds=seconds[each.job_id])
        ]
        waiting = [each for each in queue if each.job_id not in started]
        started |= dict.fromkeys(plan_admissions(waiting, running, TWO_CPUS).granted, now)
    assert found == started
