"""From which steps the platform measures the speed of a job."""

from __future__ import annotations

from dataclasses import replace

from updraft.controller.progress_monitor import steps_of
from updraft_learner.contract import LearnerStatus


def test_the_steps_of_the_training_are_more_than_those_of_its_metrics() -> None:
    status = LearnerStatus(1.0, "running", steps={"first": 1, "last": 3})
    assert steps_of(status) == {"first": 1, "last": 3}
    training = {"first": 10.0, "step": 90.0, "work": 1.0, "seconds": 1.0}
    assert steps_of(replace(status, training=training)) == {"first": 10, "last": 90}
