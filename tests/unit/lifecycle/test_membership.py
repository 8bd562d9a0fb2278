"""Generations of members: numbers are never given twice, and what is stored is what is read."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from updraft.lifecycle.membership import Member, Membership


@st.composite
def histories(draw: st.DrawFn) -> list[Membership]:
    """An attempt's generations, from the first one on."""
    history = [Membership.first(draw(st.integers(1, 5)))]
    for _ in range(draw(st.integers(0, 8))):
        now = history[-1]
        if now.size > 1 and draw(st.booleans()):
            leaving = draw(st.sets(st.sampled_from(now.learners), max_size=now.size - 1))
            history.append(now.resized(now.size - len(leaving), sorted(leaving)))
        else:
            history.append(now.resized(draw(st.integers(1, 6))))
    return history


@given(histories())
def test_a_number_belongs_to_one_learner_for_ever(history: list[Membership]) -> None:
    for earlier, later in itertools.pairwise(history):
        assert later.generation == earlier.generation + (earlier.learners != later.learners)
        assert later.ever[: len(earlier.ever)] == earlier.ever
        joined = set(later.learners) - set(earlier.learners)
        assert joined.isdisjoint(earlier.ever)
        assert joined <= set(later.joined_later)


@given(histories())
def test_ranks_are_dense_and_keep_their_order(history: list[Membership]) -> None:
    for membership in history:
        assert [membership.rank(n) for n in membership.learners] == list(range(membership.size))


@given(histories())
def test_what_is_stored_is_what_is_read(history: list[Membership]) -> None:
    for membership in history:
        assert Membership.from_json(json.loads(json.dumps(membership.to_json()))) == membership


@given(histories(), st.integers(1, 8))
def test_a_resize_gives_the_number_that_is_asked_for(history: list[Membership], desired: int) -> None:
    resized = history[-1].resized(desired)
    assert (resized.size, resized.desired) == (desired, desired)


def test_the_highest_numbers_leave_and_new_ones_join() -> None:
    smaller = Membership.first(3).resized(2)
    assert smaller == Membership(2, 2, (Member(1), Member(2), Member(3, 1, 2)))
    assert smaller.resized(3) == Membership(3, 3, (Member(1), Member(2), Member(3, 1, 2), Member(4, 3)))
    assert (smaller.missing([1]), smaller.missing([1, 2, 3])) == ((2,), ())


@pytest.mark.parametrize(
    ("generation", "desired", "members", "message"),
    [
        (1, 1, (), "0 learners belong"),
        (1, 0, (Member(1),), "desired 0"),
        (0, 1, (Member(1),), "generation 0"),
        (1, 1, (Member(1), Member(1)), "ascending and different"),
        (1, 1, (Member(0),), "positive"),
        (1, 1, (Member(1, 2),), "learner 1: belongs from 2 to None"),
        (2, 1, (Member(1), Member(2, 2, 2)), "learner 2: belongs from 2 to 2"),
        (2, 1, (Member(1), Member(2, 1, 3)), "learner 2: belongs from 1 to 3"),
    ],
)
def test_members_that_contradict_each_other_are_refused(
    generation: int, desired: int, members: tuple[Member, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Membership(generation, desired, members)


def test_only_those_that_belong_can_leave() -> None:
    with pytest.raises(ValueError, match=r"learners \[4\] do not belong to generation 1"):
        Membership.first(3).resized(2, [4])
    with pytest.raises(ValueError, match="0 learners belong"):
        Membership.first(1).resized(0, [1])


def test_some_leave_and_others_join_at_once() -> None:
    changed = Membership.first(3).resized(3, (2,))
    assert (changed.generation, changed.learners, changed.ever) == (2, (1, 3, 4), (1, 2, 3, 4))
    fewer = changed.resized(1, (1,))
    assert fewer.learners == (3,)
    assert changed.resized(3) is changed
    with pytest.raises(ValueError, match="do not belong"):
        changed.resized(3, (2,))
