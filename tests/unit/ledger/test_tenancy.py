"""The tenants in force, and what the ledger knows of what jobs have held."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from ledger_helpers import add_job, try_admit

from updraft.allocation import Capacity, GangRequest, Node, Plan, Reclaim
from updraft.ledger import Job, Ledger
from updraft.lifecycle import State
from updraft.tenants import Tenancy, Tenant

ROOM = Capacity((Node("local", 4, 4096, 2, "A100"),))
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def running(ledger: Ledger, job_id: str, tenant: str = "default") -> None:
    add_job(ledger, job_id, tenant=tenant)
    ledger.queue.enqueue(job_id, GangRequest(job_id, 2, 1, 256, 1, "A100", NOON, tenant=tenant))
    ledger.jobs.move(job_id, State.QUEUED, "waiting")
    assert try_admit(ledger, job_id, ROOM).granted
    assert ledger.queue.start(job_id, "granted")


def asked(ledger: Ledger, job_id: str) -> None:
    ledger.queue.plan(lambda *_: Plan(reclaimed=(Reclaim(job_id, "other", "tenant a takes it back"),)))


def test_tenants_are_kept_and_a_change_is_planned(ledger: Ledger) -> None:
    assert ledger.tenants.in_force() is None
    found = Tenancy({"vision": Tenant(quota={"gpu": 2}, weight=3), "speech": Tenant()})
    ledger.tenants.put(found)
    assert ledger.tenants.in_force() == found
    ledger.queue.hold("nothing yet")
    ledger.tenants.put(found)
    assert not ledger.queue.plan_is_due()
    ledger.tenants.put(Tenancy({"vision": Tenant()}))
    assert ledger.queue.plan_is_due()
    assert ledger.tenants.in_force() == Tenancy({"vision": Tenant()})


def test_every_grant_is_remembered(ledger: Ledger, clock: Any) -> None:
    running(ledger, "job-1", "vision")
    clock.forward(60)
    (held,) = ledger.queue.used(NOON - timedelta(days=1))
    assert (held.tenant, held.learners, held.gpus, held.gpu_type, held.released_at) == ("vision", 2, 1, "A100", None)
    ledger.queue.release("job-1")
    (released,) = ledger.queue.used(held.granted_at)
    assert released.released_at is not None
    assert released.released_at - released.granted_at == timedelta(seconds=60)
    assert ledger.queue.used(released.released_at) == []
    assert not ledger.queue.release("job-1")  # twice is counted once
    assert len(ledger.queue.used(held.granted_at)) == 1


def test_a_job_that_never_ran_has_held_nothing(ledger: Ledger, submit: Callable[..., Job]) -> None:
    submit("job-1")
    ledger.queue.enqueue("job-1", GangRequest("job-1", 1, 1, 256, 0, None, NOON))
    ledger.queue.release("job-1")
    assert ledger.queue.used(NOON - timedelta(days=1)) == []


def test_a_job_that_is_asked_for_its_room_is_looked_at_and_gives_it_back(ledger: Ledger) -> None:
    running(ledger, "job-1")
    assert ledger.queue.leaving("job-1") is None
    asked(ledger, "job-1")
    assert ledger.queue.leaving("job-1") == "tenant a takes it back"
    assert ledger.requests.asked() == {"job-1"}
    assert [grant.leaving for grant in ledger.queue.grants()] == [True]
    assert ledger.jobs.give_back("job-1")
    job = ledger.jobs.get("job-1")
    assert (job.state, job.reason) == (State.QUEUED, "tenant a takes it back; waiting to be admitted again")
    assert ledger.queue.grants() == []
    assert ledger.queue.leaving("job-1") is None
    assert not ledger.jobs.give_back("job-1")
    (row,) = ledger.queue.listing()
    assert row.request.requested_at == NOON  # its earlier place


def test_nothing_is_given_back_under_an_attempt_that_runs(ledger: Ledger) -> None:
    running(ledger, "job-1")
    ledger.attempts.ensure("job-1", "train", after=None)
    asked(ledger, "job-1")
    assert not ledger.jobs.give_back("job-1")
    assert len(ledger.queue.grants()) == 1


def test_only_a_job_with_a_grant_can_be_asked(ledger: Ledger, submit: Callable[..., Job]) -> None:
    submit("job-1")
    ledger.queue.enqueue("job-1", GangRequest("job-1", 1, 1, 256, 0, None, NOON))
    asked(ledger, "job-1")
    assert ledger.queue.leaving("job-1") is None
    assert ledger.requests.asked() == frozenset()


@pytest.mark.parametrize(("state", "movable"), [(State.PROCESSING, True), (State.STORING, False)])
def test_a_job_that_stores_its_result_is_not_moved(ledger: Ledger, state: State, movable: bool) -> None:
    running(ledger, "job-1")
    ledger.jobs.move("job-1", state, "on")
    assert [grant.movable for grant in ledger.queue.grants()] == [movable]


def test_a_job_that_was_let_pass_is_known_until_it_gives_its_room_back(ledger: Ledger) -> None:
    add_job(ledger, "job-1")
    ledger.queue.enqueue("job-1", GangRequest("job-1", 1, 1, 256, 0, None, NOON))
    ledger.jobs.move("job-1", State.QUEUED, "waiting")
    ledger.queue.plan(lambda *_: Plan(granted=("job-1",), passing={"job-1": "head"}))
    assert [grant.behind for grant in ledger.queue.grants()] == ["head"]
    assert ledger.queue.start("job-1", "granted")
    asked(ledger, "job-1")
    assert ledger.jobs.give_back("job-1")
    ledger.queue.plan(lambda *_: Plan(granted=("job-1",)))
    assert [grant.behind for grant in ledger.queue.grants()] == [None]
