"""`checkpoints.from`: the glob, and the fields that it excludes."""

from __future__ import annotations

from typing import Any

import pytest

from updraft.manifest import ManifestError, parse


def manifest(**checkpoints: Any) -> dict[str, Any]:
    """`adopt` stands for `from`, which is a word of Python's."""
    given = {"from" if name == "adopt" else name: value for name, value in checkpoints.items()}
    return {"name": "digits", "framework": {"name": "pytorch"}, "command": "python train.py", "checkpoints": given}


def errors(**checkpoints: Any) -> dict[str, str]:
    with pytest.raises(ManifestError) as caught:
        parse(manifest(**checkpoints))
    return {error.path: error.text for error in caught.value.fields}


@pytest.mark.parametrize("pattern", ["output/checkpoint-*", "models/epoch-*.pt", "last.ckpt", "runs/*/step_[0-9]*"])
def test_a_glob_below_the_working_directory_is_taken(pattern: str) -> None:
    checkpoints = parse(manifest(adopt=pattern)).checkpoints
    assert checkpoints is not None
    assert checkpoints.adopt == pattern
    assert checkpoints.model_dump(by_alias=True)["from"] == pattern


@pytest.mark.parametrize(
    "pattern",
    ["", "/output/*", "../output/*", "output/../*", "./output/*", "output//*", "output/", "output\\*", "a" * 501]
    + ["output/**", "**/checkpoint-*", " output/*", "~/output/*", "*", "**", "?*", "a\tb"],
)
def test_another_glob_is_an_error_that_says_what_is_allowed(pattern: str) -> None:
    found = errors(adopt=pattern)
    assert list(found) == ["checkpoints.from"]
    assert "output/checkpoint-*" in found["checkpoints.from"]


def test_fields_that_mean_nothing_for_an_unchanged_program_are_errors() -> None:
    found = errors(adopt="output/checkpoint-*", every="60s", metric="loss", keep={"best": 1})
    assert list(found) == ["checkpoints.every", "checkpoints.metric"]
    assert "an unchanged program decides by itself when it saves" in found["checkpoints.every"]


def test_a_list_of_globs_is_an_error() -> None:
    assert list(errors(adopt=["a-*", "b-*"])) == ["checkpoints.from"]
