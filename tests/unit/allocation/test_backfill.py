"""Jobs pass the first one that waits for room, and give theirs back as soon as it can start with it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from updraft.allocation import Capacity, GangRequest, Grant, Node, Plan, Policy, plan_admissions
from updraft.allocation.document import StateDocument, state_document
from updraft.allocation.packing import fits
from updraft.tenants import Tenant

NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)
FOUR = Capacity((Node("n", cpus=4, memory_mib=4096),))


def gang(job: str, cpus: float, minutes: float = 0, *, learners: int = 1, tenant: str = "default") -> GangRequest:
    return GangRequest(job, learners, cpus, 0, 0, None, NOON + timedelta(minutes=minutes), tenant=tenant)


def held(job: str, cpus: float, **more: object) -> Grant:
    return replace(Grant(gang(job, cpus), NOON), **more)  # type: ignore[arg-type]


def planned(queue: list[GangRequest], running: list[Grant], policy: Policy | None = None) -> Plan:
    return plan_admissions(queue, running, FOUR, policy=policy, now=LATER)


def reason(plan: Plan, job: str) -> str:
    return next(each.reason for each in plan.waiting if each.job_id == job)


def test_a_job_passes_one_that_has_no_room() -> None:
    plan = planned([gang("head", 3), gang("small", 1, 1), gang("large", 2.5, 2)], [held("runs", 2)])
    assert plan.granted == ("small",)
    assert plan.passing == {"small": "head"}
    assert [each.job_id for each in plan.waiting] == ["head", "large"]
    assert plan.reclaimed == ()


def test_it_gives_its_room_back_once_the_first_one_can_start_with_it() -> None:
    queue = [gang("head", 3), gang("next", 1, 2)]
    passed = held("small", 1, behind="head")
    assert planned(queue, [held("runs", 2), passed]).reclaimed == ()  # its room alone does not help
    plan = planned([gang("head", 4), gang("next", 1, 2)], [passed])
    assert [(each.job_id, each.for_job) for each in plan.reclaimed] == [("small", "head")]
    assert reason(plan, "head").endswith("; 1 job will give room back")
    assert plan.granted == ()  # nothing takes the room meanwhile


def test_while_it_leaves_nothing_passes() -> None:
    leaves = held("small", 1, behind="head", leaving=True)
    plan = planned([gang("head", 4), gang("next", 1, 2)], [leaves])
    assert (plan.granted, plan.reclaimed) == ((), ())
    assert reason(plan, "head").endswith("; 1 job will give room back")


def test_only_as_many_as_are_needed_give_room_back_and_those_first_that_lose_least() -> None:
    fresh = held("fresh", 1, behind="head", saved_at=LATER)
    old = held("old", 1, behind="head")
    plan = planned([gang("head", 3)], [fresh, old])
    assert [each.job_id for each in plan.reclaimed] == ["fresh"]
    stores = held("stores", 1, behind="head", movable=False)
    assert planned([gang("head", 4)], [stores]).reclaimed == ()


def test_a_job_that_passed_another_one_keeps_its_room() -> None:
    """Of the queue's order, the first one alone is protected."""
    passed = held("small", 1, behind="gone")
    assert planned([gang("head", 4)], [passed]).reclaimed == ()


def test_backfill_can_be_turned_off_and_needs_the_time() -> None:
    queue, running = [gang("head", 3), gang("small", 1, 1)], [held("runs", 2)]
    assert planned(queue, running, Policy(backfill=False)).granted == ()
    assert plan_admissions(queue, running, FOUR).granted == ()


def test_a_job_that_would_be_over_its_tenants_limit_passes_none() -> None:
    policy = Policy({"default": Tenant(), "small": Tenant(quota={"cpu": 1}, borrow={"cpu": 0})})
    queue = [gang("head", 3), gang("one", 0.5, 1, tenant="small"), gang("two", 0.5, 2, tenant="small")]
    plan = planned(queue, [held("runs", 2)], policy)
    assert plan.granted == ("one",)


def test_the_document_of_a_state_keeps_it() -> None:
    passed = held("small", 1, behind="head")
    written = state_document(FOUR.nodes, [passed], [gang("head", 4)], Policy(), {}, LATER).model_dump_json()
    assert [each.job_id for each in StateDocument.model_validate_json(written).decide().reclaimed] == ["small"]


JOBS = st.lists(
    st.tuples(st.sampled_from([0.5, 1, 2, 3, 4]), st.integers(1, 2), st.integers(1, 6)), min_size=1, max_size=9
)


@given(jobs=JOBS)
def test_nothing_is_over_allocated_and_the_first_job_is_delayed_by_one_leaving_at_most(
    jobs: list[tuple[float, int, int]],
) -> None:
    """In rounds: a job runs for its number of rounds; one that is asked for its room leaves after the round."""
    requests = {
        f"job-{n}": gang(f"job-{n}", cpus, n, learners=learners)
        for n, (cpus, learners, _) in enumerate(jobs)
        if cpus * learners <= 4
    }
    rounds = {f"job-{n}": length for n, (_, _, length) in enumerate(jobs)}

    def starts(backfill: bool) -> dict[str, int]:
        """Return the round in which each job begins the run that completes it."""
        left, done, began = dict(rounds), set[str](), dict[str, int]()
        running: dict[str, Grant] = {}
        for at in range(300):
            waiting = [request for job, request in requests.items() if job not in running and job not in done]
            if not waiting and not running:
                return began
            plan = plan_admissions(
                waiting, list(running.values()), FOUR, policy=Policy(backfill=backfill), now=LATER + timedelta(at)
            )
            for job in plan.granted:
                running[job] = Grant(requests[job], LATER + timedelta(at), behind=plan.passing.get(job))
                began[job] = at
            assert fits([grant.request for grant in running.values()], FOUR.nodes)
            assert set(plan.passing) <= set(plan.granted)
            asked = {each.job_id for each in plan.reclaimed}
            for job in list(running):
                left[job] -= 1
                if left[job] <= 0:
                    done.add(job)
                    del running[job]
                elif job in asked:
                    del running[job]
        raise AssertionError("the queue does not end")

    with_backfill, without = starts(True), starts(False)
    assert set(with_backfill) == set(without) == set(requests)
    first = next((job for job in requests if without[job] > 0), None)  # the first job that has to wait
    if first is not None:
        assert with_backfill[first] <= without[first] + 1
