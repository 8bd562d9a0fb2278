"""The section `elastic`: what is wrong in it is named, and the rest acts."""

from __future__ import annotations

from typing import Any

import pytest

from updraft.manifest import ManifestError, parse

BASE: dict[str, Any] = {
    "name": "digits",
    "image": "registry/digits:1",
    "command": "python train.py",
    "checkpoints": {"every": "60s"},
}


def elastic(**fields: Any) -> dict[str, Any]:
    return {**BASE, "elastic": {"max_learners": 4, **fields}}


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (elastic(min_learners=5), "elastic.min_learners: 5 is above max_learners, which is 4; write at most 4"),
        (elastic(min_batch=64, max_batch=32), "elastic.min_batch: 64 is above max_batch, which is 32"),
        (elastic(min_batch=64), "elastic.max_batch: is missing, and the other bound is not; write both, or neither"),
        (elastic(max_batch=64), "elastic.min_batch: is missing"),
        (
            elastic(resize="in_place", min_batch=32, max_batch=64),
            "elastic.min_batch: 32 does not go with resize: in_place, whose programs say their batch to elastic.init; "
            "write nothing, or resize: restart",
        ),
        (
            {**elastic(resize="in_place"), "resources": {"processes_per_learner": 2}},
            "resources.processes_per_learner: 2 does not go with elastic.resize: in_place",
        ),
        (elastic(resize="sometimes"), "elastic.resize: 'sometimes'"),
        (elastic(lr="linear"), "elastic.lr: 'linear' needs a batch that the platform chooses"),
        (elastic(max_batch_per_learner=8), "elastic.max_batch_per_learner: 8 needs a batch that the platform chooses"),
        (
            elastic(min_learners=4, min_batch=33, max_batch=35),
            "elastic.max_batch: no batch from 33 to 35 can be shared by 4 learners in equal parts",
        ),
        (
            elastic(min_learners=3, min_batch=64, max_batch=64, max_batch_per_learner=8),
            "no batch from 64 to 64 can be shared by 3 to 4 learners in equal parts of at most 8",
        ),
        (elastic(max_learners=65), "elastic.max_learners"),
        (elastic(lr="cubic"), "elastic.lr"),
        (
            {**elastic(), "resources": {"learners": 5}},
            "resources.learners: 5 is outside of elastic, which allows 1 to 4",
        ),
        ({**elastic(), "checkpoints": None}, "checkpoints: is missing: at each change of its size"),
    ],
)
def test_what_is_wrong_is_named(raw: dict[str, Any], problem: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse(raw)
    assert problem in str(caught.value)


def test_it_has_as_few_learners_as_it_allows_until_the_platform_chooses() -> None:
    manifest = parse(elastic(min_learners=2))
    assert manifest.resources.learners == 2
    assert parse(manifest.canonical()) == manifest
    assert parse({**elastic(min_learners=2), "resources": {"learners": 3}}).resources.learners == 3


def test_sizes_that_share_no_batch_are_left_out() -> None:
    manifest = parse(elastic(min_batch=64, max_batch=64))
    assert manifest.elastic is not None
    assert manifest.elastic.sizes == (1, 2, 4)
    assert parse(elastic()).elastic.sizes == (1, 2, 3, 4)  # type: ignore[union-attr]


@pytest.mark.parametrize(("lr", "scale"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_the_learning_rate_grows_with_the_batch(lr: str, scale: float) -> None:
    manifest = parse(elastic(min_batch=32, max_batch=128, lr=lr))
    assert manifest.lr_scale(128) == scale
    assert manifest.lr_scale(32) == 1.0
    assert manifest.lr_scale(None) == 1.0
