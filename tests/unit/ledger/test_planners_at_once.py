"""Several planners at once, in processes of their own: no device is given twice, and no tenant is over its limit."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime

from ledger_helpers import add_job

from updraft.allocation import GangRequest
from updraft.ledger import Ledger, Use
from updraft.ledger.clock import utc_now
from updraft.lifecycle import State

GPUS, PLANNERS, SECONDS = 4, 3, 60
OF_A, OF_B = 8, 12  # jobs of the two tenants
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
# Each process plans, and takes the part of some jobs' controllers: it starts them, ends them, and gives room back.
PLAN = """
import random, sys, time
from datetime import UTC, datetime, timedelta
from functools import partial
from updraft.allocation import Capacity, Node, Policy, plan_admissions
from updraft.ledger import open_ledger
from updraft.tenants import Tenant
book, chance = open_ledger(sys.argv[1]), random.Random(int(sys.argv[2]))
nodes = Capacity((Node("a", 8, 4096, 2), Node("b", 8, 4096, 2)))
tenants = {"a": Tenant(quota={"gpu": 3}), "b": Tenant(quota={"gpu": 1}, borrow={"gpu": 2})}
policy, LONG_AGO = Policy(tenants, least_run=timedelta(0)), datetime(2020, 1, 1, tzinfo=UTC)
until = time.monotonic() + float(sys.argv[3])
while time.monotonic() < until:
    book.queue.plan(partial(plan_admissions, capacity=nodes, policy=policy, past={}, now=book.now()))
    rows = book.queue.listing()
    if not rows and len({use.job_id for use in book.queue.used(LONG_AGO)}) == int(sys.argv[4]):
        break
    for row in rows:
        job = row.request.job_id
        if row.granted_at is None:
            continue
        if row.leaving:
            book.jobs.give_back(job)
        elif chance.random() < 0.3:
            book.queue.start(job, "granted")
        elif row.state.value != "QUEUED" and chance.random() < 0.2:
            book.queue.release(job)
"""


def come(ledger: Ledger, tenant: str, number: int) -> None:
    for n in range(number):
        job_id = f"{tenant}-{n}"
        add_job(ledger, job_id, tenant=tenant)
        ledger.queue.enqueue(job_id, GangRequest(job_id, 1 + n % 2, 1, 64, 1, None, utc_now(), tenant=tenant))
        ledger.jobs.move(job_id, State.QUEUED, "waiting")


def gpus(held: list[Use], at: datetime, tenant: str | None = None) -> int:
    return sum(
        use.learners * use.gpus
        for use in held
        if (tenant is None or use.tenant == tenant)
        and use.granted_at <= at
        and (use.released_at is None or use.released_at > at)
    )


def test_no_device_is_given_twice_and_no_tenant_is_over_its_limit(ledger_url: str, ledger: Ledger) -> None:
    come(ledger, "b", OF_B)
    command = [sys.executable, "-c", PLAN, ledger_url]
    planners = [subprocess.Popen([*command, str(seed), str(SECONDS), str(OF_A + OF_B)]) for seed in range(PLANNERS)]
    while not ledger.queue.grants():
        assert any(planner.poll() is None for planner in planners)
    come(ledger, "a", OF_A)
    assert [planner.wait(timeout=SECONDS + 20) for planner in planners] == [0] * PLANNERS
    assert ledger.queue.listing() == []
    held = ledger.queue.used(LONG_AGO)
    assert {use.job_id for use in held} == {*(f"a-{n}" for n in range(OF_A)), *(f"b-{n}" for n in range(OF_B))}
    for at in {use.granted_at for use in held}:
        assert gpus(held, at) <= GPUS
        assert gpus(held, at, "b") <= 3
