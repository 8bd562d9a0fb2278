"""Each learner goes on from its own checkpoint where it has one."""

from __future__ import annotations

from updraft.checkpoints import for_learner, learner_of

GOOD = ["step-1-a1", "step-1-a1-l2", "step-1-a1-l2-v2", "step-1-a1-l2-v10", "step-2-a1", "step-1-a2-l2"]


def test_a_name_says_whose_it_is() -> None:
    assert [learner_of(name) for name in ("step-1-a1", "step-1-a1-l12-v2", "step-1-a1-s0a1b2c3d", "odd")] == [
        1,
        12,
        1,
        1,
    ]


def test_its_own_newest_of_the_same_folder_and_attempt_or_the_one_that_was_chosen() -> None:
    assert for_learner("step-1-a1", 1, GOOD) == "step-1-a1"
    assert for_learner("step-1-a1", 2, GOOD) == "step-1-a1-l2-v10"
    assert for_learner("step-1-a1", 3, GOOD) == "step-1-a1"
    assert for_learner("step-2-a1", 2, GOOD) == "step-2-a1"
    assert for_learner("step-1-a1-s0a1b2c3d", 2, GOOD) == "step-1-a1-s0a1b2c3d"
    assert for_learner("odd", 2, GOOD) == "odd"
