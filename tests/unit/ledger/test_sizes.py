"""The sizes of elastic jobs in the ledger: what is decided, what is held meanwhile, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from ledger_helpers import add_job

from updraft.allocation import Elasticity, GangRequest, Grant, Plan, Resized
from updraft.allocation.elastic import Curve
from updraft.allocation.scalability import Limits, Report, curve_points
from updraft.ledger import AttemptClosure, Ledger
from updraft.ledger.records import Analysis, JobSizes, Shift
from updraft.lifecycle import State
from updraft.recovery.policy import PlannedRelaunch

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LIMITS = Limits(1, 8, 32, 256)
TOLD = Shift("attempt 1 of train was stopped", {}, {})


def waiting(ledger: Ledger, job_id: str) -> None:
    add_job(ledger, job_id)
    sizes = Elasticity(LIMITS, Curve(curve_points(LIMITS, ())))
    ledger.queue.enqueue(job_id, GangRequest(job_id, 1, 1, 256, 1, None, NOON, elastic=sizes))
    ledger.jobs.move(job_id, State.QUEUED, "waiting")


def decide(ledger: Ledger, *, granted: Sequence[str] = (), **sizes: int) -> list[Grant]:
    """Let the planner decide; return the grants that it saw."""
    seen: list[Grant] = []

    def decided(queue: Sequence[GangRequest], grants: Sequence[Grant]) -> Plan:
        seen.extend(grants)
        resized = tuple(Resized(job, n, 32 * n, float(n), f"{n} learners") for job, n in sizes.items())
        return Plan(granted=tuple(granted), resized=resized)

    ledger.queue.plan(decided)
    return seen


def running(ledger: Ledger, job_id: str, learners: int) -> None:
    waiting(ledger, job_id)
    decide(ledger, granted=(job_id,), **{job_id: learners})
    ledger.queue.start(job_id, "granted")
    ledger.attempts.ensure(job_id, "train", after=None, learners=learners, batch=32 * learners)
    ledger.jobs.move(job_id, State.PROCESSING, "runs")


def ended(ledger: Ledger, job_id: str, label: str = "grant.resized", *, releases: bool = False) -> None:
    relaunch = PlannedRelaunch(NOON, 0.0, "again")
    closure = AttemptClosure("preempted", "asked", label=label, relaunch=relaunch, shift=TOLD, releases_grant=releases)
    ledger.attempts.close(job_id, "train", 1, closure)


def held(ledger: Ledger) -> list[int]:
    return [use.learners for use in ledger.queue.used(NOON - timedelta(days=9999))]


def test_a_job_starts_with_the_size_that_was_decided(ledger: Ledger) -> None:
    waiting(ledger, "a")
    assert ledger.queue.size("a") == (1, 32)
    decide(ledger, granted=("a",), a=2)
    assert ledger.queue.size("a") == (2, 64)
    assert ledger.queue.admission("a").granted
    assert ledger.queue.leaving("a") is None


def test_a_job_of_fixed_size_has_none(ledger: Ledger) -> None:
    add_job(ledger, "a")
    ledger.queue.enqueue("a", GangRequest("a", 1, 1, 256, 1, None, NOON))
    assert ledger.queue.size("a") is None
    assert not ledger.queue.resizes("a")


def test_a_growing_job_holds_the_larger_size_at_once(ledger: Ledger) -> None:
    running(ledger, "a", 2)
    decide(ledger, a=4)
    assert ledger.queue.leaving("a") == "4 learners"
    assert ledger.queue.resizes("a")
    assert [grant.request.learners for grant in ledger.queue.grants()] == [4]
    ended(ledger, "a")
    assert ledger.queue.size("a") == (4, 128)
    assert ledger.queue.leaving("a") is None
    assert ledger.jobs.get("a").state is State.RESIZING
    assert held(ledger) == [2, 4]


def test_a_shrinking_job_holds_its_size_until_its_learners_have_left(ledger: Ledger) -> None:
    running(ledger, "a", 4)
    decide(ledger, a=1)
    assert [grant.request.learners for grant in ledger.queue.grants()] == [4]
    assert ledger.queue.size("a") == (4, 128)
    ledger.queue.hold("nothing to plan")
    ended(ledger, "a")
    assert ledger.queue.size("a") == (1, 32)
    assert held(ledger) == [4, 1]
    assert ledger.queue.plan_is_due()  # what it gave back is to be given away


def test_a_job_that_is_being_resized_is_seen_so(ledger: Ledger) -> None:
    running(ledger, "a", 2)
    (before,) = decide(ledger, a=4)
    assert before.request.elastic is not None
    assert (before.request.elastic.resizing, before.request.elastic.resizes) == (False, 0)
    (meanwhile,) = decide(ledger)
    assert meanwhile.request.elastic is not None
    assert (meanwhile.request.elastic.resizing, meanwhile.leaving) == (True, False)
    ended(ledger, "a")
    ledger.jobs.move("a", State.PROCESSING, "runs")
    (after,) = decide(ledger)
    assert after.request.elastic is not None
    assert (after.request.elastic.resizing, after.request.elastic.resizes) == (False, 1)


def test_a_second_decision_before_the_first_is_done_changes_nothing(ledger: Ledger) -> None:
    running(ledger, "a", 2)
    decide(ledger, a=4)
    decide(ledger, a=8)
    assert ledger.queue.leaving("a") == "4 learners"
    ended(ledger, "a")
    ended(ledger, "a")
    assert ledger.queue.size("a") == (4, 128)


@pytest.mark.parametrize("state", [State.DEPLOYING, State.RECOVERING])
def test_a_job_that_does_not_train_is_not_resized(ledger: Ledger, state: State) -> None:
    running(ledger, "a", 2)
    if state is State.DEPLOYING:
        ledger.jobs.move("a", State.RECOVERING, "lost")
    ledger.jobs.move("a", state, "for a test")
    (seen,) = decide(ledger)
    assert seen.request.elastic is None


def test_a_job_that_loses_its_room_waits_for_its_fewest_learners(ledger: Ledger) -> None:
    running(ledger, "a", 4)
    decide(ledger, a=8)
    ended(ledger, "a", "pod.no_room", releases=True)
    assert held(ledger)[-1] == 8
    sizes = Elasticity(LIMITS, Curve(curve_points(LIMITS, ())))
    ledger.queue.requeue("a", GangRequest("a", 1, 1, 256, 1, None, NOON, elastic=sizes))
    assert ledger.queue.size("a") == (1, 32)
    assert not ledger.queue.resizes("a")


def test_jobs_of_a_series_share_what_was_measured(ledger: Ledger) -> None:
    running(ledger, "a", 2)
    for learners, seconds in ((1, 0.4), (2, 0.2)):
        ledger.queue.note_speed("a", learners, Report(learners, 64, seconds + 9), 10, NOON)
        ledger.queue.note_speed("a", learners, Report(learners, 64, seconds), 500, NOON)
    waiting(ledger, "b")
    seen: list[GangRequest] = []
    ledger.queue.plan(lambda queue, grants: seen.extend(queue) or Plan())  # type: ignore[func-returns-value]
    (b,) = seen
    assert b.elastic is not None
    assert b.elastic.curve.learners.tolist() == [1, 2, 3, 4]  # twice what was measured
    assert b.elastic.curve.speedups[1] == pytest.approx(2, rel=0.01)


def test_the_first_report_of_an_attempt_is_planned(ledger: Ledger) -> None:
    running(ledger, "a", 2)
    ledger.queue.hold("nothing to plan")
    ledger.queue.note_speed("a", 1, Report(2, 64, 0.2), 100, NOON)
    assert ledger.queue.plan_is_due()
    ledger.queue.hold("nothing to plan")
    ledger.queue.note_speed("a", 1, Report(2, 64, 0.2), 200, NOON)
    assert not ledger.queue.plan_is_due()


def test_the_sizes_that_a_job_may_have_are_listed(ledger: Ledger) -> None:
    running(ledger, "a", 2)
    ledger.queue.note_speed("a", 1, Report(2, 64, 0.25), 100, NOON)
    ledger.queue.note_speed("a", 2, Report(2, 64, 0.15), 100, NOON)
    found = ledger.queue.sizes("a").rows
    assert [(size.learners, size.current) for size in found] == [(1, False), (2, True), (3, False), (4, False)]
    assert [size.step_seconds for size in found] == [None, pytest.approx(0.2), None, None]
    assert found[0].speedup == 1
    ledger.queue.release("a")
    assert not any(size.current for size in ledger.queue.sizes("a").rows)
    add_job(ledger, "fixed")
    assert ledger.queue.sizes("fixed") == JobSizes()


def test_the_pause_of_a_resize_is_measured(ledger: Ledger) -> None:
    running(ledger, "a", 2)
    ledger.queue.note_speed("a", 1, Report(2, 64, 0.2), 100, ledger.now())
    decide(ledger, a=4)
    asked = ledger.now()
    ended(ledger, "a")
    ledger.jobs.move("a", State.PROCESSING, "runs")
    (before,) = decide(ledger)
    assert before.request.elastic is not None
    assert before.request.elastic.pause_seconds == 30  # nothing is measured yet
    for steps in (100, 200):
        ledger.queue.note_speed("a", 2, Report(4, 64, 0.1), steps, asked + timedelta(seconds=8))
    (after,) = decide(ledger)
    assert after.request.elastic is not None
    assert after.request.elastic.pause_seconds == pytest.approx(8, abs=1)


def planned(ledger: Ledger, job_id: str) -> Elasticity:
    """Return the sizes that the planner sees of a job that waits."""
    seen: list[GangRequest] = []
    ledger.queue.plan(lambda queue, grants: seen.extend(queue) or Plan())  # type: ignore[func-returns-value]
    (found,) = (each.elastic for each in seen if each.job_id == job_id)
    assert found is not None
    return found


def test_a_later_job_knows_how_its_series_scales_from_measured_parts(ledger: Ledger) -> None:
    running(ledger, "a", 2)
    parts = Analysis(timings=((32, 0.1), (64, 0.2)), gradient_bytes=1e6, exchange=((1e4, 1e-3), (1e6, 1e-2)))
    ledger.queue.note_analysis("a", 2, parts)
    waiting(ledger, "b")
    found = planned(ledger, "b")
    assert found.curve.learners.tolist() == list(range(1, 9))  # composed, so it need not double step by step
    assert 1.5 < found.curve.speedups[1] < 2


def test_the_exchange_of_gradients_is_measured_once(ledger: Ledger) -> None:
    running(ledger, "a", 2)
    ledger.queue.hold("nothing to plan")
    ledger.queue.note_analysis("a", 2, Analysis(((32, 0.1),), 1e6, exchange=((1e6, 1e-2),)))
    assert ledger.queue.plan_is_due()
    before = ledger.queue.sizes("a").rows
    ledger.queue.note_analysis("a", 2, Analysis(exchange=((1e6, 99.0),)))
    assert ledger.queue.sizes("a").rows == before


def test_a_tenant_cannot_spoil_what_another_one_measures(ledger: Ledger) -> None:
    add_job(ledger, "theirs", tenant="vision")
    sizes = Elasticity(LIMITS, Curve(curve_points(LIMITS, ())))
    ledger.queue.enqueue("theirs", GangRequest("theirs", 1, 1, 256, 1, None, NOON, elastic=sizes))
    ledger.queue.note_analysis("theirs", 2, Analysis(exchange=((1e6, 1e9),)))
    running(ledger, "a", 2)
    ledger.queue.note_analysis("a", 2, Analysis(((32, 0.1), (64, 0.2)), 1e6, exchange=((1e4, 1e-3), (1e6, 1e-2))))
    assert ledger.queue.sizes("a").rows[1].speedup > 1.5


def test_the_noise_of_gradients_is_shown_and_keeps_batches_small(ledger: Ledger) -> None:
    running(ledger, "a", 2)
    ledger.queue.note_speed("a", 1, Report(2, 64, 0.25), 100, NOON)
    ledger.queue.note_speed("a", 2, Report(4, 256, 0.3), 100, NOON)
    large = [size.batch for size in ledger.queue.sizes("a").rows]
    ledger.queue.hold("nothing to plan")
    ledger.queue.note_analysis("a", 2, Analysis(noise=20.0))
    assert not ledger.queue.plan_is_due()  # it changes all the time
    found = ledger.queue.sizes("a")
    assert found.noise == 20
    assert sum(size.batch or 0 for size in found.rows) < sum(batch or 0 for batch in large)


def test_a_program_that_ignores_its_batch_is_said_to(ledger: Ledger) -> None:
    running(ledger, "a", 2)
    ledger.queue.note_speed("a", 1, Report(1, 32, 0.2), 100, NOON)
    ledger.queue.note_speed("a", 2, Report(1, 256, 0.2), 100, NOON)
    found = ledger.queue.sizes("a")
    assert [size.batch for size in found.rows] == [32, 32]
    (remark,) = found.remarks
    assert "seems to ignore UPDRAFT_BATCH" in remark
    ledger.queue.note_analysis("a", 1, Analysis(follows_batch=True))
    found = ledger.queue.sizes("a")
    assert found.remarks == []
    assert found.rows[0].batch == 256


def test_a_program_that_ignores_its_learners_is_said_to(ledger: Ledger) -> None:
    running(ledger, "a", 2)
    for attempt, learners in enumerate((1, 2), 1):
        ledger.queue.note_speed("a", attempt, Report(learners, 64, 0.2), 100, NOON)
    found = ledger.queue.sizes("a")
    (remark,) = found.remarks
    assert "not faster with more than 1 learner," in remark


def test_a_job_that_reports_nothing_is_told_how_to(ledger: Ledger) -> None:
    waiting(ledger, "a")
    (remark,) = ledger.queue.sizes("a").remarks
    assert "log_metrics" in remark
    ledger.queue.note_analysis("a", 1, Analysis(((32, 0.1), (64, 0.2))))
    assert ledger.queue.sizes("a").remarks == []


@pytest.mark.parametrize("label", ["pod.no_room", "quota.exceeded"])
def test_a_size_for_which_there_was_no_room_is_not_tried_again_soon(ledger: Ledger, label: str) -> None:
    running(ledger, "a", 4)
    ended(ledger, "a", label, releases=True)
    sizes = Elasticity(LIMITS, Curve(curve_points(LIMITS, [Report(4, 64, 0.1)])))
    ledger.queue.requeue("a", GangRequest("a", 1, 1, 256, 1, None, NOON, elastic=sizes))
    ledger.queue.note_speed("a", 1, Report(4, 128, 0.1), 100, NOON)
    assert planned(ledger, "a").curve.learners.tolist() == [1, 2, 3]
    assert any("no room for 4 learners" in each for each in ledger.queue.sizes("a").remarks)


def test_the_fewest_learners_are_always_tried_again(ledger: Ledger) -> None:
    running(ledger, "a", 1)
    ended(ledger, "a", "pod.no_room", releases=True)
    sizes = Elasticity(LIMITS, Curve(curve_points(LIMITS, ())))
    ledger.queue.requeue("a", GangRequest("a", 1, 1, 256, 1, None, NOON, elastic=sizes))
    assert planned(ledger, "a").curve.learners.tolist() == [1]
    assert not any("no room" in each for each in ledger.queue.sizes("a").remarks)
