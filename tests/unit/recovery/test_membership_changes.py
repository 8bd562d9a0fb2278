"""Learners join and leave in any order of events: neither is a loss, and neither is the end of the attempt."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from unit.recovery.test_outcome import ended, pod

from updraft.lifecycle.membership import Membership
from updraft.recovery.facts import PodFacts, stage_of
from updraft.recovery.outcome import FailureClass, Outcome, judge

ENDS = st.sampled_from([0, 1, 75, 137, 143])


class Changes(RuleBasedStateMachine):
    """A gang whose members change while its pods are seen late, one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.members = Membership.first(3)
        self.pods: dict[int, PodFacts] = {n: pod(n) for n in self.members.learners}
        self.made = set(self.pods)
        self.seen = dict(self.pods)  # by the watch

    def left(self) -> list[int]:
        return sorted(set(self.pods) - set(self.members.learners))

    def judged(self, pods: dict[int, PodFacts], stored: Iterable[int] = ()) -> Outcome | None:
        return judge(
            list(pods.values()),
            membership=self.members,
            markers={n: {"t": 1} for n in stored},
            tails={},
            memory="1 GiB",
            awaited=self.members.joined_later,
        )

    @rule(desired=st.integers(1, 5))
    def resize(self, desired: int) -> None:
        self.members = self.members.resized(desired)

    @precondition(lambda self: self.members.size > 1)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.members = self.members.resized(self.members.size - 1, [data.draw(st.sampled_from(self.members.learners))])

    @precondition(lambda self: set(self.members.learners) - self.made)
    @rule(data=st.data())
    def make(self, data: st.DataObject) -> None:
        learner = data.draw(st.sampled_from(sorted(set(self.members.learners) - self.made)))
        self.made.add(learner)
        self.pods[learner] = pod(learner)

    @precondition(lambda self: self.left())
    @rule(data=st.data(), code=ENDS)
    def end_one_that_left(self, data: st.DataObject, code: int) -> None:
        learner = data.draw(st.sampled_from(self.left()))
        self.pods[learner] = pod(learner, phase="Failed" if code else "Succeeded", main=ended(code))

    @precondition(lambda self: self.left())
    @rule(data=st.data())
    def delete_one_that_left(self, data: st.DataObject) -> None:
        del self.pods[data.draw(st.sampled_from(self.left()))]

    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        learner = data.draw(st.sampled_from(sorted(self.made)))
        if learner in self.pods:
            self.seen[learner] = self.pods[learner]
        elif learner not in self.members.learners:
            self.seen.pop(learner, None)

    @invariant()
    def nothing_is_lost_and_nothing_has_ended(self) -> None:
        assert self.judged(self.seen) is None
        assert self.judged(self.pods) is None
        stage_of(list(self.seen.values()), self.members)

    @invariant()
    def a_members_end_is_seen(self) -> None:
        for learner in self.members.learners:
            if learner in self.pods:
                failed = pod(learner, phase="Failed", main=ended(1))
                outcome = self.judged({**self.pods, learner: failed})
                assert outcome is not None
                assert outcome.reason.startswith(f"learner {learner}: ")

    @invariant()
    def the_attempt_is_done_when_all_members_are(self) -> None:
        done = {n: pod(n, phase="Succeeded", main=ended(0)) for n in self.members.learners if n in self.pods}
        outcome = self.judged({**self.pods, **done}, done)
        if set(self.members.learners) <= set(done):
            assert outcome is not None
            assert outcome.cause is FailureClass.DONE
        else:
            assert outcome is None


TestChanges = Changes.TestCase
TestChanges.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
