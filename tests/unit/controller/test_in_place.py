"""Learners that join and leave an attempt while the others train: what is decided, and what is done for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.controller.driving import Story
from unit.controller.test_driven_anywhere import begun
from unit.operators.airflow_fakes import Platform
from unit.operators.platform_fakes import api_error

from updraft.allocation import Plan, Resized
from updraft.controller.in_place import GroupFacts, InPlaceGroup, is_settled, plan_members
from updraft.controller.records import launch_of
from updraft.exceptions import StaleAttemptError
from updraft.kubernetes import gang
from updraft.lifecycle import State
from updraft.lifecycle.membership import Membership
from updraft.storage.groups import read_group
from updraft_learner.contract import Keys
from updraft_learner.elastic.report import GroupReport, Members

Make = Callable[..., Platform]
TWO = Membership.first(2)
ELASTIC = {
    "elastic": {"min_learners": 1, "max_learners": 4, "resize": "in_place"},
    "resources": {"learners": 2, "cpus": 0.1, "memory": "64MiB"},
    "checkpoints": {"every": "60s"},
}


def facts(membership: Membership, *learners: int, **more: Any) -> GroupFacts:
    group = GroupReport("training", 1, learners, obeys=membership.generation)
    return GroupFacts(membership, group, **{"lost": {}, "leaving": {}, "failed": {}, **more})


def test_the_planners_size_is_followed() -> None:
    larger, why = plan_members(facts(TWO, 1, 2, target=(3, "grows")))
    assert (larger.generation, larger.learners, why) == (2, (1, 2, 3), "grows")
    smaller, why = plan_members(facts(larger, 1, 2, 3, target=(1, "makes room")))
    assert (smaller.learners, why) == ((1,), "makes room")


def test_a_lost_learner_is_replaced_under_another_number() -> None:
    changed, why = plan_members(facts(TWO, 1, 2, lost={1: "killed"}))
    assert (changed.learners, why) == ((2, 3), "learner 1: killed")


def test_nobody_is_replaced_while_many_were_lost() -> None:
    changed, _ = plan_members(facts(TWO, 1, 2, lost={1: "killed"}, may_add=False))
    assert changed.learners == (2,)


@pytest.mark.parametrize("state", ["waiting", "lost"])
def test_without_a_group_nothing_changes(state: str) -> None:
    given_ = facts(TWO, 1, 2, lost={1: "killed"})
    began = replace(given_.group, state=state, generation=0 if state == "waiting" else 3)
    assert plan_members(replace(given_, group=began)) == (TWO, "")


def test_the_loss_of_everybody_is_left_to_the_verdict() -> None:
    assert plan_members(facts(TWO, 1, 2, lost={1: "killed", 2: "killed"})) == (TWO, "")


def test_a_newcomer_that_does_not_come_is_given_up() -> None:
    larger = TWO.resized(3)
    changed, why = plan_members(facts(larger, 1, 2, failed={3: "no room"}, target=(3, "grows")))
    assert (changed.learners, changed.desired, why) == ((1, 2), 2, "learner 3: no room; grows")


def test_at_the_end_newcomers_are_not_waited_for() -> None:
    given_ = facts(TWO.resized(3), 1, 2)
    changed, _ = plan_members(replace(given_, group=replace(given_.group, state="finished")))
    assert changed.learners == (1, 2)


@given(
    st.integers(1, 5),
    st.sets(st.integers(1, 5)),
    st.sets(st.integers(1, 5)),
    st.none() | st.integers(1, 6),
    st.sampled_from(["training", "resizing", "finished", "lost"]),
    st.booleans(),
)
def test_who_has_the_state_stays(
    size: int, grouped: set[int], lost: set[int], target: int | None, state: str, may_add: bool
) -> None:
    """Whatever is lost and asked for: somebody of the group stays, numbers are never used again, and the next look at
    the same facts changes nothing more."""
    members = Membership.first(size)
    lost &= set(members.learners)
    group = GroupReport(state, 2, tuple(sorted(grouped & set(members.learners))), obeys=1)
    seen = GroupFacts(
        members, group, dict.fromkeys(lost, "lost"), {}, {}, None if target is None else (target, "asked"), may_add
    )
    changed, why = plan_members(seen)
    if changed is members:
        assert not why
        return
    assert set(changed.learners) & set(group.learners) - lost
    assert not set(changed.learners) & lost
    assert set(changed.ever) >= set(members.ever)
    assert not (set(changed.learners) - set(members.learners)) & set(members.ever)
    again, _ = plan_members(replace(seen, membership=changed, lost={}))
    if target is not None and state != "finished" and may_add:
        assert again is changed


class Deferred(BaseException):
    """The task has launched its learners, and waits."""


def _deferred(job_id: str, role: str) -> dict[str, Any]:
    raise Deferred(role)


class Look:
    """A job whose two learners train, and one look after the other at it."""

    def __init__(self, platform: Platform) -> None:
        self.platform, self.services = platform, platform.services
        job = platform.ledger.jobs.get(platform.job.id)
        platform.drive = _deferred
        with pytest.raises(Deferred):
            platform.run("train")
        (attempt,) = (each for each in platform.ledger.attempts.of_job(job.id) if each.role == "train")
        self.launch = launch_of(self.services.settings, job, attempt)
        self.group = InPlaceGroup(self.services, job, self.launch)
        self.run(1, 2)
        platform.ledger.jobs.move(job.id, State.PROCESSING, "2 of 2 learners run")
        self.says(GroupReport("training", 1, (1, 2)))

    @property
    def job(self) -> Any:
        return self.platform.ledger.jobs.get(self.platform.job.id)

    @property
    def names(self) -> list[str]:
        return sorted(name.removeprefix(self.launch.base_name) for name in self.platform.cluster.pods)

    def run(self, *learners: int, exit_code: int | None = None) -> None:
        for n in learners:
            self.platform.cluster.set_status(self.launch.pod_name(n), exit_code=exit_code)

    def says(self, report: GroupReport) -> None:
        keys, launch = Keys(self.launch.tenant), self.launch
        key = keys.group(launch.job_id, launch.role, launch.attempt)
        self.services.store.put_bytes(key, report.to_json({}))

    @property
    def told(self) -> Members | None:
        keys, launch = Keys(self.launch.tenant), self.launch
        text = self.services.store.get_bytes(keys.members(launch.job_id, launch.role, launch.attempt))
        return None if text is None else Members.from_json(text)

    def __call__(
        self,
        *,
        stopping: bool = False,
        group: InPlaceGroup | None = None,
        straggler: tuple[int, str] | None = None,
    ) -> Membership:
        found = gang.observe(self.platform.cluster, self.launch)  # type: ignore[arg-type]
        looked = group or self.group
        core: Any = self.platform.cluster
        return looked.look(core, found, found, {}, stopping=stopping, straggler=straggler)

    def resize(self, learners: int) -> None:
        wanted = Resized(self.job.id, learners, None, 1.5, "resized for a test")
        self.platform.ledger.queue.plan(lambda *_: Plan(resized=(wanted,)))


@pytest.fixture
def look(make_platform: Make) -> Look:
    return Look(begun(make_platform, Story({}, manifest=ELASTIC)))


def test_the_coordinator_is_launched_with_the_learners(look: Look) -> None:
    assert look.names == ["-0", "-1", "-c1"]
    pod = look.platform.cluster.pods[f"{look.launch.base_name}-c1"]
    assert pod["metadata"]["labels"]["updraft.dev/learner"] == "0"
    assert pod["spec"]["hostname"] == f"{look.launch.base_name}-c"
    learner = look.platform.cluster.pods[look.launch.pod_name(1)]
    variables = {each["name"]: each.get("value") for each in learner["spec"]["containers"][0]["env"]}
    assert variables["UPDRAFT_ELASTIC"] == f"{look.launch.base_name}-c.{look.launch.base_name}:29501"


def test_it_grows(look: Look) -> None:
    look()
    assert look.told == Members(1, (1, 2))
    look.resize(3)
    assert look().learners == (1, 2, 3)
    assert look.names == ["-0", "-1", "-2", "-c1"]
    assert look.told == Members(2, (1, 2, 3))
    assert look.job.state is State.RESIZING
    look.run(3)
    look()
    assert look.job.state is State.RESIZING
    assert look.group.established == (1, 2)
    look.says(GroupReport("training", 2, (1, 2, 3), obeys=2, pauses={2: 0.031}))
    look()
    assert (look.job.state, look.job.reason) == (
        State.PROCESSING,
        "3 of 3 learners run; the others stood still for 31 ms",
    )
    assert look.platform.ledger.queue.size(look.job.id) == (3, None)
    assert look.platform.ledger.queue.target(look.job.id) is None
    (change,) = [each for each in look.platform.ledger.queue.rounds(9, ["default"]) if each.before]
    assert (change.after, change.pause_seconds) == (3, 0.031)


def test_it_shrinks_and_gives_its_room_back_when_the_pod_has_ended(look: Look) -> None:
    look.resize(1)
    assert look().learners == (1,)
    look.says(GroupReport("training", 2, (1,), obeys=2))
    look()
    assert look.platform.ledger.queue.size(look.job.id) == (2, None)  # learner 2 has not ended
    look.run(2, exit_code=0)
    look()
    assert look.platform.ledger.queue.size(look.job.id) == (1, None)
    assert look.job.state is State.PROCESSING


def test_a_killed_learner_is_replaced(look: Look) -> None:
    look()
    look.run(1, exit_code=137)
    assert look().learners == (2, 3)
    assert look.job.state is State.RESIZING
    assert "learner 1 was killed from outside" in look.job.reason
    assert look.names == ["-0", "-1", "-2", "-c1"]
    assert len(look.platform.ledger.attempts.of_job(look.job.id)) == 1


def test_a_program_that_fails_ends_the_attempt(look: Look) -> None:
    look.run(1, exit_code=1)
    assert look().learners == (1, 2)


def test_a_newcomer_that_is_killed_is_replaced_and_one_that_fails_is_not(look: Look) -> None:
    look.resize(3)
    look()
    look.run(3, exit_code=137)
    assert look().learners == (1, 2, 4)
    look.run(4, exit_code=1)
    assert look().learners == (1, 2)
    assert look().learners == (1, 2)


def test_nobody_is_replaced_while_the_job_stops(look: Look) -> None:
    look.run(1, exit_code=137)
    assert look(stopping=True).learners == (1, 2)


def test_a_straggler_is_replaced_on_another_node(look: Look) -> None:
    look.platform.cluster.pods[look.launch.pod_name(2)]["spec"]["nodeName"] = "slow-node"
    look.says(GroupReport("training", 1, (1, 2), obeys=1))
    look()
    assert look(straggler=(2, "it is slow")).learners == (1, 3)
    assert look.job.reason == "learner 2: it is slow; 1 learner trains on"
    affinity = look.platform.cluster.pods[look.launch.pod_name(3)]["spec"]["affinity"]
    assert "slow-node" in str(affinity)


def test_a_straggler_stays_while_something_else_changes(look: Look) -> None:
    look.says(GroupReport("training", 1, (1, 2), obeys=1))
    look.resize(3)
    assert look(straggler=(2, "it is slow")).learners == (1, 2, 3)
    assert look(straggler=(2, "it is slow")).learners == (1, 2, 3)


def test_stragglers_are_replaced_a_few_times_only(look: Look) -> None:
    for generation in range(1, 6):
        members = look.group.membership.learners
        look.run(*members)
        look.says(GroupReport("training", generation, members, obeys=look.group.membership.generation))
        look()
        if generation == 3:  # another trigger goes on
            look.group = InPlaceGroup(look.services, look.job, look.launch)
            look()
        look(straggler=(members[-1], "it is slow"))
    assert look.group.membership.ever == (1, 2, 3, 4, 5)


def test_newcomers_without_quota_are_given_up(look: Look) -> None:
    used_up = "exceeded quota: small, requested: requests.memory=384Mi, used: 1Gi, limited: 1Gi"
    newcomer = look.launch.pod_name(3)
    look.platform.cluster.refuse = lambda verb, name: (
        api_error(403, f'pods "{name}" is forbidden: {used_up}') if name == newcomer else None
    )
    look.resize(3)
    assert look().learners == (1, 2)
    assert look().learners == (1, 2)  # it is not tried again
    look.says(GroupReport("training", 1, (1, 2), obeys=look.group.membership.generation))
    look()
    assert look.job.state is State.PROCESSING
    assert look.platform.ledger.queue.size(look.job.id) == (2, None)


def test_a_newcomer_waits_for_the_quota_of_who_leaves(look: Look) -> None:
    newcomer = look.launch.pod_name(3)
    look.platform.cluster.refuse = lambda verb, name: (
        api_error(403, f'pods "{name}" is forbidden: exceeded quota: small') if name == newcomer else None
    )
    look.says(GroupReport("training", 1, (1, 2), obeys=1))
    look()
    assert look(straggler=(2, "it is slow")).learners == (1, 3)
    assert look().learners == (1, 3)  # the pod of learner 2 runs
    look.platform.cluster.refuse = lambda verb, name: None
    look.run(2, exit_code=0)
    assert look().learners == (1, 3)
    assert newcomer.removeprefix(look.launch.base_name) in look.names


def test_a_lost_coordinator_is_replaced(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    look()
    look.platform.cluster.set_status(f"{look.launch.base_name}-c1", exit_code=1)
    monkeypatch.setattr("updraft.controller.in_place.GONE_SECONDS", 0.0)
    look()
    assert look.names == ["-0", "-1", "-c2"]
    pod = look.platform.cluster.pods[f"{look.launch.base_name}-c2"]
    assert pod["spec"]["hostname"] == f"{look.launch.base_name}-c"
    assert look().learners == (1, 2)


def test_a_successor_goes_on(look: Look) -> None:
    """Another process that knows nothing finds a resize half-way, and completes it."""
    look.resize(3)
    look()
    job = look.platform.ledger.jobs.get(look.job.id)
    launch = launch_of(look.services.settings, job, look.platform.ledger.attempts.of_job(job.id)[-1])
    look.group = InPlaceGroup(look.services, job, launch)
    look.run(3)
    look.says(GroupReport("training", 2, (1, 2, 3), obeys=2, pauses={2: 0.031}))
    assert look().learners == (1, 2, 3)
    assert look.job.state is State.PROCESSING


def test_an_attempt_that_is_over_is_left_alone(look: Look) -> None:
    look.platform.ledger.attempts.ensure(look.job.id, "train", after=None, resume=None, learners=2, batch=None)
    stale = InPlaceGroup(look.services, look.job, replace(look.launch, attempt=7))
    with pytest.raises(StaleAttemptError):
        look(group=stale)


def test_what_a_coordinator_says_is_read_with_care(look: Look) -> None:
    launch = look.launch
    place = launch.tenant, launch.job_id, launch.role, launch.attempt
    key = Keys(launch.tenant).group(*place[1:])
    for text in (b"", b"[]", b'{"report": 3}', b'{"report": {"state": "training"}}', b"\xff"):
        look.services.store.put_bytes(key, text)
        assert read_group(*place, store=look.services.store) is None


def test_a_group_is_settled_when_it_is_what_was_asked_for() -> None:
    larger = TWO.resized(3)
    assert not is_settled(larger, GroupReport("training", 1, (1, 2), obeys=2))
    assert not is_settled(larger, GroupReport("training", 2, (1, 2, 3), obeys=1))
    assert not is_settled(larger, GroupReport("resizing", 2, (1, 2, 3), obeys=2))
    assert is_settled(larger, GroupReport("training", 2, (1, 2, 3), obeys=2))
