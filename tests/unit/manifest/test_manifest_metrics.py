"""The manifest's `metrics`: what is read, and one error for each field that is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from updraft.manifest import ManifestError, parse
from updraft_learner.collectors import MACROS, compiled, number
from updraft_learner.contract import Collector

GOOD = {"type": "regex", "pattern": "step %{INT:step}: loss %{FLOAT:loss}"}


def job(*metrics: Any) -> dict[str, Any]:
    return {"name": "a", "framework": {"name": "pytorch"}, "command": "python train.py", "metrics": list(metrics)}


def errors_of(*metrics: Any) -> dict[str, str]:
    with pytest.raises(ManifestError) as caught:
        parse(job(*metrics))
    return {field.path: field.text for field in caught.value.fields}


def test_each_type_becomes_a_collector() -> None:
    manifest = parse(
        job(
            {**GOOD, "values": {"train/loss": "loss"}, "lines": 3, "prefix": "a", "from": "logs/*.txt"},
            {"type": "tensorboard", "from": "$JOB_STATE_DIR/logs/tb"},
            {"type": "jsonl", "step": "it"},
        )
    )
    assert [item.collector() for item in manifest.metrics] == [
        Collector("regex", "logs/*.txt", GOOD["pattern"], {"train/loss": "loss"}, None, 3, "a"),
        Collector("tensorboard", "$JOB_STATE_DIR/logs/tb"),
        Collector("jsonl", step="it"),
    ]


@pytest.mark.parametrize(
    ("changes", "path", "text"),
    [
        ({"pattern": None}, "metrics[0].pattern", "is missing"),
        ({"pattern": "loss (?P<loss>"}, "metrics[0].pattern", "is refused: missing"),
        ({"pattern": r"(?P<a>x)\1"}, "metrics[0].pattern", "is refused: invalid escape sequence"),
        ({"pattern": "(?=x)(?P<a>x)"}, "metrics[0].pattern", "is refused: invalid perl operator"),
        ({"pattern": "%{FLAOT:a}"}, "metrics[0].pattern", "%{FLAOT} does not exist; there are FLOAT"),
        ({"pattern": "loss .*"}, "metrics[0].pattern", "names no group"),
        ({"pattern": "%{INT:step}"}, "metrics[0].pattern", "has a group for the step alone"),
        ({"pattern": "%{INT:a}" * 200}, "metrics[0].pattern", "at most 500"),
        ({"step": "iteration"}, "metrics[0].step", "'iteration' is no group of the pattern"),
        ({"values": {"x": "lost"}}, "metrics[0].values.x", "'lost' is no group of the pattern"),
        ({"values": {"": "loss"}}, "metrics[0].values", ""),
        ({"lines": 0}, "metrics[0].lines", ""),
        ({"lines": 21}, "metrics[0].lines", ""),
        ({"from": "../x"}, "metrics[0].from", "is no glob below a folder of the job"),
        ({"from": "/etc/*"}, "metrics[0].from", "is no glob below a folder of the job"),
        ({"from": "$HOME/x"}, "metrics[0].from", "begins with an unknown variable"),
        ({"from": "$LOG_DIR/$LOG_DIR"}, "metrics[0].from", "is no glob below a folder of the job"),
        ({"from": "**/x"}, "metrics[0].from", "is no glob below a folder of the job"),
        ({"prefix": ""}, "metrics[0].prefix", ""),
        ({"type": "tensorboard"}, "metrics[0].pattern", "means nothing for tensorboard"),
        ({"typ": "x"}, "metrics[0].typ", ""),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], path: str, text: str) -> None:
    assert text in errors_of({**GOOD, **changes})[path]


def test_tensorboard_needs_a_folder_and_no_step() -> None:
    assert list(errors_of({"type": "tensorboard", "step": "x"})) == ["metrics[0].from", "metrics[0].step"]


@pytest.mark.parametrize(
    ("macro", "text"),
    [
        ("FLOAT", "1"), ("FLOAT", "-.5e-3"), ("FLOAT", "nan"), ("FLOAT", "-inf"), ("INT", "+12"), ("HEX", "0x1F"),
        ("INT_ANY", "0x10"), ("INT_ANY", "017"),
    ],
)  # fmt: skip
def test_a_macro_matches_what_python_prints(macro: str, text: str) -> None:
    found = compiled(f"^%{{{macro}:value}}$").search(text)
    assert found is not None
    assert number(found["value"]) is not None


@pytest.mark.parametrize("text", ["2026-11-27T10:00:00.123Z", "2026-11-27 10:00:00,123", "2026-11-27T10:00:00+01:00"])
def test_times_are_matched(text: str) -> None:
    assert compiled("^%{TIMESTAMP:t}$").search(text) is not None


def test_every_macro_compiles() -> None:
    for name in MACROS:
        assert compiled(f"%{{{name}:a}} %{{{name}}}").groupindex.keys() == {"a"}
