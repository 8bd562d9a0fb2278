"""The section `export.gate`: what it becomes, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from updraft.manifest import ManifestError, parse

BASE: dict[str, Any] = {
    "name": "digits",
    "framework": {"name": "pytorch"},
    "code": "s3://code/digits/",
    "command": "python train.py",
    "evaluate": {"command": "python evaluate.py"},
}


def manifest(gate: dict[str, Any], export: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return {**BASE, "export": {"register_as": "digits", **(export or {}), "gate": gate}, **changes}


def test_the_rules_are_what_the_pod_gets() -> None:
    gate = {
        "metric": "accuracy",
        "threshold": 0.9,
        "margin": -0.01,
        "slices": [{"column": "site", "values": ["berlin"], "margin": -0.05}],
        "latency_ms": 20,
        "size": "20MB",
        "require": ["verified_model"],
    }
    parsed = parse(manifest(gate))
    assert parsed.export is not None
    assert parsed.export.gate is not None
    rules = parsed.export.gate.rules
    assert rules.size_bytes == 20_000_000
    assert (rules.threshold, rules.margin, rules.confidence, rules.latency_ms) == (0.9, -0.01, 0.95, 20.0)
    assert (rules.slices[0].column, rules.slices[0].values, rules.slices[0].least_rows) == ("site", ("berlin",), 30)
    assert rules.compares
    assert parse(parsed.canonical()) == parsed


@pytest.mark.parametrize(
    ("raw", "field", "words"),
    [
        (manifest({"metric": "accuracy"}), "export.gate", "has no rule"),
        (manifest({"metric": "acc", "margin": 0}), "export.gate.metric", "accuracy"),
        (manifest({"metric": "auc", "margin": 0}, evaluate=None), "export.gate", "no command writes predictions"),
        (manifest({"metric": "auc", "margin": 0}, {"register_as": None}), "export.gate", "nothing is registered"),
        (manifest({"metric": "auc", "margin": 0, "confidence": 95}), "export.gate.confidence", "0.999"),
        (manifest({"metric": "auc", "slices": [{"column": "a"}]}), "export.gate.slices[0].threshold", "margin"),
        (
            manifest({"metric": "auc", "latency_ms": 5}, {"formats": ["mlflow"], "trust_code": True}),
            "export.gate.latency_ms",
            "trust_code",
        ),
        (
            manifest({"metric": "auc", "require": ["verified_model"]}, {"formats": ["mlflow"], "trust_code": True}),
            "export.gate.require",
            "trust_code",
        ),
        (
            manifest({"metric": "auc", "require": ["validated_data"]}, data=[{"source": "s3://a/b/"}]),
            "export.gate.require",
            "expectations",
        ),
    ],
)
def test_a_wrong_gate_is_named(raw: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse(raw)
    assert [each for each in caught.value.fields if each.path == field and words in each.text]
