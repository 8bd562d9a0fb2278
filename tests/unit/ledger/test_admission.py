from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ledger_helpers import deciding, grants, try_admit

from updraft.allocation import Capacity, GangRequest, Grant, Node, Placement
from updraft.exceptions import RefusedError
from updraft.ledger import Admission, Job, Ledger
from updraft.lifecycle import State, Verdict
from updraft.taints import Taint, Toleration

Submit = Callable[..., Job]
TWO_CPUS = Capacity((Node("local", 2, 4096),))


@pytest.fixture
def queue(ledger: Ledger, submit: Submit, clock: Any) -> Callable[..., GangRequest]:
    def queue(job_id: str, learners: int = 2) -> GangRequest:
        submit(job_id)
        request = GangRequest(job_id, learners, 1.0, 512, 0, None, clock.forward(1))
        ledger.queue.enqueue(job_id, request)
        return request

    return queue


def test_the_line_moves_in_order_as_grants_are_released(ledger: Ledger, queue: Any) -> None:
    requests = [queue(f"job-{n}") for n in range(3)]
    assert try_admit(ledger, "job-1", TWO_CPUS) == Admission(
        False, 1, "1st in the queue; needs 2 x 1 CPU + 512 MiB; 0 of 2 CPUs free"
    )
    # job-0 was first in the queue, so it was granted although job-1 asked.
    assert [grant.request for grant in grants(ledger)] == [requests[0]]
    assert try_admit(ledger, "job-0", TWO_CPUS) == Admission(True, None, "granted")
    assert try_admit(ledger, "job-2", TWO_CPUS).place == 2
    assert ledger.queue.release("job-0") is True
    assert ledger.queue.release("job-0") is False
    assert try_admit(ledger, "job-2", TWO_CPUS).reason.endswith("behind job-1") is False
    assert try_admit(ledger, "job-1", TWO_CPUS).granted
    assert not try_admit(ledger, "job-2", TWO_CPUS).granted


def test_a_grant_is_kept_when_asked_again(ledger: Ledger, queue: Any, clock: Any) -> None:
    request = queue("job-1")
    assert try_admit(ledger, "job-1", TWO_CPUS).granted
    clock.forward(9)
    assert try_admit(ledger, "job-1", Capacity(())).granted
    ledger.queue.enqueue("job-1", request)
    assert grants(ledger) == [Grant(request, request.requested_at)]


def test_a_job_that_can_never_fit_is_told_and_blocks_nobody(ledger: Ledger, queue: Any) -> None:
    queue("huge", learners=3)
    queue("small", learners=1)
    assert try_admit(ledger, "small", TWO_CPUS).granted
    answer = try_admit(ledger, "huge", TWO_CPUS)
    assert (answer.granted, answer.place, answer.impossible) == (False, None, True)
    assert "more than all nodes together can hold" in answer.reason


def test_jobs_that_ended_or_are_being_cancelled_leave_the_line(ledger: Ledger, queue: Any) -> None:
    for name in ("running", "ended", "cancelled", "last"):
        queue(name)
    assert try_admit(ledger, "running", TWO_CPUS).granted
    ledger.jobs.finish("ended", Verdict(State.FAILED, "bad"))
    ledger.requests.make("cancelled", "cancel", "ada")
    assert try_admit(ledger, "last", TWO_CPUS).place == 1
    ledger.queue.release("running")
    assert try_admit(ledger, "last", TWO_CPUS).granted
    assert [grant.request.job_id for grant in grants(ledger)] == ["last"]


def test_after_a_release_a_job_may_queue_again_at_the_end(ledger: Ledger, queue: Any, clock: Any) -> None:
    queue("job-1")
    assert try_admit(ledger, "job-1", TWO_CPUS).granted
    ledger.queue.release("job-1")
    queue("job-2")
    ledger.queue.enqueue("job-1", GangRequest("job-1", 2, 1.0, 512, 0, None, clock.forward(1)))
    assert try_admit(ledger, "job-1", TWO_CPUS).reason.startswith("1st in the queue")
    assert try_admit(ledger, "job-2", TWO_CPUS).granted


def test_misuse_is_refused(ledger: Ledger, queue: Any, submit: Submit, clock: Any) -> None:
    request = queue("job-1")
    with pytest.raises(RefusedError, match="is not in the queue; enqueue it first"):
        submit("job-2") and try_admit(ledger, "job-2", TWO_CPUS)
    with pytest.raises(RefusedError, match="is of job 'job-1'"):
        ledger.queue.enqueue("job-2", request)
    ledger.jobs.finish("job-1", Verdict(State.CANCELLED, "ada"))
    ledger.queue.release("job-1")
    with pytest.raises(RefusedError, match="has ended CANCELLED"):
        ledger.queue.enqueue("job-1", request)


def test_a_plan_is_due_after_each_change_and_only_then(ledger: Ledger, queue: Any) -> None:
    def is_due_once() -> bool:
        due = ledger.queue.plan_is_due()
        ledger.queue.plan(deciding(TWO_CPUS))
        return due and not ledger.queue.plan_is_due()

    queue("job-1")
    assert is_due_once()
    request = queue("job-2")
    assert is_due_once()
    ledger.queue.enqueue("job-2", request)  # it has its place
    assert not ledger.queue.plan_is_due()
    ledger.queue.release("job-1")
    assert is_due_once()
    assert ledger.queue.release("job-1") is False
    assert not ledger.queue.plan_is_due()
    queue("job-3")
    ledger.jobs.move("job-3", State.QUEUED, "waiting")
    ledger.queue.plan(deciding(TWO_CPUS))
    ledger.requests.make("job-3", "cancel", "ada")
    assert is_due_once()


def test_news_are_the_rows_that_changed(ledger: Ledger, queue: Any) -> None:
    for number in range(3):
        queue(f"job-{number}")
    ledger.queue.plan(deciding(TWO_CPUS))
    at = ledger.queue.news(None)
    assert at.admissions == {}
    assert ledger.queue.news(at.changes) == at
    ledger.queue.plan(deciding(TWO_CPUS))  # the same plan again
    assert ledger.queue.news(at.changes) == at
    ledger.queue.release("job-0")
    ledger.queue.plan(deciding(TWO_CPUS))
    news = ledger.queue.news(at.changes)
    assert news.changes > at.changes
    second = Admission(False, 1, "1st in the queue; needs 2 x 1 CPU + 512 MiB; 0 of 2 CPUs free")
    assert news.admissions == {"job-0": None, "job-1": Admission(True, None, "granted"), "job-2": second}


def test_while_nobody_knows_what_is_free_that_is_why_jobs_wait(ledger: Ledger, queue: Any) -> None:
    queue("job-1")
    ledger.jobs.move("job-1", State.QUEUED, "waiting to be admitted")
    assert ledger.jobs.get("job-1").reason == "waiting to be admitted"
    ledger.queue.hold("the cluster is away")
    assert ledger.queue.admission("job-1") == Admission(False, None, "the cluster is away")
    assert ledger.jobs.get("job-1").reason == ledger.jobs.find()[0].reason == "the cluster is away"
    since = ledger.queue.news(None).changes
    ledger.queue.hold("the cluster is away")
    assert ledger.queue.news(None).changes == since
    assert try_admit(ledger, "job-1", TWO_CPUS).granted
    assert ledger.jobs.get("job-1").reason == "granted; about to start"


def test_disk_that_no_node_has_is_named(ledger: Ledger, submit: Submit, clock: Any) -> None:
    submit("big")
    ledger.queue.enqueue("big", GangRequest("big", 1, 1.0, 64, 0, None, clock.now, disk_mib=300 * 1024))
    known = Node("local", 2, 4096, disk_mib=100 * 1024)
    answer = try_admit(ledger, "big", Capacity((known, Node("other", 2, 4096))))
    assert answer.granted  # the other one does not say
    ledger.queue.release("big")
    ledger.queue.enqueue("big", GangRequest("big", 1, 1.0, 64, 0, None, clock.now, disk_mib=300 * 1024))
    answer = try_admit(ledger, "big", Capacity((known,)))
    assert answer.impossible
    assert answer.reason.startswith("resources.disk: a learner asks for 300.0 GiB")


def test_the_placement_of_a_request_is_kept_with_it(ledger: Ledger, submit: Submit, clock: Any) -> None:
    submit("picky")
    placement = Placement.of({"disk": "ssd"}, [Toleration("spot", effect="NoSchedule")])
    request = GangRequest("picky", 1, 1.0, 64, 0, None, clock.now, placement=placement)
    ledger.queue.enqueue("picky", request)
    answer = try_admit(ledger, "picky", TWO_CPUS)
    assert (answer.impossible, answer.reason.startswith("pod.node_selector: no node has the label disk")) == (
        True,
        True,
    )
    labels, spot = frozenset({("disk", "ssd")}), Taint("spot", "", "NoSchedule")
    room = Capacity((Node("local", 2, 4096, ready=False, labels=labels, taints=(spot,)),))
    assert try_admit(ledger, "picky", room).granted
    assert [grant.request for grant in grants(ledger)] == [request]
