"""The queue and the sizes of elastic jobs planned together: no device is given twice, and newcomers find room."""

from __future__ import annotations

import heapq
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from updraft.allocation import Capacity, GangRequest, Grant, Node, Plan, Policy, fits
from updraft.allocation.document import ElasticDocument, StateDocument, state_document
from updraft.allocation.elastic import Curve
from updraft.allocation.model import Elasticity
from updraft.allocation.resizing import plan_sizes
from updraft.allocation.scalability import Limits, Speed, best_points
from updraft.tenants import Tenant

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)
GOOD, POOR = Speed(0.0, 0.01, 0.01), Speed(0.0, 0.01, 0.6, 0.05)
NODES = Capacity(tuple(Node(f"n{n}", 32, 64 * 1024, 4, "A100") for n in range(2)))


def elasticity(speed: Speed = GOOD, least: int = 1, most: int = 8) -> Elasticity:
    limits = Limits(least, most, 64, 512, 64)
    return Elasticity(limits, Curve(best_points(speed, limits)))


def request(job_id: str, learners: int = 1, **more: object) -> GangRequest:
    values = {"gpus": 1, "gpu_type": None, "requested_at": NOON, **more}
    return GangRequest(job_id, learners, 1, 1024, **values)  # type: ignore[arg-type]


def elastic(job_id: str, speed: Speed = GOOD, least: int = 1, most: int = 8, **more: object) -> GangRequest:
    return request(job_id, least, elastic=elasticity(speed, least, most), **more)


def runs(made: GangRequest, learners: int, *, since: datetime = NOON, **more: object) -> Grant:
    assert made.elastic is not None
    sized = replace(made.elastic, sized_at=since, **more)  # type: ignore[arg-type]
    return Grant(replace(made, learners=learners, elastic=sized), NOON)


def plan(queue: list[GangRequest], granted: list[Grant], policy: Policy | None = None, now: datetime = LATER) -> Plan:
    return plan_sizes(queue, granted, NODES, policy=policy or Policy(), past={}, now=now)


def sizes(found: Plan) -> dict[str, int]:
    return {each.job_id: each.learners for each in found.resized}


def test_a_job_starts_with_what_is_free() -> None:
    found = plan([elastic("a")], [])
    assert found.granted == ("a",)
    [resized] = found.resized
    assert (resized.learners, resized.batch) == (8, 512)
    assert resized.reason == "starts with 8 learners and a batch of 512: the devices are free"


def test_jobs_that_start_together_share() -> None:
    found = plan([elastic("a"), elastic("b")], [])
    assert set(found.granted) == {"a", "b"}
    assert sizes(found) == {"a": 4, "b": 4}


def test_a_running_job_grows_into_what_becomes_free() -> None:
    found = plan([], [runs(elastic("a"), 2), Grant(request("fixed", 2), NOON)])
    assert sizes(found) == {"a": 6}
    assert found.resized[0].reason.startswith(
        "resized from 2 to 6 learners and a batch of 384: grows into devices that are free"
    )


def test_a_running_job_shrinks_for_a_newcomer_which_starts_afterwards() -> None:
    found = plan([request("new", 3)], [runs(elastic("a"), 8)])
    assert found.granted == ()
    assert sizes(found) == {"a": 5}
    assert found.resized[0].reason == "resized from 8 to 5 learners and a batch of 320: makes room for new"
    assert plan([request("new", 3)], [runs(elastic("a"), 5, since=LATER)]).granted == ("new",)


def test_the_job_that_loses_least_shrinks() -> None:
    found = plan([request("new", 2)], [runs(elastic("good"), 4), runs(elastic("poor", POOR), 4)])
    assert sizes(found)["poor"] <= 2
    assert sizes(found).get("good", 4) >= 4


def test_no_job_shrinks_below_its_fewest_learners() -> None:
    found = plan([request("new", 4)], [runs(elastic("a", least=5), 8)])
    assert found.resized == ()
    assert found.granted == ()


def test_a_job_that_has_just_been_resized_keeps_its_size() -> None:
    now = NOON + timedelta(minutes=4)
    assert plan([request("new")], [runs(elastic("a"), 8, pause_seconds=30.0)], now=now).resized == ()
    assert plan([], [runs(elastic("a"), 2, pause_seconds=30.0)], now=now).resized == ()


def test_a_job_with_short_pauses_is_resized_soon() -> None:
    def after(seconds: float) -> Plan:
        return plan([], [runs(elastic("a"), 2, pause_seconds=0.1)], now=NOON + timedelta(seconds=seconds))

    assert after(59).resized == ()
    assert sizes(after(61)) == {"a": 8}


def test_one_resize_at_a_time() -> None:
    busy = runs(elastic("a"), 2, resizing=True)
    found = plan([request("new")], [busy, runs(elastic("b"), 2)])
    assert found.granted == ("new",)
    assert found.resized == ()


def test_a_job_that_stores_its_result_is_left_alone() -> None:
    assert plan([request("new")], [replace(runs(elastic("a"), 8), movable=False)]).resized == ()


def test_a_job_shrinks_before_another_gives_up_all_of_its_room() -> None:
    tenants = {"vision": Tenant(quota={"gpu": 4}), "speech": Tenant(quota={"gpu": 4}, borrow={"gpu": 4})}
    granted = [runs(elastic("a", tenant="speech"), 8)]
    found = plan([request("mine", 2, tenant="vision")], granted, Policy(tenants))
    assert found.reclaimed == ()
    assert sizes(found) == {"a": 6}


def test_no_tenant_grows_beyond_what_it_may_use() -> None:
    tenants = {"vision": Tenant(quota={"gpu": 4}, borrow={"gpu": 1}), "speech": Tenant(quota={"gpu": 4})}
    found = plan([], [runs(elastic("a", tenant="vision"), 2)], Policy(tenants))
    assert sizes(found) == {"a": 5}


def test_tenants_share_by_weight() -> None:
    tenants = {"vision": Tenant(weight=3), "speech": Tenant(weight=1)}
    found = plan([elastic("a", tenant="vision"), elastic("b", tenant="speech")], [], Policy(tenants))
    assert sizes(found) == {"a": 6, "b": 2}


def test_a_pool_that_pieces_do_not_fit_is_solved_again() -> None:
    nodes = Capacity(tuple(Node(f"n{n}", 32, 64 * 1024, 3) for n in range(2)))
    found = plan_sizes([elastic("a", gpus=2, most=4)], [], nodes, policy=Policy(), past={}, now=LATER)
    assert sizes(found) == {"a": 2}  # one learner of two devices on each node, though six devices are free


def test_no_job_grows_into_a_node_that_is_not_there_yet() -> None:
    nodes = Capacity((*NODES.nodes, Node("soon", 32, 64 * 1024, 4, "A100", grows=True)))
    found = plan_sizes([], [runs(elastic("a", most=16), 2)], nodes, policy=Policy(), past={}, now=LATER)
    assert sizes(found) == {"a": 8}


def test_jobs_without_gpus_are_sized_too() -> None:
    nodes = Capacity((Node("n", 4, 8 * 1024),))
    found = plan_sizes([elastic("a", gpus=0)], [], nodes, policy=Policy(), past={}, now=LATER)
    assert sizes(found) == {"a": 4}


# --- whatever happens ------------------------------------------------------------------------------------------------


class World:
    """Jobs come, end, and take a while to change their size; after each event the queue is planned."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.numbers = chance, count()
        shapes = [(chance.choice((4, 16)), chance.choice((0, 2, 4))) for _ in range(chance.randint(1, 3))]
        self.capacity = Capacity(tuple(Node(f"n{n}", cpus, 1 << 20, gpus) for n, (cpus, gpus) in enumerate(shapes)))
        quota = {f"t{n}": Tenant(weight=n + 1, quota={"gpu": 2}, borrow={"gpu": 2}) for n in range(2)}
        self.policy = Policy(chance.choice(({}, quota)), least_size=timedelta(seconds=60))
        self.queue: dict[str, GangRequest] = {}
        self.granted: dict[str, Grant] = {}
        self.targets: dict[str, int] = {}
        self.events: list[tuple[datetime, int, str, str]] = []
        self.resized = 0
        for n in range(12):
            self.at(NOON + timedelta(seconds=chance.randrange(3000)), "comes", f"job-{n}")

    def at(self, when: datetime, kind: str, job_id: str) -> None:
        heapq.heappush(self.events, (when, next(self.numbers), kind, job_id))

    def run(self) -> None:
        while self.events:
            now, _, kind, job_id = heapq.heappop(self.events)
            if kind == "comes":
                self.queue[job_id] = self.made(job_id, now)
            elif kind == "ends":
                self.granted.pop(job_id, None)
                self.targets.pop(job_id, None)
            elif kind == "leaves" and job_id in self.granted:
                self.queue[job_id] = replace(self.granted.pop(job_id).request, learners=1)
            elif kind == "sized" and job_id in self.granted:
                self.size(job_id, self.targets.pop(job_id), now, resizing=False)
            self.plan(now)

    def made(self, job_id: str, now: datetime) -> GangRequest:
        chance = self.chance
        gpus, tenant = chance.choice((0, 1, 1, 2)), f"t{chance.randrange(2)}"
        if chance.random() < 0.3:
            return request(job_id, chance.randint(1, 3), gpus=gpus, tenant=tenant, requested_at=now)
        speed = chance.choice((GOOD, POOR))
        return elastic(job_id, speed, 1, chance.randint(1, 8), gpus=gpus, tenant=tenant, requested_at=now)

    def size(self, job_id: str, learners: int, now: datetime, *, resizing: bool) -> None:
        grant = self.granted[job_id]
        elastic = grant.request.elastic
        assert elastic is not None
        sized = replace(elastic, sized_at=now, resizing=resizing, resizes=elastic.resizes + (not resizing))
        self.granted[job_id] = replace(grant, request=replace(grant.request, learners=learners, elastic=sized))

    def plan(self, now: datetime) -> None:
        found = plan_sizes(
            list(self.queue.values()), list(self.granted.values()), self.capacity,
            policy=self.policy, past={}, now=now,
        )  # fmt: skip
        for job_id in found.granted:
            self.granted[job_id] = Grant(self.queue.pop(job_id), now)
            elastic = self.granted[job_id].request.elastic
            if elastic is not None:
                self.size(job_id, self.granted[job_id].request.learners, now, resizing=False)
            self.at(now + timedelta(seconds=self.chance.randrange(1, 2000)), "ends", job_id)
        for each in found.resized:
            self.resized += 1
            grant = self.granted[each.job_id]
            elastic = grant.request.elastic
            assert elastic is not None
            assert each.learners in elastic.curve.learners
            assert not elastic.resizing
            if each.job_id in found.granted:
                self.size(each.job_id, each.learners, now, resizing=False)
                continue
            self.targets[each.job_id] = each.learners
            self.size(each.job_id, max(each.learners, grant.request.learners), now, resizing=True)
            self.at(now + timedelta(seconds=self.chance.randrange(1, 90)), "sized", each.job_id)
        for reclaim in found.reclaimed:
            self.granted[reclaim.job_id] = replace(self.granted[reclaim.job_id], leaving=True)
            self.at(now + timedelta(seconds=30), "leaves", reclaim.job_id)
        self.check()

    def check(self) -> None:
        held = [grant.request for grant in self.granted.values()]
        assert fits(held, self.capacity.nodes), "more is given away than there is"
        for name, tenant in self.policy.tenants.items():
            used = sum(each.devices.get("gpu", 0) for each in held if each.tenant == name)
            most = tenant.most("gpu")
            assert most is None or used <= most, "a tenant has more than it may use"


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**9))
def test_no_device_is_given_twice(seed: int) -> None:
    world = World(random.Random(seed))
    world.run()
    assert not world.granted


def test_the_worlds_resize() -> None:
    worlds = [World(random.Random(seed)) for seed in range(30)]
    for world in worlds:
        world.run()
    assert sum(world.resized for world in worlds) > 60


@pytest.mark.parametrize("count", [1, 40])
def test_sizes_of_many_jobs_are_found(count: int) -> None:
    nodes = Capacity(tuple(Node(f"n{n}", 64, 512 * 1024, 8) for n in range(16)))
    granted = [runs(elastic(f"job-{n}", GOOD if n % 2 else POOR), 1) for n in range(count)]
    found = plan_sizes([], granted, nodes, policy=Policy(), past={}, now=LATER)
    held = {grant.request.job_id: grant.request.learners for grant in granted} | sizes(found)
    assert sum(held.values()) <= 128
    assert sum(held.values()) == min(128, 8 * count) or count == 1


def test_a_written_state_gives_the_same_sizes() -> None:
    """As `updraft queue --state` and `updraft plan` do."""
    running = [runs(elastic("a"), 2), runs(elastic("b", POOR), 1, resizes=2, pause_seconds=12.0)]
    for queue in ([], [elastic("c")], [request("fixed", 6)]):
        document = state_document(NODES.nodes, running, queue, Policy(least_gain=0.01), {}, LATER)
        again = StateDocument.model_validate_json(document.model_dump_json())
        expected = plan(queue, running, Policy(least_gain=0.01))
        assert again == document
        assert again.decide() == expected
        assert expected.resized


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"sizes": []}, "at least 1 item"),
        ({"sizes": [{"learners": 2, "goodput": 1}, {"learners": 1, "goodput": 1}]}, "sizes ascend"),
        ({"sizes": [{"learners": 1, "goodput": float("nan")}]}, "finite"),
        ({"sizes": [{"learners": 1, "goodput": 0}]}, "greater than 0"),
    ],
)
def test_sizes_that_cannot_be_are_refused(wrong: dict[str, object], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        ElasticDocument.model_validate(wrong)


def test_a_job_of_another_tenant_is_not_named() -> None:
    found = plan([request("secret-project", 4, tenant="vision")], [runs(elastic("a"), 8)])
    [resized] = found.resized
    assert "makes room for a job of tenant vision" in resized.reason
    assert "secret" not in resized.reason
