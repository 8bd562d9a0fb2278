"""When jobs were expected to start, and by how much that was wrong."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from ledger_helpers import add_job, try_admit

from updraft.allocation import Capacity, GangRequest, Node
from updraft.controller import queueing
from updraft.ledger import Ledger
from updraft.lifecycle import State, Verdict
from updraft.tenants import Tenancy

ONE = Capacity((Node("local", 1, 4096),))
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def comes(ledger: Ledger, job_id: str, clock: Any) -> None:
    add_job(ledger, job_id)
    ledger.queue.enqueue(job_id, GangRequest(job_id, 1, 1, 256, 0, None, clock.forward(1)))
    ledger.jobs.move(job_id, State.QUEUED, "waiting")
    if try_admit(ledger, job_id, ONE).granted:
        ledger.queue.start(job_id, "granted")


def ends(ledger: Ledger, job_id: str) -> None:
    ledger.queue.release(job_id)
    ledger.jobs.move(job_id, State.STORING, "stores")
    ledger.jobs.finish(job_id, Verdict(State.COMPLETED, "done", {}))


def services(ledger: Ledger) -> Any:
    settings = SimpleNamespace(
        ageing_hours=12,
        least_run_minutes=10,
        backfill=True,
        share_half_life_hours=24,
        resize_minutes=5,
        resize_gain=0.05,
        ledger_url="of a test",
    )
    return SimpleNamespace(ledger=ledger, settings=settings, tenancy=lambda: Tenancy.of("default"))


def test_a_start_is_estimated_once_and_compared_with_what_came(ledger: Ledger, clock: Any) -> None:
    comes(ledger, "job-1", clock)
    clock.forward(100)
    ends(ledger, "job-1")  # its series takes 100 s
    comes(ledger, "job-2", clock)
    comes(ledger, "job-3", clock)
    queueing.estimate(services(ledger), ONE)
    assert [row.estimated for row in ledger.queue.listing()] == [False, True]  # job-2 runs
    assert ledger.queue.estimate_errors() == []
    clock.forward(50)
    queueing.estimate(services(ledger), ONE)  # the first one stays
    clock.forward(80)
    ends(ledger, "job-2")
    try_admit(ledger, "job-3", ONE)
    (error,) = ledger.queue.estimate_errors()
    assert 25 <= error <= 35  # job-2 took 130 s in place of 100


def test_a_job_without_an_estimate_has_no_error(ledger: Ledger, clock: Any) -> None:
    comes(ledger, "job-1", clock)
    comes(ledger, "job-2", clock)
    queueing.estimate(services(ledger), ONE)  # nothing is known of the series
    ends(ledger, "job-1")
    try_admit(ledger, "job-2", ONE)
    assert ledger.queue.estimate_errors() == []


def test_a_job_that_comes_back_is_estimated_again(ledger: Ledger, clock: Any) -> None:
    comes(ledger, "job-1", clock)
    comes(ledger, "job-2", clock)
    ledger.queue.expect(["job-2"], {"job-2": NOON})
    ledger.queue.release("job-2")
    ledger.queue.enqueue("job-2", GangRequest("job-2", 1, 1, 256, 0, None, clock.forward(1)))
    assert [row.estimated for row in ledger.queue.listing() if row.request.job_id == "job-2"] == [False]
