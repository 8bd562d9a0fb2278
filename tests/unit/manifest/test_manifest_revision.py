"""What may change when a halted job goes on, and what is said about the rest."""

from __future__ import annotations

from typing import Any

import pytest

from updraft.manifest import ManifestError, parse
from updraft.manifest.revision import revised, revision

BASE = parse(
    {
        "name": "digits",
        "framework": {"name": "pytorch"},
        "command": "python train.py --lr ${params.lr}",
        "params": {"lr": 0.1, "epochs": 3},
        "env": {"A": "1"},
        "resources": {"learners": 2, "memory": "1GiB"},
        "checkpoints": {"every": "60s", "keep": {"latest": 4}},
        "export": {"register_as": "digits"},
    }
).canonical()


def problems(changes: dict[str, Any], manifest: dict[str, Any] | None = None) -> dict[str, str]:
    with pytest.raises(ManifestError) as caught:
        revised(manifest or BASE, changes)
    return {field.path: field.text for field in caught.value.fields}


def test_what_is_named_changes_and_the_rest_stays() -> None:
    changes = {
        "command": "python train.py --slow",
        "params": {"lr": 0.01},
        "env": {"B": "2"},
        "resources": {"memory": "4GiB"},
        "checkpoints": {"keep": {"best": 1}, "metric": "acc"},
        "budget": {"max_runtime": "6h"},
    }
    expected = {
        **BASE,
        "command": "python train.py --slow",
        "params": {"lr": 0.01, "epochs": 3},
        "env": {"A": "1", "B": "2"},
        "resources": {**BASE["resources"], "memory": "4GiB"},
        "checkpoints": {**BASE["checkpoints"], "metric": "acc", "keep": {**BASE["checkpoints"]["keep"], "best": 1}},
        "budget": {**BASE["budget"], "max_runtime": "6h"},
    }
    assert revised(BASE, changes) == parse(expected)
    assert revised(BASE, {}).canonical() == BASE


def test_a_request_carries_the_changes_and_the_manifest_that_they_make() -> None:
    changes = {"params": {"lr": 0.5}}
    assert revision(BASE, changes) == {"manifest": revised(BASE, changes).canonical(), "changes": changes}
    assert revision(BASE, {}) is None
    assert revision({k: v for k, v in BASE.items() if k != "tenant"}, {"params": {"lr": 0.1}}) is None


def test_null_takes_a_value_back_to_its_default() -> None:
    found = revised(BASE, {"resources": {"memory": None}, "env": {"A": None}, "checkpoints": None})
    assert (found.resources.memory_bytes, found.env, found.checkpoints) == (2 * 1024**3, {}, None)
    assert list(problems({"command": None})) == ["command"]


def test_every_wrong_field_and_every_fixed_one_is_named_at_once() -> None:
    found = problems(
        {
            "name": "other",
            "data": [],
            "framework": {"name": "shell"},
            "image": "x:1",
            "export": None,
            "resources": {"memory": "16 Gigs", "learners": -1},
            "parms": {"lr": 1},
        }
    )
    assert set(found) == {
        *("name", "data", "framework", "image", "export"),
        *("resources.memory", "resources.learners", "parms"),
    }
    assert found["name"] == (
        "name: cannot change when a job goes on; write only command, params, env, resources, budget, checkpoints, "
        "failures or priority; for anything else submit a new job"
    )
    assert "did you mean 'params'" in found["parms"]


def test_fields_are_judged_against_those_that_stay() -> None:
    assert list(problems({"params": {"lr": None}})) == ["command"]
    assert list(problems({"checkpoints": {"keep": {"best": 1}}})) == ["checkpoints.keep.best"]


def test_a_size_and_single_values_replace_each_other() -> None:
    small = parse({**BASE, "resources": {"size": "small"}}).canonical()
    single = revised(small, {"resources": {"memory": "7GiB"}})
    assert (single.resources.size, single.resources.memory_bytes) == (None, 7 * 1024**3)
    sized = revised(BASE, {"resources": {"size": "small"}})
    assert (sized.resources.size, sized.resources.learners) == ("small", 2)
    assert revised(small, {"resources": {"learners": 4}}).resources.size == "small"


def test_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(ManifestError):
        revised(BASE, {"resources": "large"})
    with pytest.raises(ManifestError):
        revised(BASE, {1: 2})  # type: ignore[dict-item]


TYPED = {**BASE, "params": {"lr": 0.1, "epochs": 3, "fast": False, "optimizer": "adam"}}


def test_params_have_the_types_of_those_that_they_replace() -> None:
    given = {"lr": 1, "epochs": "5", "fast": "true", "optimizer": 5}
    assert revised(TYPED, {"params": given}).params == {"lr": 1, "epochs": 5, "fast": True, "optimizer": "5"}


def test_params_of_another_type_and_of_no_name_are_refused_with_what_would_do() -> None:
    given = {"lr": "fast", "epochs": 2.5, "fast": 1, "optimizer": ["adam"], "epochz": 4}
    assert problems({"params": given}, TYPED) == {
        "params.epochz": "params.epochz: no such parameter in the manifest; write one of epochs, fast, lr, optimizer, "
        "such as epochs",
        "params.lr": "params.lr: 'fast' is of another type; write a number, such as 0.001 or 1e-3",
        "params.epochs": "params.epochs: 2.5 is of another type; write a whole number",
        "params.fast": "params.fast: 1 is of another type; write true or false",
        "params.optimizer": "params.optimizer: a list is not a single value; write text, a number, true or false",
    }


def test_a_new_command_may_have_other_params() -> None:
    changes = {"command": "python other.py --rate ${params.rate}", "params": {"rate": "slow", "lr": "fast"}}
    assert revised(TYPED, changes).params["lr"] == "fast"
