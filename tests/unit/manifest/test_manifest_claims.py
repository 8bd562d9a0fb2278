"""`pvc://` sources: what they say and what cannot be had with them."""

from __future__ import annotations

from typing import Any

import pytest

from updraft.manifest import ManifestError, parse, parse_source
from updraft.manifest.sources import Source


def job(*data: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "a", "framework": {"name": "pytorch"}, "command": "true", "data": list(data), **more}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pvc://imagenet", Source("pvc", claim="imagenet")),
        ("pvc://imagenet/", Source("pvc", claim="imagenet")),
        ("pvc://team.imagenet/train/2012/", Source("pvc", claim="team.imagenet", key="train/2012")),
    ],
)
def test_a_claim_and_its_folder_are_taken_apart(text: str, expected: Source) -> None:
    assert parse_source(text, git=False) == expected
    assert parse(job({"source": text})).data[0].parsed() == expected


@pytest.mark.parametrize(
    "text", ["pvc://", "pvc:///a", "pvc://Upper", "pvc://a_b", "pvc://a/../b", "pvc://a//b", "pvc://a/./b", "pvc://-a"]
)
def test_a_wrong_claim_is_named_with_the_right_form(text: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse(job({"source": text}))
    assert "data[0].source" in str(caught.value)
    assert "pvc://claim" in str(caught.value)


def test_code_is_no_claim() -> None:
    with pytest.raises(ManifestError, match="has the scheme 'pvc', which is not supported here"):
        parse(job(code="pvc://a"))


SUITE = {"expectations": [{"type": "expect_column_to_exist", "kwargs": {"column": "a"}}]}


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("expectations", SUITE, "data of a claim is mounted as it is and not read before the learners start"),
        ("limit", "1GiB", "nothing of a claim is copied"),
        ("secret", "bucket", "the source is not in an object store"),
    ],
)
def test_what_a_claim_cannot_have_is_refused_by_name(field: str, value: Any, said: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse(job({"source": "pvc://a", field: value}))
    (error,) = caught.value.fields
    assert (error.path, said in error.problem) == (f"data[0].{field}", True)


@pytest.mark.parametrize(("claim", "other"), [(".", "x"), ("a", "a/b"), (".", "a/b")])
def test_no_data_set_lies_below_a_claim(claim: str, other: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse(job({"source": "s3://aa/", "as": other}, {"source": "pvc://a", "as": claim}))
    assert [error.path for error in caught.value.fields] == ["data[0].as"]


def test_data_sets_may_lie_beside_a_claim_and_a_claim_inside_another_data_set() -> None:
    parse(job({"source": "pvc://a", "as": "a"}, {"source": "s3://aa/", "as": "ab"}, {"source": "pvc://b", "as": "b"}))
    parse(job({"source": "s3://aa/", "as": "a"}, {"source": "pvc://a", "as": "a/b"}))
