"""Packages without an image: what the manifest's section `environment` may say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from updraft.manifest import ManifestError, parse
from updraft.manifest.submission import named_secrets

BASE = {"name": "digits", "framework": {"name": "pytorch"}, "command": "python train.py", "code": "."}


def manifest_with(section: object, **other: Any) -> Any:
    return parse({**BASE, "environment": section, **other})


@pytest.mark.parametrize("path", ["requirements.txt", "deps/extra.txt", "uv.lock", "pyproject.toml"])
def test_a_file_below_the_code_is_taken(path: str) -> None:
    assert manifest_with({"requirements": path}).environment.file == path


def test_a_list_of_requirements_is_taken_as_it_is() -> None:
    found = manifest_with({"python": "3.12", "requirements": ["einops>=0.8", "rich"]}).environment
    assert found.file is None
    assert found.requirements == ("einops>=0.8", "rich")


def test_a_manifest_is_equal_to_what_its_canonical_form_parses_to() -> None:
    first = manifest_with({"requirements": ["rich"], "index": {"url": "https://a.example/simple", "secret": "own"}})
    assert parse(first.canonical()) == first


def test_secrets_of_indexes_are_among_those_that_the_manifest_needs() -> None:
    section = {
        "requirements": ["rich"],
        "index": {"url": "https://a.example/simple", "secret": "first"},
        "extra_index": [{"url": "https://b.example/simple", "secret": "second"}],
    }
    assert named_secrets(manifest_with(section)) == {"first", "second"}


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"requirements": "../requirements.txt"}, "no path below the code's folder"),
        ({"requirements": "/etc/requirements.txt"}, "no path below the code's folder"),
        ({"requirements": "Pipfile"}, "no file of requirements"),
        ({"requirements": []}, "neither a file"),
        ({"requirements": ["not a requirement!"]}, "is no requirement"),
        ({"requirements": ["rich @ https://a.example/rich.whl"]}, "is an address"),
        ({"requirements": ["rich"], "python": 3.12}, "no version of Python"),
        ({"requirements": ["rich"], "python": "three"}, "no version of Python"),
        ({"requirements": ["rich"], "index": {"url": "https://me:word@a.example/simple"}}, "a user or a password"),
        ({"requirements": ["rich"], "index": {"url": "file:///tmp"}}, "no address of a package index"),
    ],
)
def test_what_is_wrong_is_said(section: dict[str, Any], words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        manifest_with(section)


def test_a_password_in_an_address_is_not_repeated() -> None:
    with pytest.raises(ManifestError) as error:
        manifest_with({"requirements": ["rich"], "index": {"url": "https://me:swordfish@a.example/simple"}})
    assert "swordfish" not in str(error.value)


def test_a_file_needs_code() -> None:
    with pytest.raises(ManifestError, match="the manifest has no code"):
        manifest_with({"requirements": "requirements.txt"}, code=None)


@given(st.text(max_size=40))
def test_any_path_is_taken_below_the_code_or_refused(path: str) -> None:
    try:
        found = manifest_with({"requirements": path}).environment.file
    except ManifestError:
        return
    assert not found.startswith("/")
    assert ".." not in found.split("/")
