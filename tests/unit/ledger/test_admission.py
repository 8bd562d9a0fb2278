from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ledger_helpers import grants

from updraft.allocation import Capacity, Grant, Node, Request
from updraft.exceptions import RefusedError
from updraft.ledger import Admission, Job, Ledger
from updraft.lifecycle import State, Verdict

Submit = Callable[..., Job]
TWO_CPUS = Capacity((Node("local", 2, 4096),))


@pytest.fixture
def queue(ledger: Ledger, submit: Submit, clock: Any) -> Callable[..., Request]:
    def queue(job_id: str, learners: int = 2) -> Request:
        submit(job_id)
        request = Request(job_id, learners, 1.0, 512, 0, None, clock.forward(1))
        ledger.enqueue(job_id, request)
        return request

    return queue


def test_the_line_moves_in_order_as_grants_are_released(ledger: Ledger, queue: Any) -> None:
    requests = [queue(f"job-{n}") for n in range(3)]
    assert ledger.try_admit("job-1", TWO_CPUS) == Admission(
        False, 1, "1st in line; needs 2 x 1 CPU + 512 MiB; 0 of 2 CPUs free"
    )
    # job-0 was first in line, so it was granted although job-1 asked.
    assert [grant.request for grant in grants(ledger)] == [requests[0]]
    assert ledger.try_admit("job-0", TWO_CPUS) == Admission(True, None, "granted")
    assert ledger.try_admit("job-2", TWO_CPUS).place == 2
    assert ledger.release("job-0") is True
    assert ledger.release("job-0") is False
    assert ledger.try_admit("job-2", TWO_CPUS).reason.endswith("behind job-1") is False
    assert ledger.try_admit("job-1", TWO_CPUS).granted
    assert not ledger.try_admit("job-2", TWO_CPUS).granted


def test_a_grant_is_kept_when_asked_again(ledger: Ledger, queue: Any, clock: Any) -> None:
    request = queue("job-1")
    assert ledger.try_admit("job-1", TWO_CPUS, clock.now).granted
    assert ledger.try_admit("job-1", Capacity(()), clock.forward(9)).granted
    ledger.enqueue("job-1", request)
    assert grants(ledger) == [Grant(request, request.requested_at)]


def test_a_job_that_can_never_fit_is_told_and_blocks_nobody(ledger: Ledger, queue: Any) -> None:
    queue("huge", learners=3)
    queue("small", learners=1)
    assert ledger.try_admit("small", TWO_CPUS).granted
    answer = ledger.try_admit("huge", TWO_CPUS)
    assert (answer.granted, answer.place, answer.impossible) == (False, None, True)
    assert "more than all nodes together can hold" in answer.reason


def test_jobs_that_ended_or_are_being_cancelled_leave_the_line(ledger: Ledger, queue: Any) -> None:
    for name in ("running", "ended", "cancelled", "last"):
        queue(name)
    assert ledger.try_admit("running", TWO_CPUS).granted
    ledger.finish("ended", Verdict(State.FAILED, "bad"))
    ledger.request("cancelled", "cancel", "ada")
    assert ledger.try_admit("last", TWO_CPUS).place == 1
    assert ledger.try_admit("cancelled", TWO_CPUS).reason.startswith("no longer in line")


def test_after_a_release_a_job_may_queue_again_at_the_end(ledger: Ledger, queue: Any, clock: Any) -> None:
    queue("job-1")
    assert ledger.try_admit("job-1", TWO_CPUS).granted
    ledger.release("job-1")
    queue("job-2")
    ledger.enqueue("job-1", Request("job-1", 2, 1.0, 512, 0, None, clock.forward(1)))
    assert ledger.try_admit("job-1", TWO_CPUS).reason.startswith("1st in line")
    assert ledger.try_admit("job-2", TWO_CPUS).granted


def test_misuse_is_refused(ledger: Ledger, queue: Any, submit: Submit, clock: Any) -> None:
    request = queue("job-1")
    with pytest.raises(RefusedError, match="is not in line; enqueue it first"):
        submit("job-2") and ledger.try_admit("job-2", TWO_CPUS)
    with pytest.raises(RefusedError, match="is of job 'job-1'"):
        ledger.enqueue("job-2", request)
    ledger.finish("job-1", Verdict(State.CANCELLED, "ada"))
    ledger.release("job-1")
    with pytest.raises(RefusedError, match="has ended CANCELLED"):
        ledger.enqueue("job-1", request)
