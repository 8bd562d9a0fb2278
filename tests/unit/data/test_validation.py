"""Data is judged as its suite says, and nothing that Great Expectations would pass over in silence is passed over."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from updraft_data.limited import validate_limited
from updraft_data.result import ValidationResult
from updraft_data.run import validate
from updraft_data.suite import suite_digest
from updraft_learner.prepare.errors import SourceError
from updraft_learner.trees import Tree, scan

CSV = "label,pixel\n0,1\n1,16\n12,3\n"


def data(folder: Path, files: dict[str, str | bytes]) -> Tree:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return scan(folder)[0]


def suite(*expectations: tuple[str, dict[str, Any]], severity: str = "critical") -> dict[str, Any]:
    return {
        "name": "s",
        "expectations": [{"type": kind, "kwargs": kwargs, "severity": severity} for kind, kwargs in expectations],
    }


def between(column: str, low: float, high: float) -> tuple[str, dict[str, Any]]:
    return "expect_column_values_to_be_between", {"column": column, "min_value": low, "max_value": high}


def rows(number: int) -> tuple[str, dict[str, Any]]:
    return "expect_table_row_count_to_equal", {"value": number}


def test_data_that_meets_its_suite_passes(tmp_path: Path) -> None:
    result = validate(tmp_path, data(tmp_path, {"t.csv": CSV}), suite(between("label", 0, 12), between("pixel", 0, 16)))
    assert result == ValidationResult(
        success=True,
        evaluated=2,
        statistics={"format": "csv", "files": 1, "rows": 3, "columns": 2, "expectations": 2},
        duration_seconds=result.duration_seconds,
        profile=result.profile,
    )
    assert result.profile is not None
    assert set(result.profile["columns"]) == {"label", "pixel"}
    assert json.loads(json.dumps(result.to_json()))["statistics"]["rows"] == 3


def test_what_failed_is_said_with_bounds_and_examples_in_the_order_of_the_suite(tmp_path: Path) -> None:
    asked = suite(
        rows(5),
        between("label", 0, 9),
        between("labels", 0, 9),
        ("expect_column_to_exist", {"column": "zz"}),
        ("expect_column_mean_to_be_between", {"column": "pixel", "min_value": 10}),
        ("expect_table_columns_to_match_set", {"column_set": ["label", "text"]}),
        ("expect_column_values_to_be_in_set", {"column": "label", "value_set": [0, 1]}),
    )
    result = validate(tmp_path, data(tmp_path, {"t.csv": CSV}), asked)
    assert (result.success, result.evaluated) == (False, 7)
    assert result.failed == (
        "expect_table_row_count_to_equal(value=5): observed 3",
        "expect_column_values_to_be_between(column=label, 0..9): 1 of 3 values unexpected, e.g. 12",
        "expect_column_values_to_be_between(column=labels, 0..9): there is no column labels; there are label, pixel",
        "expect_column_to_exist(column=zz): there is no column zz; there are label, pixel",
        "expect_column_mean_to_be_between(column=pixel, 10..): observed 6.66667",
        "expect_table_columns_to_match_set(column_set=[label, text]): unexpected: pixel; missing: text",
        "expect_column_values_to_be_in_set(column=label, value_set=[0, 1]): 1 of 3 values unexpected, e.g. 12",
    )


def test_expectations_about_the_same_thing_do_not_replace_each_other(tmp_path: Path) -> None:
    result = validate(tmp_path, data(tmp_path, {"t.csv": CSV}), suite(rows(3), rows(4), rows(3)))
    assert (result.evaluated, result.failed) == (3, ("expect_table_row_count_to_equal(value=4): observed 3",))


def test_an_expectation_that_breaks_is_a_failure_with_its_message(tmp_path: Path) -> None:
    asked = suite(("expect_column_values_to_match_json_schema", {"column": "label", "json_schema": {"type": 1}}))
    result = validate(tmp_path, data(tmp_path, {"t.csv": "label\na\nb\n"}), asked)
    assert not result.success
    assert "could not be evaluated" in result.failed[0]


def test_an_expectation_that_is_only_a_warning_does_not_fail_the_data(tmp_path: Path) -> None:
    result = validate(tmp_path, data(tmp_path, {"t.csv": CSV}), suite(between("label", 0, 9), severity="warning"))
    assert result.success
    assert len(result.warnings) == 1


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (suite(("expect_column_values_to_be_betwen", {})), "such as expect_column_values_to_be_between"),
        ({"name": "s", "expectations": []}, "lists no expectation"),
        ({"name": "s"}, "lists no expectation"),
        (suite(("expect_column_values_to_be_unique", {"colum": "label"})), "takes no colum.*such as column"),
        ({"expectations": [{"kwargs": {}}]}, r"expectations\[0\]: the expectation has no type"),
        (
            {"expectations": [{"type": "expect_column_to_exist", "kwargs": []}]},
            r"expectations\[0\]\.kwargs: the kwargs are not a mapping",
        ),
        (suite(rows(1), severity="fatal"), "'fatal' is not a severity; write one of critical, warning, info"),
    ],
)
def test_a_suite_that_cannot_be_meant_is_refused(tmp_path: Path, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        validate(tmp_path, data(tmp_path, {"t.csv": CSV}), asked)


def test_everything_wrong_with_a_suite_is_said_at_once(tmp_path: Path) -> None:
    asked = suite(("expect_nothing_at_all", {}), ("expect_column_to_exits", {}))
    with pytest.raises(SourceError, match=r"expectations\[0\].*expectations\[1\]"):
        validate(tmp_path, data(tmp_path, {"t.csv": CSV}), asked)


def test_the_digest_is_of_what_is_asked_not_of_names_and_notes() -> None:
    one, other = suite(between("a", 0, 1)), suite(between("a", 0, 1))
    other["name"] = "other"
    other["expectations"][0]["meta"] = {"notes": "why"}
    assert suite_digest(one, "auto") == suite_digest(other, "auto")
    assert suite_digest(one, "auto") != suite_digest(suite(between("a", 0, 2)), "auto")
    assert suite_digest(one, "auto") != suite_digest(one, "csv")


def test_data_is_judged_in_a_process_of_its_own(tmp_path: Path) -> None:
    tree = data(tmp_path, {"t.csv": CSV, "README.md": "hello"})
    limits = {"memory_bytes": 4 * 1024**3, "seconds": 300}
    judged = validate_limited(tmp_path, tree, suite(rows(3), between("label", 0, 9)), **limits)
    assert (judged.success, judged.evaluated, len(judged.failed)) == (False, 2, 1)
    assert validate_limited(tmp_path / "no files are read", tree, suite(rows(2)), format="files", **limits).success


def test_the_tasks_of_a_job_import_neither_great_expectations_nor_pandas() -> None:
    imports = "import sys, updraft.operators.stage, updraft.storage.prepared"
    code = f"{imports}; print({{'great_expectations', 'pandas'}} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
