"""`strategy: shared_memory`: how many learners it means, and the fields that it does not go with."""

from __future__ import annotations

from typing import Any

import pytest

from updraft.manifest import Manifest, ManifestError, form_fields, parse, parse_any, read_form
from updraft.manifest.strategy import shared_learners, strategy_text

BASE = {"name": "digits", "framework": {"name": "pytorch"}, "command": "python train.py", "strategy": "shared_memory"}


def manifest(**resources: Any) -> Manifest:
    return parse({**BASE, "resources": resources})


def problems(**given: Any) -> list[str]:
    with pytest.raises(ManifestError) as error:
        parse({**BASE, **given})
    return [field.text for field in error.value.fields]


def test_the_learners_are_those_named_or_one_for_each_core() -> None:
    assert shared_learners(manifest(cpus=4, processes_per_learner=3)) == 3
    assert shared_learners(manifest(cpus=2.5)) == 2
    assert shared_learners(manifest(cpus=0.5)) == 1
    assert shared_learners(parse({**BASE, "strategy": None})) is None


def test_it_is_told_in_words() -> None:
    assert strategy_text(manifest(cpus=4)) == "4 learners share the memory of one pod"
    assert strategy_text(manifest(cpus=1)) == "one learner, with shared memory"
    assert strategy_text(parse({**BASE, "strategy": None})) is None


def test_more_learners_than_cores_are_accepted_with_a_warning() -> None:
    resources = {"cpus": 1.5, "processes_per_learner": 4}
    (warning,) = parse_any({**BASE, "resources": resources}).warnings
    assert warning.startswith("resources.processes_per_learner: 4 learners share 1.5 CPU cores")
    assert read_form({"manifest": {**BASE, "resources": resources}}).warnings == (warning,)
    assert parse_any({**BASE, "resources": {**resources, "cpus": 4}}).warnings == ()
    assert parse_any({**BASE, "resources": {"cpus": 0.5}}).warnings == ()


def test_several_pods_are_refused_with_the_field_that_is_meant() -> None:
    (text,) = problems(resources={"learners": 3})
    assert text == (
        "resources.learners: 3 pods share no memory; with strategy: shared_memory all learners are in one pod; "
        "write 1, and resources.processes_per_learner for more, such as processes_per_learner: 3"
    )


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"elastic": {"max_learners": 2}, "checkpoints": {"every": "1m"}}, "elastic"),
        ({"resources": {"gpus": 1}}, "resources.gpus"),
        ({"resources": {"size": "k80-1"}}, "resources.gpus"),
        ({"resources": {"mpi": True}}, "resources.mpi"),
    ],
)
def test_what_does_not_go_with_it_is_refused(given: dict[str, Any], field: str) -> None:
    (text,) = problems(**given)
    assert text.startswith(f"{field}: ")
    assert "shared_memory" in text


def test_one_process_for_each_gpu_is_refused() -> None:
    assert any("there is none" in text for text in problems(resources={"processes_per_learner": "gpus", "gpus": 0}))


def test_other_strategies_are_refused_with_what_is_allowed() -> None:
    (text,) = problems(strategy="shared-memory")
    assert "shared_memory" in text


def test_the_form_has_it() -> None:
    assert form_fields()["strategy"].schema["enum"] == ["shared_memory", None]
    filled = {name: value for name, value in BASE.items() if name != "framework"}
    assert read_form({**filled, "framework_name": "pytorch"}).manifest.strategy == "shared_memory"
