"""The comparison of two models' predictions: its numbers, what it refuses, and its report."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from updraft_data.compare import compare, main
from updraft_data.gate import Check, CompareRequest, Comparison, GateRules, Score, judge, verdict
from updraft_data.report import render
from updraft_data.scores import NoScore, measure, scorer

ROWS = 400
EVIL = "<script>alert(1)</script> $x^2$ & 'q'"


def request(**rules: Any) -> CompareRequest:
    return CompareRequest(
        rules=GateRules.model_validate({"metric": "accuracy", **rules}), model="digits version 2", champion="1"
    )


def predictions(hits: float, seed: int = 0, rows: int = ROWS) -> pd.DataFrame:
    """Predictions of digits, of which about this share is right."""
    rng = np.random.default_rng(7)
    label = rng.integers(0, 10, rows)
    wrong = np.random.default_rng(seed).random(rows) >= hits
    site = np.where(np.arange(rows) % 4 == 0, "berlin", "paris")
    score = np.where(wrong, (label + 1) % 10, label)
    return pd.DataFrame({"id": [f"row-{n}" for n in range(rows)], "label": label, "score": score, "site": site})


def folder(path: Path, ours: pd.DataFrame | None, theirs: pd.DataFrame | None = None, **exports: Any) -> Path:
    for name, table in (("challenger", ours), ("champion", theirs)):
        (path / name).mkdir(exist_ok=True)
        if table is not None:
            table.to_parquet(path / name / "predictions.parquet")
        if name in exports:
            (path / name / "export.json").write_text(json.dumps(exports[name]))
    return path


def export(size: int = 1_000, p95_ms: float = 2.0, dtype: str = "float32") -> dict[str, Any]:
    tensor = {"name": "x", "dtype": dtype, "shape": [-1, 64]}
    return {
        "files": {"model.onnx": {"size": size}},
        "formats": {"onnx": {"latency": {"p95_ms": p95_ms}}},
        "signature": {"inputs": [tensor], "outputs": [tensor]},
    }


def checks(asked: CompareRequest, path: Path) -> dict[str, Check]:
    return {check.name: check for check in judge(asked, compare(asked, path).comparison)}


# --- metrics ---------------------------------------------------------------------------------------------------------


def value(metric: str, label: Any, score: Any) -> float:
    rows = np.arange(len(label))
    return scorer(metric, np.array(label), np.array(score))(rows)


def test_metrics_are_those_of_their_definitions() -> None:
    assert value("accuracy", [1, 2, 3, 4], [1, 2, 0, 4]) == 0.75
    assert value("accuracy", ["a", "b"], ["a", "a"]) == 0.5
    assert value("accuracy", [0, 1, 1], [0.2, 0.7, 0.4]) == pytest.approx(2 / 3)
    assert value("f1", [0, 0, 1, 1], [0, 1, 1, 1]) == pytest.approx((2 / 3 + 0.8) / 2)
    assert value("auc", [0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]) == 0.75
    assert value("auc", [0, 1], [0.5, 0.5]) == 0.5
    assert value("mae", [1.0, 2.0], [2.0, 4.0]) == 1.5
    assert value("rmse", [0.0, 0.0], [3.0, 4.0]) == pytest.approx(12.5**0.5)
    assert value("brier", [0, 1], [0.2, 0.6]) == pytest.approx(0.1)
    assert value("log_loss", [0, 1], [0.5, 0.5]) == pytest.approx(np.log(2))
    assert value("log_loss", [1], [0.0]) == pytest.approx(-np.log(1e-15))


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 20)), min_size=2, max_size=40).filter(
        lambda rows: len({label for label, _ in rows}) == 2
    )
)
@hypothesis_settings(deadline=None)
def test_auc_is_the_share_of_pairs_in_the_right_order(rows: list[tuple[int, int]]) -> None:
    ones = [s for label, s in rows if label == 1]
    zeros = [s for label, s in rows if label == 0]
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in ones for b in zeros]
    labels, scores = zip(*rows, strict=True)
    assert value("auc", labels, [float(s) for s in scores]) == pytest.approx(sum(pairs) / len(pairs))


@pytest.mark.parametrize(
    ("metric", "label", "score", "problem"),
    [
        ("accuracy", [1, 2], ["1", "2"], "of two types"),
        ("accuracy", [1, 2], [0.3, 0.7], "score has fractions"),
        ("auc", [1, 2], [0.3, 0.7], "other values than 0 and 1"),
        ("brier", [0, 1], [0.3, 1.7], "a probability from 0 to 1"),
        ("mae", ["a"], [1.0], "label is no number"),
    ],
)
def test_values_without_a_meaning_for_the_metric_are_refused(
    metric: str, label: list[Any], score: list[Any], problem: str
) -> None:
    with pytest.raises(NoScore, match=problem):
        scorer(metric, np.array(label), np.array(score))


def test_the_interval_holds_the_true_difference_about_as_often_as_it_says() -> None:
    held = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        label = rng.random(200)
        ours, theirs = label + rng.normal(0, 0.1, 200), label + rng.normal(0.05, 0.1, 200)
        true = 0.1**2 + 0.05**2 - 0.1**2  # of the mean squared errors, of which rmse is the root; brier has no root
        one, other = (lambda rows, e=(p - label) ** 2: float(e[rows].mean()) for p in (ours, theirs))
        found = measure("brier", one, other, np.arange(200), 0.9).score
        assert found.low is not None
        assert found.high is not None
        held += found.low <= true <= found.high
    assert 80 <= held <= 98


# --- comparisons -----------------------------------------------------------------------------------------------------


def test_a_better_model_beats_the_champion(tmp_path: Path) -> None:
    asked = request(threshold=0.9, margin=0.0, slices=[{"column": "site", "margin": -0.05}])
    found = checks(asked, folder(tmp_path, predictions(0.95, 1), predictions(0.8, 2)))
    assert {name: check.passed for name, check in found.items()} == {
        "accuracy": True,
        "champion": True,
        "slice site=berlin": True,
        "slice site=paris": True,
        "signature": True,
    }
    assert re.match(r"better than version 1 by 0\.1\d* \(95% interval of the difference \+0\.", found["champion"].text)


def test_a_model_that_is_as_good_is_not_surely_better(tmp_path: Path) -> None:
    path = folder(tmp_path, predictions(0.9, 1), predictions(0.9, 2))
    assert not checks(request(margin=0.0), path)["champion"].passed
    assert checks(request(margin=-0.1), path)["champion"].passed


def test_an_error_counts_the_other_way_round(tmp_path: Path) -> None:
    ours, theirs = predictions(1.0), predictions(0.7, 2)
    found = checks(request(metric="mae", threshold=0.1, margin=0.0), folder(tmp_path, ours, theirs))
    assert found["mae"].passed
    assert found["champion"].passed


def test_a_slice_that_is_much_worse_is_named(tmp_path: Path) -> None:
    ours, theirs = predictions(0.95, 1), predictions(0.9, 2)
    ours.loc[ours["site"] == "berlin", "score"] = 77
    found = checks(request(slices=[{"column": "site", "margin": -0.05}]), folder(tmp_path, ours, theirs))
    assert not found["slice site=berlin"].passed
    assert found["slice site=paris"].passed


@pytest.mark.parametrize(
    ("rule", "name", "text"),
    [
        ({"values": ["berlin", "rome"]}, "slice site=rome", "empty: it has 0 of 30 rows"),
        ({"least_rows": 350}, "slice site", "empty: no value has 350 rows"),
    ],
)
def test_an_empty_slice_is_an_outcome(tmp_path: Path, rule: dict[str, Any], name: str, text: str) -> None:
    asked = request(slices=[{"column": "site", "threshold": 0.5, **rule}])
    check = checks(asked, folder(tmp_path, predictions(0.9), predictions(0.9)))[name]
    assert (check.passed, check.text) == (False, text)


def ids_differ(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(id=[*table["id"][:-1], "another"])


@pytest.mark.parametrize(
    ("theirs", "problem"),
    [
        (None, "evaluate wrote no RESULT_DIR/predictions.parquet"),
        (ids_differ(predictions(0.9)), "judged different rows: 1 ids are only in the new model's, 1 only in"),
        (predictions(0.9).assign(label=3), "different labels in"),
        (predictions(0.9).drop(columns="score"), "has no column score; it has id, label, site"),
    ],
)
def test_predictions_of_the_champion_that_do_not_match_are_an_outcome(
    tmp_path: Path, theirs: pd.DataFrame | None, problem: str
) -> None:
    found = checks(request(threshold=0.5, margin=0.0), folder(tmp_path, predictions(0.9), theirs))
    assert found["accuracy"].passed
    assert not found["champion"].passed
    assert found["champion"].text.startswith("cannot be compared with version 1: ")
    assert problem in found["champion"].text


@pytest.mark.parametrize(
    ("ours", "problem"),
    [
        (None, "evaluate wrote no RESULT_DIR/predictions.parquet"),
        (predictions(0.9).assign(id="same"), "id 'same' occurs twice; ids must be unique"),
        (predictions(0.9).assign(score=[None, *range(ROWS - 1)]), "score has empty values"),
        (predictions(0.9).assign(score=[[1]] * ROWS), "score has values of type list<"),
        (predictions(0.9)[:0], "has 0 rows"),
        (predictions(0.9).drop(columns="site"), "has no column site"),
        (predictions(0.9).assign(site=[f"s{n}" for n in range(ROWS)]), "it has 400 values, and at most 50"),
    ],
)
def test_predictions_that_cannot_be_judged_are_an_outcome(
    tmp_path: Path, ours: pd.DataFrame | None, problem: str
) -> None:
    asked = request(threshold=0.5, slices=[{"column": "site", "threshold": 0.5, "least_rows": 2}])
    found = compare(asked, folder(tmp_path, ours))
    assert found.comparison.error is not None
    assert problem in found.comparison.error
    passed, reason = verdict(judge(asked, found.comparison))
    assert not passed
    assert reason == f"predictions: {found.comparison.error}"
    render(asked, found, judge(asked, found.comparison))


def test_a_file_that_is_no_parquet_is_an_outcome(tmp_path: Path) -> None:
    path = folder(tmp_path, None)
    (path / "challenger" / "predictions.parquet").write_bytes(b"PAR1 nothing PAR1")
    assert compare(request(threshold=0.5), path).comparison.error == (
        "predictions.parquet is no readable Parquet file: ArrowInvalid"
    )


def test_size_latency_and_signature_of_the_exported_model(tmp_path: Path) -> None:
    ours = export(size=3_000_000, p95_ms=7.5, dtype="float64")
    path = folder(tmp_path, predictions(0.9), predictions(0.9), challenger=ours, champion=export())
    found = checks(request(latency_ms=5.0, size_bytes=5_000_000), path)
    assert (found["latency"].passed, found["size"].passed, found["signature"].passed) == (False, True, False)
    assert found["latency"].text == "7.5 ms for one call (95th percentile), at most 5 is asked"
    assert found["signature"].text.startswith("incompatible: inputs were x float32[-1, 64], and are x float64[-1, 64]")
    assert "signature" not in checks(request(size_bytes=1, new_signature="accept"), path)


@pytest.mark.parametrize(
    "damage", [b"{", b"[]", b'{"files": 3}', b'{"files": {}, "formats": {"onnx": {"latency": 1}}}']
)
def test_a_report_of_the_export_that_cannot_be_read_is_as_none(tmp_path: Path, damage: bytes) -> None:
    path = folder(tmp_path, predictions(0.9))
    (path / "challenger" / "export.json").write_bytes(damage)
    assert checks(request(latency_ms=5.0), path)["latency"].text == "the export did not measure it"


def test_what_the_manifest_requires_besides() -> None:
    asked = request(require=["validated_data", "verified_model"]).model_copy(update={"trusted": True})
    found = {check.name: check.passed for check in judge(asked, Comparison())}
    assert found == {"signature": True, "validated data": False, "verified model": False}


@given(
    st.builds(
        Score,
        rows=st.integers(0, 10**6),
        challenger=st.none() | st.floats(0, 1),
        champion=st.none() | st.floats(0, 1),
        better=st.none() | st.floats(-1, 1),
        low=st.none() | st.floats(-1, 1),
        high=st.none() | st.floats(-1, 1),
    ),
    st.none() | st.text(max_size=20),
    st.floats(-1, 1),
)
def test_a_gate_with_a_margin_is_passed_only_by_a_whole_interval_above_it(
    overall: Score, problem: str | None, margin: float
) -> None:
    found = Comparison(problem=problem, overall=overall)
    passed, _ = verdict(judge(request(margin=margin), found))
    complete = None not in (overall.better, overall.low, overall.high)
    assert passed == (problem is None and complete and overall.low is not None and overall.low >= margin)


# --- the report ------------------------------------------------------------------------------------------------------


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        self.seen += [f"@{name}" for name, _ in attrs if name.startswith("on") or name in ("src", "srcdoc")]


@pytest.mark.parametrize("metric", ["accuracy", "mae", "brier"])
def test_the_report_shows_what_tenants_write_as_text_only(tmp_path: Path, metric: str) -> None:
    rng = np.random.default_rng(3)
    ours = predictions(0.9, 1).assign(site=EVIL)
    if metric == "brier":
        ours = ours.assign(label=rng.integers(0, 2, ROWS), score=rng.random(ROWS))
    elif metric == "accuracy":
        ours = ours.assign(label=EVIL, score=EVIL)
    asked = request(metric=metric, margin=0.0, slices=[{"column": "site", "margin": -0.5}])
    found = compare(asked, folder(tmp_path, ours, ours))
    assert found.comparison.error is None
    page = render(asked, found, judge(asked, found.comparison))
    tags = Tags()
    tags.feed(page)
    assert "script" not in tags.seen
    assert [tag for tag in tags.seen if tag.startswith("@")] == []
    assert page.count("<svg") == 3
    assert "&lt;script&gt;" in page


def test_a_report_without_a_champion(tmp_path: Path) -> None:
    asked = request(threshold=0.5).model_copy(update={"champion": None})
    found = compare(asked, folder(tmp_path, predictions(0.9)))
    page = render(asked, found, judge(asked, found.comparison))
    assert "There is no champion to compare with" in page


def test_the_program_reads_and_writes_the_folders_of_its_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder(tmp_path, predictions(0.95, 1), predictions(0.8, 2))
    (tmp_path / "request.json").write_text(request(margin=0.0).model_dump_json())
    (tmp_path / "result").mkdir()
    monkeypatch.setenv("DATA_DIR", str(tmp_path))
    monkeypatch.setenv("RESULT_DIR", str(tmp_path / "result"))
    assert main() == 0
    found = Comparison.model_validate_json((tmp_path / "result" / "comparison.json").read_bytes())
    assert verdict(judge(request(margin=0.0), found))[0]
    assert (tmp_path / "result" / "report.html").is_file()
    assert capsys.readouterr().out.endswith("compare: the gate is passed\n")


def test_the_reason_has_what_does_not_hold_or_else_what_is_about_all_rows(tmp_path: Path) -> None:
    path = folder(tmp_path, predictions(0.95, 1), predictions(0.8, 2))
    asked = request(margin=0.0, slices=[{"column": "site", "margin": -0.05}])
    passed, reason = verdict(judge(asked, compare(asked, path).comparison))
    assert passed
    assert reason.startswith("champion: better than version 1 by ")
    assert reason.endswith("; 3 more rules hold")
    asked = request(margin=0.5, slices=[{"column": "site", "margin": -0.05}])
    passed, reason = verdict(judge(asked, compare(asked, path).comparison))
    assert not passed
    assert reason.startswith("champion: better than version 1 by ")
    assert reason.endswith(" rows, margin +0.5)")
