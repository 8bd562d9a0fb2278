"""The protocol of elastic training, on the real code of both sides, with simulated messages, losses and exchanges."""

from __future__ import annotations

import os
from collections import Counter, defaultdict, deque
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from updraft_learner.elastic.member_state import MemberState
from updraft_learner.elastic.membership import NO_STATE, Generation, MembershipCoordinator, Message, Peer, Sent
from updraft_learner.elastic.sample_order import DataCursor, SampleOrder, share

ORDER = SampleOrder(length=7, batch=3, epochs=4, seed=5)
STEPS = 12
ENDED = ("fenced", "unneeded", "finished", "left", "dead")


@given(
    st.integers(1, 50),
    st.integers(1, 60),
    st.integers(1, 3),
    st.lists(st.integers(1, 9), min_size=1),
    st.integers(0, 9),
)
def test_each_sample_is_drawn_once_per_epoch(
    length: int, batch: int, epochs: int, learners: list[int], seed: int
) -> None:
    order, cursor = SampleOrder(length, batch, epochs, seed), DataCursor()
    used: dict[int, Counter[int]] = defaultdict(Counter)
    step = 0
    while not order.finished(cursor):
        number = learners[step % len(learners)]
        parts = [share(order.draw(cursor), rank, number) for rank in range(number)]
        assert sum(parts, ()) == order.draw(cursor)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert parts[0]
        used[cursor.epoch].update(sum(parts, ()))
        cursor, step = order.after(cursor), step + 1
    assert order.draw(cursor) == ()
    assert used == {epoch: Counter(range(length)) for epoch in range(epochs)}


class Learner:
    """What `training.Training` does, without PyTorch. Its state is its history: the generation of each step."""

    def __init__(self, name: str) -> None:
        self.member = MemberState(Peer(name, "host", 1))
        self.phase = "joining"
        self.history: tuple[int, ...] = ()
        self.plan: Generation | None = None  # that it forms
        self.stopped = False

    @property
    def name(self) -> str:
        return self.member.me.name

    @property
    def ended(self) -> bool:
        return self.phase in ENDED


class Network(RuleBasedStateMachine):
    """Coordinator and learners; hypothesis chooses whose turn it is, and what breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.tokens = 0
        self.membership = self.coordinator(None)
        self.saved = self.membership.saved()
        self.learners: dict[str, Learner] = {}
        self.up: dict[str, deque[Message]] = {}  # to the coordinator, of those that are connected
        self.down: dict[str, deque[Message]] = {}
        self.entered: dict[int, set[str]] = defaultdict(set)
        self.offered_state: dict[int, tuple[int, ...]] = {}
        self.contributed: dict[tuple[int, int], dict[str, int]] = defaultdict(dict)
        self.cut: set[frozenset[str]] = set()  # pairs of learners that do not reach each other

    def coordinator(self, saved: Any) -> MembershipCoordinator:
        return MembershipCoordinator(2, hang_seconds=10, settle_seconds=2, saved=saved, token=lambda: "t")

    def route(self, sent: Sent) -> None:
        self.saved = self.membership.saved()
        for name, message in sent:
            if name in self.down:
                self.down[name].append(message)

    def say(self, learner: Learner, message: Message) -> None:
        if learner.name in self.up:
            self.up[learner.name].append(message)

    # What a learner can do next, as `training.Training` does it.

    def actions(self, learner: Learner) -> list[str]:
        member, phase = learner.member, learner.phase
        if learner.stopped or learner.ended:
            return []
        if phase == "joining":
            if member.fenced or member.finished or member.must_report():
                return ["fenced" if member.fenced else "unneeded" if member.finished else "report"]
            offered = member.offered()
            plan = member.target or (
                offered if offered and offered.leader in self.entered[offered.generation] else None
            )
            return ["enter"] if plan else []
        if phase == "recovering":
            if member.target:
                return ["enter"]
            return ["left"] if member.left else ["fenced"] if member.fenced else ["unneeded"] if member.finished else []
        if phase == "farewell":
            if member.left or member.fenced:
                return ["left"]
            return ["report"] if member.is_broken() else ["left"]
        if phase == "forming":
            assert learner.plan
            found = ["report"] if self.hopeless(learner, learner.plan) else []
            all_here = self.entered[learner.plan.generation] >= set(learner.plan.names)
            if all_here and self.has_source(learner) and not self.is_cut(learner.plan, learner.name):
                found.append("form")
            return found
        assert member.plan
        key = (member.generation, self.next_step(learner))
        if learner.name not in self.contributed[key]:
            return ["report"] if member.is_broken() else ["contribute"]
        found = ["report"] if self.hopeless(learner, member.plan) else []
        if set(self.contributed[key]) == set(member.plan.names) and not self.is_cut(member.plan):
            found.append("complete")
        return found

    def next_step(self, learner: Learner) -> int:
        return learner.member.step + 1

    def hopeless(self, learner: Learner, plan: Generation) -> bool:
        """Whether a learner may notice that this generation is broken."""
        others = [self.learners[name] for name in plan.names if name != learner.name]
        return (
            learner.member.is_broken()
            or self.is_cut(plan)
            or any(each.stopped or each.ended or each.member.broken >= plan.generation for each in others)
        )

    def is_cut(self, plan: Generation, name: str | None = None) -> bool:
        """Return whether some of a generation, or this learner and another one, do not reach each other. It forms for
        those that reach all others."""
        return any(pair <= set(plan.names) and (name is None or name in pair) for pair in self.cut)

    def not_met(self, learner: Learner) -> list[str]:
        """Return whom a learner misses in the generation that it forms: rank 0 tells who is there."""
        if learner.plan is None:
            return []
        leader = learner.plan.leader
        if frozenset((learner.name, leader)) in self.cut:
            return [leader]
        return [name for name in learner.plan.names if frozenset((name, leader)) in self.cut]

    def has_source(self, learner: Learner) -> bool:
        plan = learner.plan
        assert plan
        copied = len(plan.holders) < len(plan.members)
        return not copied or learner.name == plan.holders[0] or plan.generation in self.offered_state

    def act(self, learner: Learner, action: str) -> None:
        member = learner.member
        if action in ENDED:
            learner.phase = action
            self.disconnect(learner.name)
        elif action == "report":
            learner.phase = "recovering"
            if not member.finished:
                self.say(learner, member.report(0.0, self.not_met(learner)))
        elif action == "enter":
            learner.plan = member.target or member.offered()
            self.enter(learner)
        elif action == "form":
            self.form(learner)
        elif action == "contribute":
            self.contributed[member.generation, self.next_step(learner)][learner.name] = member.flag()
        elif action == "complete":
            self.complete(learner)

    def enter(self, learner: Learner) -> None:
        assert learner.plan
        learner.member.trying(learner.plan)
        learner.phase = "forming"
        self.entered[learner.plan.generation].add(learner.name)

    def form(self, learner: Learner) -> None:
        plan, member = learner.plan, learner.member
        assert plan
        if len(plan.holders) < len(plan.members):
            if learner.name == plan.holders[0]:
                self.offered_state[plan.generation] = learner.history
            elif learner.name not in plan.holders:
                learner.history = self.offered_state[plan.generation]
        member.step = len(learner.history)
        self.say(learner, member.formed(plan, member.step))
        learner.phase, learner.plan = "training", None

    def complete(self, learner: Learner) -> None:
        member = learner.member
        flags = self.contributed[member.generation, self.next_step(learner)]
        if member.fenced:
            return self.act(learner, "fenced")
        if member.step == STEPS:  # it was the exchange at the end
            self.say(learner, {"type": "done"})
            if learner.name in self.up:  # the link says what is still to be said
                while self.up[learner.name]:
                    self.to_coordinator(learner.name)
            return self.act(learner, "finished")
        learner.history += (member.generation,)
        member.step += 1
        plan = member.agreed(sum(flags.values()))
        if plan is None:
            return None
        if member.me.name in plan.names:
            learner.plan = plan
            return self.enter(learner)
        learner.phase = "farewell"

    # What happens.

    def some(self, data: Any, names: list[str]) -> Learner:
        return self.learners[data.draw(st.sampled_from(sorted(names)))]

    def busy(self) -> list[str]:
        return [name for name, each in self.learners.items() if self.actions(each)]

    def living(self) -> list[str]:
        return [name for name, each in self.learners.items() if not each.ended]

    @precondition(lambda self: len(self.learners) < 7)
    @rule()
    def start(self) -> None:
        name = f"learner-{len(self.learners)}"
        self.learners[name] = Learner(name)
        self.connect(name)

    @precondition(lambda self: self.busy())
    @rule(data=st.data(), times=st.integers(1, 6))
    def go_on(self, data: Any, times: int) -> None:
        for _ in range(times):
            if not (names := self.busy()):
                return
            learner = self.some(data, names)
            self.act(learner, data.draw(st.sampled_from(self.actions(learner))))

    @precondition(lambda self: self.busy())
    @rule(times=st.integers(1, 5))
    def everybody_goes_on(self, times: int) -> None:
        for _ in range(times):
            self.deliver_all()
            for name in self.living():
                if found := self.actions(self.learners[name]):
                    self.act(self.learners[name], found[-1])

    @precondition(lambda self: any(self.up.values()))
    @rule(data=st.data())
    def coordinator_hears(self, data: Any) -> None:
        self.to_coordinator(data.draw(st.sampled_from(sorted(name for name, queue in self.up.items() if queue))))

    @precondition(lambda self: any(self.down.values()))
    @rule(data=st.data())
    def learner_hears(self, data: Any) -> None:
        self.to_learner(data.draw(st.sampled_from(sorted(name for name, queue in self.down.items() if queue))))

    @rule()
    def deliver_all(self) -> None:
        while any(self.up.values()) or any(queue for name, queue in self.down.items() if self.hears(name)):
            for name in [name for name, queue in self.up.items() if queue]:
                self.to_coordinator(name)
            for name in [name for name, queue in self.down.items() if queue]:
                self.to_learner(name)

    @precondition(lambda self: self.living())
    @rule(data=st.data(), told=st.booleans(), wrong=st.booleans())
    def kill(self, data: Any, told: bool, wrong: bool) -> None:
        """A learner dies; the coordinator may be told before its connection ends, or be told of one that lives."""
        learner = self.some(data, self.living())
        if told:
            learner.stopped = True
            self.route(self.membership.killed(learner.name, self.now))
            learner.stopped = False
        if not (told and wrong):
            self.act(learner, "dead")

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def stop_or_go_on(self, data: Any) -> None:
        learner = self.some(data, self.living())
        learner.stopped = not learner.stopped

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def lose_or_make_connection(self, data: Any) -> None:
        learner = self.some(data, self.living())
        if learner.name in self.up:
            self.disconnect(learner.name)
        elif not learner.stopped:
            self.connect(learner.name)

    @precondition(lambda self: len(self.learners) > 1)
    @rule(data=st.data())
    def cut_or_mend(self, data: Any) -> None:
        """Two learners do not reach each other any more, though both reach the coordinator."""
        pair = frozenset(
            data.draw(st.lists(st.sampled_from(sorted(self.learners)), min_size=2, max_size=2, unique=True))
        )
        self.cut ^= {pair}

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def suspect(self, data: Any) -> None:
        """A learner takes slow ones for lost."""
        learner = self.some(data, self.living())
        if learner.phase in ("forming", "training") and not learner.stopped:
            self.act(learner, "report")

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def leave(self, data: Any) -> None:
        learner = self.some(data, self.living())
        learner.member.leaving = True
        self.say(learner, {"type": "leave"})

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def remove(self, data: Any) -> None:
        self.route(self.membership.remove(self.some(data, self.living()).name)[1])

    @rule(seconds=st.sampled_from([1, 3, 11]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.route(self.membership.tick(self.now))

    @rule()
    def restart_coordinator(self) -> None:
        self.up.clear()
        self.down.clear()
        self.membership = self.coordinator(self.saved)

    def connect(self, name: str) -> None:
        self.up[name], self.down[name] = deque([self.learners[name].member.hello()]), deque()

    def disconnect(self, name: str) -> None:
        if name in self.up:
            del self.up[name], self.down[name]
            self.route(self.membership.gone(name, self.now))

    def hears(self, name: str) -> bool:
        return not self.learners[name].stopped

    def to_coordinator(self, name: str) -> None:
        self.route(self.membership.receive(name, self.up[name].popleft(), self.now))

    def to_learner(self, name: str) -> None:
        if self.hears(name):
            for answer in self.learners[name].member.receive(self.down[name].popleft()):
                self.say(self.learners[name], answer)

    # What must hold.

    @invariant()
    def there_is_one_chain(self) -> None:
        """Whoever may still decide how the training goes on has the same steps, but for one at most."""
        eligible = {each.name for each in self.membership._eligible()}
        if self.membership.offer and self.membership.offer.decided:  # who leaves alone decides nothing any more
            eligible &= set(self.membership.offer.plan.names)
        states = [
            each.history
            for each in self.learners.values()
            if each.name in eligible and not each.ended and each.member.step != NO_STATE and not each.member.fenced
        ]
        for one in states:
            for other in states:
                short = min(len(one), len(other))
                assert one[:short] == other[:short]
                assert abs(len(one) - len(other)) <= 1

    @invariant()
    def who_finished_has_the_whole_training(self) -> None:
        ends = {each.history for each in self.learners.values() if each.phase == "finished"}
        assert len(ends) <= 1
        assert all(len(history) == STEPS for history in ends)

    def teardown(self) -> None:
        """Once nothing breaks any more, the training ends, if the state is left anywhere; also if some learners never
        reach each other."""
        for learner in self.learners.values():
            learner.stopped = False
        holders = [
            each
            for each in self.learners.values()
            if not each.ended and each.member.step != NO_STATE and not each.member.fenced
        ]
        for _ in range(200):
            for name in self.living():
                if name not in self.up:
                    self.connect(name)
            self.now += 0.5
            self.route(self.membership.tick(self.now))
            self.deliver_all()
            for name in self.living():
                if found := self.actions(self.learners[name]):
                    self.act(self.learners[name], found[-1])
        self.there_is_one_chain()
        self.who_finished_has_the_whole_training()
        phases = Counter(each.phase for each in self.learners.values())
        if self.membership.lost or any(each.phase == "finished" for each in self.learners.values()):
            # The coordinator may have been away at the end: then newcomers wait until the platform ends them.
            waits = [self.learners[name] for name in self.living()]
            assert self.membership.lost or not any(
                self.membership.finished or each.member.step >= 0 for each in waits
            ), phases
        elif self.membership.plan is not None:
            # Nobody has the state: the platform notices, since all learners that had it are dead.
            decided = (
                self.membership.offer.plan.names if self.membership.offer and self.membership.offer.decided else ()
            )
            only_leavers = decided and all(self.learners[name].ended for name in decided)
            assert only_leavers or not [each.name for each in holders if not each.ended], phases
            assert self.membership.begun or all(self.learners[name].ended for name in self.membership.plan.names), (
                phases
            )


TestProtocol = Network.TestCase
TestProtocol.settings = settings(
    max_examples=int(os.environ.get("UPDRAFT_ELASTIC_EXAMPLES") or 150),
    stateful_step_count=60,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
