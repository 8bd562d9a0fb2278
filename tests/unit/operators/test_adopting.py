"""What the controller makes of `checkpoints.from`: the sidecars of the training are told, and no others."""

from __future__ import annotations

from collections.abc import Callable

from unit.operators.airflow_fakes import Platform
from unit.operators.test_planned import planned

from updraft.lifecycle.workflow import TRAIN_ROLE
from updraft_learner.contract import CONFIG_ENV, PodConfig


def test_only_the_sidecars_of_the_training_adopt(make_platform: Callable[..., Platform]) -> None:
    platform = make_platform(checkpoints={"from": "output/checkpoint-*"})
    platform.run("admit")
    adopts = {}
    for role, objects in planned(platform).items():
        [pod, *_] = [made for made in objects if made["kind"] == "Pod"]
        for container in pod["spec"]["initContainers"]:
            for variable in container.get("env", ()):
                if variable["name"] == CONFIG_ENV:
                    adopts[role] = PodConfig.from_json(variable["value"]).adopt
    assert adopts.pop(TRAIN_ROLE) == "output/checkpoint-*"
    assert adopts
    assert set(adopts.values()) == {None}
