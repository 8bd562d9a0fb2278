"""Data is judged as its suite says, and nothing that Great Expectations would pass over in silence is passed over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from updraft.exceptions import DataError
from updraft.validation import suite_digest, validate
from updraft_learner.trees import Tree, scan

CSV = "label,pixel\n0,1\n1,16\n12,3\n"


def data(folder: Path, **files: str | bytes) -> Tree:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    tree, _ = scan(folder)
    return tree


def suite(*expectations: tuple[str, dict[str, Any]], severity: str = "critical") -> dict[str, Any]:
    return {
        "name": "s",
        "expectations": [{"type": kind, "kwargs": kwargs, "severity": severity} for kind, kwargs in expectations],
    }


def between(column: str, low: float, high: float) -> tuple[str, dict[str, Any]]:
    return "expect_column_values_to_be_between", {"column": column, "min_value": low, "max_value": high}


def test_a_table_that_meets_its_suite_passes(tmp_path: Path) -> None:
    result = validate(tmp_path, data(tmp_path, t_csv=CSV), suite(between("label", 0, 12), between("pixel", 0, 16)))
    assert (result.success, result.evaluated, result.failed, result.rows) == (True, 2, (), 3)


def test_what_failed_is_said_with_column_bounds_and_examples(tmp_path: Path) -> None:
    result = validate(tmp_path, data(tmp_path, t_csv=CSV), suite(between("label", 0, 9)))
    assert not result.success
    assert result.failed == (
        "expect_column_values_to_be_between(column=label, max_value=9, min_value=0): "
        "1 of 3 values unexpected, such as 12",
    )


def test_a_missing_column_is_a_failure_with_its_message(tmp_path: Path) -> None:
    result = validate(tmp_path, data(tmp_path, t_csv=CSV), suite(between("labels", 0, 9)))
    assert not result.success
    assert "labels" in result.failed[0]


def test_an_expectation_that_is_only_a_warning_does_not_fail_the_data(tmp_path: Path) -> None:
    result = validate(tmp_path, data(tmp_path, t_csv=CSV), suite(between("label", 0, 9), severity="warning"))
    assert result.success
    assert len(result.warnings) == 1


def test_an_unknown_expectation_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="did you mean 'expect_column_values_to_be_between'"):
        validate(tmp_path, data(tmp_path, t_csv=CSV), suite(("expect_column_values_to_be_betwen", {"column": "label"})))


def test_an_empty_suite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no expectations"):
        validate(tmp_path, data(tmp_path, t_csv=CSV), {"name": "s", "expectations": []})


def test_an_argument_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    wrong = suite(("expect_column_values_to_be_between", {"colum": "label"}))
    with pytest.raises(DataError, match="suite cannot be used"):
        validate(tmp_path, data(tmp_path, t_csv=CSV), wrong)


def test_several_tables_of_the_same_columns_are_one(tmp_path: Path) -> None:
    tree = data(tmp_path, a_csv=CSV, b_csv=CSV)
    assert validate(tmp_path, tree, suite(("expect_table_row_count_to_equal", {"value": 6}))).success


def test_tables_of_other_columns_are_refused(tmp_path: Path) -> None:
    tree = data(tmp_path, a_csv=CSV, b_csv="x,y\n1,2\n")
    with pytest.raises(DataError, match=r"b\.csv has other columns than a\.csv"):
        validate(tmp_path, tree, suite(between("label", 0, 12)))


def test_an_image_folder_gets_a_table_of_its_files(tmp_path: Path) -> None:
    tree = data(tmp_path, cat__1_png=b"\x89PNG1", dog__2_png=b"\x89PNG2")
    labels = ("expect_column_values_to_be_in_set", {"column": "label", "value_set": ["cat", "dog"]})
    sizes = between("size_bytes", 1, 100)
    assert validate(tmp_path, tree, suite(labels, sizes)).success


def test_an_npz_is_a_row_per_sample_and_never_unpickled(tmp_path: Path) -> None:
    import numpy as np

    np.savez(tmp_path / "d.npz", label=np.array([0, 1]), image=np.arange(8).reshape(2, 2, 2))
    tree, _ = scan(tmp_path)
    assert validate(tmp_path, tree, suite(between("label", 0, 1), between("image_max", 3, 7))).success
    np.savez(tmp_path / "d.npz", label=np.array([{"evil": 1}], dtype=object))
    tree, _ = scan(tmp_path)
    with pytest.raises(DataError, match=r"d\.npz cannot be read"):
        validate(tmp_path, tree, suite(between("label", 0, 1)))


def test_a_broken_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"t\.parquet cannot be read as parquet"):
        validate(tmp_path, data(tmp_path, t_parquet="no parquet"), suite(between("label", 0, 1)))


def test_the_digest_is_of_what_is_asked_not_of_names_and_notes() -> None:
    one, other = suite(between("a", 0, 1)), suite(between("a", 0, 1))
    other["name"] = "other"
    other["expectations"][0]["meta"] = {"notes": "why"}
    assert suite_digest(one) == suite_digest(other)
    assert suite_digest(one) != suite_digest(suite(between("a", 0, 2)))


def test_importing_the_package_imports_neither_great_expectations_nor_pandas() -> None:
    code = "import sys, updraft.validation; print({'great_expectations', 'pandas'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
