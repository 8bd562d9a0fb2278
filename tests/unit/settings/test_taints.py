"""Taints: whom they keep away."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from updraft.taints import EFFECTS, GPU_TAINT, Toleration, untolerated
from updraft_localnode.affinity import repelled_by

TAINT = {"key": "dedicated", "value": "training", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("text", "covers"),
    [
        ("dedicated", True),
        ("dedicated=training", True),
        ("dedicated:NoSchedule", True),
        ("dedicated=training:NoSchedule", True),
        ("dedicated=", False),
        ("dedicated=other", False),
        ("dedicated:NoExecute", False),
        ("other", False),
    ],
)
def test_a_toleration_covers_what_it_names(text: str, covers: bool) -> None:
    assert Toleration.parse(text).covers(TAINT) == covers


@pytest.mark.parametrize("text", ["", "=x", "a=b=c", "a:Never", "a b", "a:", "Upper/key", "-a"])
def test_what_is_no_taint_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no taint, such as dedicated"):
        Toleration.parse(text)


def test_an_empty_value_is_a_value() -> None:
    assert Toleration.parse("gone=").covers({"key": "gone", "effect": "NoExecute"})
    assert Toleration.parse("gone=").to_object() == {"key": "gone", "operator": "Equal", "value": ""}
    assert Toleration.parse("a=b:NoExecute").to_object() == {
        "key": "a",
        "operator": "Equal",
        "value": "b",
        "effect": "NoExecute",
    }
    assert GPU_TAINT.to_object() == {"key": "nvidia.com/gpu", "operator": "Exists"}


keys = st.sampled_from(["a", "b", "nvidia.com/gpu"])
values = st.sampled_from([None, "", "x", "y"])
effects = st.sampled_from(EFFECTS)
taints = st.builds(
    lambda key, value, effect: {"key": key, "effect": effect} | ({} if value is None else {"value": value}),
    keys,
    values,
    effects,
)


@given(st.lists(taints, max_size=4), st.lists(st.builds(Toleration, keys, values, st.none() | effects), max_size=3))
def test_a_scheduler_that_reads_the_pods_agrees(on_node: list[dict[str, str]], tolerated: list[Toleration]) -> None:
    node = {"spec": {"taints": on_node}}
    pod = {"spec": {"tolerations": [each.to_object() for each in tolerated]}}
    assert (repelled_by(pod, on_node) is None) == (not untolerated(node, tolerated))
