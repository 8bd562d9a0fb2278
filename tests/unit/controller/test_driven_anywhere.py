"""A controller that dies after any of its calls, and one that wakes up beside its successor, change nothing."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from unit.controller.driving import (
    Driver,
    Story,
    Twins,
    bad_checkpoint,
    exits,
    facts,
    runs_on,
    saves,
)
from unit.operators.airflow_fakes import Platform, until

from updraft.exceptions import RefusedError
from updraft.lifecycle import State

Make = Callable[..., Platform]
KILLED = exits(137)
NEVER = 1_000_000
STRIDE_OF_KILLS, STRIDE_OF_STOPS = 13, 53

STORIES = {
    "a learner is lost": Story({1: saves("step-3", then=KILLED)}),
    "the program fails once": Story({1: exits(3)}, manifest={"budget": {"app_attempts": 1}}),
    "the program fails too often": Story(
        {1: exits(3), 2: exits(3)}, manifest={"budget": {"app_attempts": 1}}, state=State.FAILED
    ),
    "a checkpoint is damaged": Story({1: saves("step-3", "step-6", then=KILLED), 2: bad_checkpoint}),
    "halted and resumed": Story(
        {1: saves("step-3", then=exits(75, peers=75))},
        asks=(("attempt 1", "halt", None), ("halted", "resume", None)),
    ),
    "halted by force and resumed": Story(
        {1: runs_on("halted")}, asks=(("attempt 1", "halt", None), ("halted", "resume", None))
    ),
    "halted and cancelled": Story(
        {1: saves("step-3", then=exits(75, peers=75))},
        asks=(("attempt 1", "halt", None), ("halted", "cancel", None)),
        state=State.CANCELLED,
    ),
    "resumed with a revision": Story(
        {1: saves("step-3", then=exits(75, peers=75))},
        asks=(("attempt 1", "halt", None), ("halted", "resume", {"command": "python better.py"})),
    ),
    "cancelled while backing off": Story(
        {1: exits(3)},
        asks=(("backing off", "cancel", None),),
        manifest={"budget": {"app_attempts": 1}},
        back_off=True,
        state=State.CANCELLED,
    ),
    "refused by a quota": Story({3: saves("step-3", then=KILLED)}, quota=frozenset({1, 2, 4})),
    "cancelled while a quota has no room": Story(
        {}, asks=(("backing off", "cancel", None),), quota=frozenset({1}), back_off=True, state=State.CANCELLED
    ),
    "halted while a quota has no room, and resumed": Story(
        {},
        asks=(("backing off", "halt", None), ("halted", "resume", None)),
        quota=frozenset({1}),
        back_off=True,
    ),
    "asked for its room": Story({1: saves("step-3", then=exits(75, peers=75))}, reclaims=frozenset({"attempt 1"})),
    "stopped for its room": Story({1: saves("step-3", then=runs_on("reclaimed"))}, reclaims=frozenset({"attempt 1"})),
    "asked for its room while backing off": Story(
        {1: saves("step-3", then=KILLED), 2: saves("step-6", then=KILLED)},
        reclaims=frozenset({"backing off"}),
        back_off=True,
    ),
    "asked for its room and halted": Story(
        {1: saves("step-3", then=exits(75, peers=75))},
        asks=(("attempt 1", "halt", None), ("halted", "resume", None)),
        reclaims=frozenset({"attempt 1"}),
    ),
    "lost while halting": Story(
        {1: saves("step-3", then=KILLED)},
        asks=(("attempt 1", "halt", None), ("halted", "resume", None)),
    ),
}


def begun(make_platform: Make, story: Story, like: Platform | None = None) -> Platform:
    """A job just before its training; a copy of one if `like` is given."""
    platform = make_platform(like, **({"evaluate": None, "export": None} | dict(story.manifest)))
    platform.cluster.refuse = story.refusal
    return platform if like is not None else until(platform, "train")


def chosen(name: str, calls: Sequence[int], stride: int) -> Sequence[int]:
    """Every so many of the calls, beginning elsewhere for each name. UPDRAFT_KILL_STRIDE=1: every one."""
    stride = int(os.environ.get("UPDRAFT_KILL_STRIDE", stride))
    return calls[zlib.crc32(name.encode()) % min(stride, len(calls)) :: stride]


def trained(platform: Platform, driver: Driver, twins: Twins | None = None) -> dict[str, Any]:
    """The job's facts after its training and its release."""
    platform.drive = driver.drive if twins is None else twins.drive
    platform.run("train")
    platform.run("release")
    if twins is not None:
        twins.wake()
    return facts(platform)


def made_for_good(told: dict[str, Any], story: Story) -> list[str]:
    """What was created, each as often as it was. What a quota refuses is removed before that is recorded; who dies in
    between leaves it to be made, refused and removed once more."""
    refused = tuple(f"-t{number}" for number in story.quota)
    once = {item for item in told["created"] if _of_attempt(item) in refused}
    return sorted([*once, *(item for item in told["created"] if item not in once)])


def _of_attempt(item: str) -> str:
    """`-t1` of `pod digits-1-t1-0`."""
    return "-t" + item.rpartition("-t")[2].partition("-")[0]


@pytest.mark.parametrize("name", STORIES)
def test_a_story_ends_as_it_should(make_platform: Make, name: str) -> None:
    story = STORIES[name]
    platform = begun(make_platform, story)
    driver = Driver(platform, story)
    told = trained(platform, driver)
    assert (platform.job.state, told["left"], told["granted"], told["waiting"]) == (story.state, [], [], []), told
    assert driver.errors == []


@pytest.mark.parametrize("name", STORIES)
def test_one_kill_after_any_effect_changes_nothing(make_platform: Make, name: str) -> None:
    story = STORIES[name]
    before = begun(make_platform, story)
    plain = begun(make_platform, story, before)
    with plain.watched_calls():
        expected = trained(plain, Driver(plain, story))
    for n in chosen(name, plain.blade.deaths, STRIDE_OF_KILLS):
        platform = begun(make_platform, story, before)
        platform.blade.falls_after = n
        driver = Driver(platform, story)
        where = f"killed after call {n}: {plain.blade.log[n - 1]}"
        told = trained(platform, driver)
        assert made_for_good(told, story) == made_for_good(expected, story), where
        assert {**told, "created": expected["created"]} == expected, where
        assert platform.kills + driver.kills <= 1, where


@pytest.mark.parametrize("when", ["while its successor watches", "after the end"])
@pytest.mark.parametrize("name", STORIES)
def test_one_that_was_stopped_and_wakes_up_changes_nothing(make_platform: Make, name: str, when: str) -> None:
    story = STORIES[name]
    before = begun(make_platform, story)
    plain = begun(make_platform, story, before)
    expected = trained(plain, Driver(plain, story))
    points = [NEVER]  # how many calls there are is known after the first time
    while points:
        n = points.pop()
        platform = begun(make_platform, story, before)
        driver = Driver(platform, story)
        twins = Twins(platform, driver, stop_after=n, wakes_at_end=when == "after the end")
        told = trained(platform, driver, twins)
        where = f"stopped after call {n}: {twins.log[n - 1] if n <= len(twins.log) else 'never'}"
        created = told.pop("created")
        # In the middle of creating pods it may make one again that has ended; then it finds that out, and removes it.
        assert set(created) == set(expected["created"]), where
        assert {**told, "created": expected["created"]} == expected, where
        assert [str(error) for error in driver.errors if not isinstance(error, RefusedError)] == [], where
        if n == NEVER:
            points += chosen(name + when, range(1, len(twins.log) + 1), STRIDE_OF_STOPS)
