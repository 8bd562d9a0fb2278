"""Tenants in the queue: quotas, borrowing and lending, fair shares, and taking back what was lent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from updraft.allocation import Capacity, GangRequest, Grant, Node, Plan, Policy, plan_admissions
from updraft.allocation.packing import fits
from updraft.allocation.shares import Shares, average_use
from updraft.tenants import Tenant

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
FOUR = Capacity((Node("n", 100, 100_000, 4),))


def gpu(job_id: str, tenant: str, number: int = 1, minute: float = 0, **more: Any) -> GangRequest:
    return GangRequest(job_id, number, 1, 0, 1, None, NOON + minute * MINUTE, tenant=tenant, **more)


def held(*requests: GangRequest, minutes: float = 60, **more: Any) -> list[Grant]:
    return [Grant(request, NOON - minutes * MINUTE, **more) for request in requests]


def policy(**tenants: Tenant) -> Policy:
    return Policy(tenants)


def reason(plan: Plan, job_id: str) -> str:
    return next(each.reason for each in (*plan.waiting, *plan.impossible) if each.job_id == job_id)


def decide(queue: list[GangRequest], running: list[Grant], rules: Policy, capacity: Capacity = FOUR) -> Plan:
    return plan_admissions(queue, running, capacity, policy=rules, now=NOON)


# --- quotas ----------------------------------------------------------------------------------------------------------


def test_a_tenant_gets_no_more_than_its_quota_and_what_it_may_borrow() -> None:
    rules = policy(a=Tenant(quota={"gpu": 1}, borrow={"gpu": 1}))
    plan = decide([gpu("1", "a"), gpu("2", "a", minute=1), gpu("3", "a", minute=2)], [], rules)
    assert plan.granted == ("1", "2")
    assert reason(plan, "3") == (
        "1st in the queue; needs 1 x 1 CPU + 1 GPU; tenant a uses 2 of its quota of 1 GPU and may borrow 1"
    )


def test_a_job_that_waits_for_a_quota_is_passed_by_others_but_not_by_its_own_tenant() -> None:
    rules = policy(a=Tenant(quota={"gpu": 2}, borrow={"gpu": 0}), b=Tenant())
    queue = [gpu("a2", "a", 2), gpu("a3", "a", minute=1), gpu("b1", "b", minute=2)]
    queue.append(GangRequest("cpu", 1, 1, 0, 0, None, NOON + 3 * MINUTE, tenant="a"))
    plan = decide(queue, held(gpu("a1", "a")), rules)
    assert set(plan.granted) == {"b1", "cpu"}
    assert reason(plan, "a3") == "2nd in the queue; behind a2, which waits for the quota of tenant a"


def test_a_gang_beyond_what_its_tenant_may_ever_use_never_starts() -> None:
    rules = policy(a=Tenant(quota={"gpu": 2}, borrow={"gpu": 1}), b=Tenant(quota={"gpu": 0}))
    plan = decide([gpu("4", "a", 4), gpu("borrower", "b", 4)], [], rules)
    assert reason(plan, "4") == (
        "needs 4 GPUs, and the quota of tenant a is 2 GPUs, and it may borrow 1; ask for at most 3"
    )
    assert plan.granted == ("borrower",)  # no `borrow`: whatever is free


def test_learners_without_gpus_and_types_of_gpus_have_quotas_of_their_own() -> None:
    capacity = Capacity((Node("a", 100, 1000, 4, "A100"), Node("t", 100, 1000, 4, "T4")))
    rules = policy(a=Tenant(quota={"A100": 2, "cpu": 3}, borrow={"A100": 0, "cpu": 0}))
    of_type = [GangRequest(kind, 3, 1, 0, 1, kind, NOON, tenant="a") for kind in ("A100", "T4")]
    without = [GangRequest(f"cpu-{n}", n, 1, 0, 0, None, NOON + n * MINUTE, tenant="a") for n in (2, 3)]
    plan = decide([*of_type, *without], [], rules, capacity)
    assert set(plan.granted) == {"T4", "cpu-2"}
    assert "the quota of tenant a is 2 A100 GPUs" in reason(plan, "A100")
    assert "uses 2 of its quota of 3 learners without GPUs and may borrow none" in reason(plan, "cpu-3")


def test_what_a_tenant_does_not_lend_is_kept_for_it() -> None:
    rules = policy(a=Tenant(quota={"gpu": 3}, lend={"gpu": 1}), b=Tenant(quota={"gpu": 1}))
    plan = decide([gpu("b1", "b"), gpu("b2", "b", minute=1), gpu("b3", "b", minute=2)], [], rules)
    assert plan.granted == ("b1", "b2")
    assert reason(plan, "b3").endswith("uses 2 of its quota of 1 GPU, and the tenants that could lend keep 2")


# --- fair shares -----------------------------------------------------------------------------------------------------


def test_the_tenant_that_uses_least_for_its_weight_is_next() -> None:
    queue = [gpu(f"{tenant}{n}", tenant, minute=n) for tenant in "ab" for n in range(6)]
    capacity = Capacity((Node("n", 100, 100_000, 6),))
    even = decide(queue, [], Policy(), capacity).granted
    assert sorted(even) == ["a0", "a1", "a2", "b0", "b1", "b2"]
    heavy = decide(queue, [], policy(a=Tenant(weight=2), b=Tenant()), capacity).granted
    assert sorted(heavy) == ["a0", "a1", "a2", "a3", "b0", "b1"]


def test_what_a_tenant_has_used_before_counts() -> None:
    queue = [gpu("a", "a"), gpu("b", "b", minute=1)]
    one = Capacity((Node("n", 100, 100_000, 1),))
    assert plan_admissions(queue, [], one, past={"a": (0, 0, 0.5)}).granted == ("b",)
    assert plan_admissions(queue, [], one, past={"b": (0, 0, 0.5)}).granted == ("a",)


def test_older_use_counts_less() -> None:
    day = timedelta(days=1)
    used = average_use(
        [(gpu("x", "a", 4), NOON - 2 * day, NOON - day), (gpu("y", "b", 4), NOON - day, None)], NOON, day
    )
    assert used["a"][2] == 1.0  # half of what it was worth a half-life later
    assert used["b"][2] == 2.0


def test_a_job_within_its_quota_goes_before_one_that_borrows() -> None:
    rules = policy(a=Tenant(quota={"gpu": 1}), b=Tenant(quota={"gpu": 3}))
    running = held(gpu("a1", "a"), gpu("b1", "b", 2))
    plan = decide([gpu("a2", "a"), gpu("b2", "b", minute=9)], running, rules)
    assert plan.granted == ("b2",)


def test_jobs_of_other_tenants_are_not_named() -> None:
    plan = decide([gpu("a1", "a", 4), gpu("b1", "b", 4, minute=1)], held(gpu("c", "c")), Policy())
    assert reason(plan, "b1").endswith("behind a job of tenant a")


# --- taking back -----------------------------------------------------------------------------------------------------

LENT = policy(a=Tenant(quota={"gpu": 3}), b=Tenant(quota={"gpu": 1}))


def test_a_tenant_takes_back_what_it_has_lent() -> None:
    running = held(gpu("b1", "b"), gpu("b2", "b"), gpu("b3", "b"), gpu("b4", "b"))
    plan = decide([gpu("a1", "a", 2)], running, LENT)
    assert len(plan.reclaimed) == 2
    assert {each.for_job for each in plan.reclaimed} == {"a1"}
    assert reason(plan, "a1").endswith("; 2 jobs of tenants that have borrowed will give room back")


def test_a_job_that_leaves_is_waited_for_and_no_other_one_is_asked() -> None:
    running = [*held(gpu("b1", "b", 2)), *held(gpu("b2", "b", 2), leaving=True)]
    plan = decide([gpu("a1", "a", 2)], running, LENT)
    assert plan.reclaimed == ()
    assert "1 job of tenants that have borrowed will give room back" in reason(plan, "a1")


def test_nothing_is_taken_from_a_tenant_within_its_quota_or_by_a_job_that_borrows() -> None:
    within = held(gpu("b1", "b"), gpu("a1", "a", 3))
    assert decide([gpu("a2", "a")], within, LENT).reclaimed == ()
    more = policy(a=Tenant(quota={"gpu": 1}), b=Tenant(quota={"gpu": 1}))
    assert decide([gpu("a2", "a", 2)], held(gpu("b1", "b", 4)), more).reclaimed == ()


def test_a_job_keeps_its_room_for_the_least_time_and_while_it_stores() -> None:
    assert decide([gpu("a1", "a")], held(gpu("b1", "b", 4), minutes=9), LENT).reclaimed == ()
    assert decide([gpu("a1", "a")], held(gpu("b1", "b", 4), movable=False), LENT).reclaimed == ()
    assert len(decide([gpu("a1", "a")], held(gpu("b1", "b", 4), minutes=10), LENT).reclaimed) == 1


def test_the_job_whose_stop_costs_least_leaves() -> None:
    fresh = Grant(gpu("fresh", "b", 2), NOON - 60 * MINUTE, saved_at=NOON - MINUTE)
    stale = Grant(gpu("stale", "b", 2), NOON - 30 * MINUTE)
    assert [each.job_id for each in decide([gpu("a1", "a")], [stale, fresh], LENT).reclaimed] == ["fresh"]
    low = Grant(gpu("low", "b", 2, priority="low"), NOON - 600 * MINUTE)
    assert [each.job_id for each in decide([gpu("a1", "a")], [low, fresh], LENT).reclaimed] == ["low"]


def test_no_job_leaves_that_would_not_help() -> None:
    """One small job is looked at first, and the large one has to leave anyway."""
    small = Grant(gpu("small", "b"), NOON - 11 * MINUTE)
    large = Grant(gpu("large", "b", 3), NOON - 60 * MINUTE)
    assert [each.job_id for each in decide([gpu("a1", "a", 3)], [small, large], LENT).reclaimed] == ["large"]


# --- properties ------------------------------------------------------------------------------------------------------

TENANTS = st.dictionaries(
    st.sampled_from("abc"),
    st.builds(
        lambda weight, gpus, borrow, lend: Tenant(
            weight=weight,
            quota={"gpu": gpus},
            borrow={} if borrow is None else {"gpu": borrow},
            lend={} if lend is None else {"gpu": min(lend, gpus)},
        ),
        st.sampled_from([0.5, 1, 3]),
        st.integers(0, 6),
        st.none() | st.integers(0, 3),
        st.none() | st.integers(0, 6),
    ),
    max_size=3,
)
JOBS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 4), st.integers(0, 1), st.integers(0, 30), st.booleans()),
    max_size=12,
)
NODES = st.lists(st.integers(1, 4), min_size=1, max_size=3)


def requests(jobs: list[tuple[str, int, int, int, bool]]) -> list[GangRequest]:
    return [
        GangRequest(f"{n}", learners, 1, 0, gpus, None, NOON + minute * MINUTE, tenant=tenant)
        for n, (tenant, learners, gpus, minute, _) in enumerate(jobs)
    ]


@given(TENANTS, JOBS, NODES)
@settings(max_examples=300, deadline=None)
def test_no_limit_is_ever_exceeded_and_what_leaves_makes_room(
    tenants: dict[str, Tenant], jobs: list[tuple[str, int, int, int, bool]], gpus: list[int]
) -> None:
    """Jobs come and end over many rounds, and jobs that are asked to leave do."""
    capacity = Capacity(tuple(Node(f"n{n}", 8, 1000, each) for n, each in enumerate(gpus)))
    rules = Policy(tenants, least_run=timedelta(0))
    queue, running, rounds = requests(jobs), list[Grant](), 0
    while queue:
        now = NOON + rounds * MINUTE
        plan = plan_admissions(queue, running, capacity, policy=rules, now=now)
        names = [*plan.granted, *(each.job_id for each in (*plan.waiting, *plan.impossible))]
        assert sorted(names) == sorted(request.job_id for request in queue)
        by_id = {request.job_id: request for request in queue}
        running += [Grant(by_id[job_id], now) for job_id in plan.granted]
        assert fits([grant.request for grant in running], capacity.nodes)
        for name, tenant in tenants.items():
            used = sum(grant.request.devices.get("gpu", 0) for grant in running if grant.request.tenant == name)
            most = tenant.most("gpu")
            assert most is None or used <= most
        gone = {each.job_id for each in plan.reclaimed}
        for each in plan.reclaimed:
            victim = next(grant.request for grant in running if grant.request.job_id == each.job_id)
            head = by_id[each.for_job]
            others = [grant.request for grant in running if grant.request.job_id not in gone]
            assert Shares(tenants, capacity.nodes, others, {}).entitled(head)
            assert victim.tenant != head.tenant
            assert fits([*others, head], capacity.nodes)
        if not running and plan.waiting:  # what the only jobs left could use is kept for tenants that do not need it
            assert all("could lend keep" in each.reason or "behind" in each.reason for each in plan.waiting)
            return
        impossible = {each.job_id for each in plan.impossible}
        queue = [request for request in queue if request.job_id not in {*plan.granted, *impossible}]
        # Those that leave come back into the queue; otherwise the oldest one ends.
        queue += [grant.request for grant in running if grant.request.job_id in gone]
        running = [grant for grant in running if grant.request.job_id not in gone] if gone else running[1:]
        rounds += 1
        assert rounds < 200, "the queue does not get shorter"


@given(JOBS, NODES, st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=3, max_size=3))
@settings(max_examples=200, deadline=None)
def test_the_next_job_is_of_the_tenant_with_the_smallest_claim(
    jobs: list[tuple[str, int, int, int, bool]], gpus: list[int], weights: list[float]
) -> None:
    tenants = {name: Tenant(weight=weight) for name, weight in zip("abc", weights, strict=True)}
    capacity = Capacity(tuple(Node(f"n{n}", 8, 1000, each) for n, each in enumerate(gpus)))
    queue = requests(jobs)
    plan = plan_admissions(queue, [], capacity, policy=Policy(tenants))
    by_id = {request.job_id: request for request in queue}
    left = [by_id[each.job_id] for each in plan.waiting] + [by_id[job_id] for job_id in plan.granted]
    shares = Shares(tenants, capacity.nodes, [], {})
    for job_id in plan.granted:
        mine = by_id[job_id]
        if not plan.waiting:  # a job that waits may be passed on nodes that it cannot use
            assert shares.claim(mine.tenant) == min(shares.claim(request.tenant) for request in left)
        shares.take(mine)
        left.remove(mine)


RUNNING = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.integers(1, 3),  # learners
        st.integers(0, 30),  # minutes since the grant
        st.none() | st.integers(0, 30),  # minutes since the newest checkpoint
        st.booleans(),  # whether it may be asked
    ),
    min_size=1,
    max_size=6,
)


@given(RUNNING, st.integers(1, 4), st.integers(0, 4), st.integers(0, 20))
@settings(max_examples=400, deadline=None)
def test_only_those_leave_that_may_and_no_more_than_it_takes(
    jobs: list[tuple[str, int, int, int | None, bool]], wanted: int, quota: int, least: int
) -> None:
    now = NOON + 60 * MINUTE
    running = [
        Grant(
            GangRequest(f"r{n}", learners, 1, 0, 1, None, NOON, tenant=tenant),
            now - since * MINUTE,
            None if saved is None else now - saved * MINUTE,
            movable=movable,
        )
        for n, (tenant, learners, since, saved, movable) in enumerate(jobs)
    ]
    whole = sum(grant.request.learners for grant in running)
    capacity = Capacity((Node("n", 100, 1000, whole),))  # all of its GPUs are in use
    tenants = {"a": Tenant(quota={"gpu": quota}), "b": Tenant(quota={"gpu": 1}), "c": Tenant(quota={"gpu": 0})}
    policy = Policy(tenants, least_run=least * MINUTE)
    head = GangRequest("head", wanted, 1, 0, 1, None, NOON, tenant="a")
    plan = plan_admissions([head], running, capacity, policy=policy, now=now)
    shares = Shares(tenants, capacity.nodes, [grant.request for grant in running], {})
    gone = [grant for grant in running if grant.request.job_id in {each.job_id for each in plan.reclaimed}]
    freed = sum(grant.request.learners for grant in gone)
    if not gone:
        return
    assert shares.entitled(head)
    assert freed >= wanted
    for grant in gone:
        assert grant.movable
        assert grant.granted_at + policy.least_run <= now
        assert grant.request.tenant != "a"
        assert shares.borrowed(grant.request.tenant, {"gpu"})
        assert freed - grant.request.learners < wanted, "it would do without this one"
    # Of two jobs that are alike but for what they lose, the one that loses less leaves.
    for grant in gone:
        for other in running:
            alike = (other.request.tenant, other.request.learners) == (grant.request.tenant, grant.request.learners)
            may = other.movable and other.granted_at + policy.least_run <= now
            if alike and may and other not in gone:
                assert grant.at_risk_seconds(now) <= other.at_risk_seconds(now)
