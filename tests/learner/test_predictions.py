"""What an evaluation hands over of its predictions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import updraft_learner as updraft

parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def result_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RESULT_DIR", str(tmp_path))
    return tmp_path


def test_arrays_are_written_with_a_column_for_each_slice(result_dir: Path) -> None:
    np = pytest.importorskip("numpy")
    written = updraft.save_predictions(
        ids=range(3), labels=np.array([1, 0, 1]), scores=np.array([0.9, 0.2, 0.7]), site=["a", "a", "b"]
    )
    assert written == result_dir / "predictions.parquet"
    assert parquet.read_table(written).to_pydict() == {
        "id": ["0", "1", "2"],
        "label": [1, 0, 1],
        "score": [0.9, 0.2, 0.7],
        "site": ["a", "a", "b"],
    }


def test_columns_of_different_lengths_are_refused(result_dir: Path) -> None:
    with pytest.raises(ValueError, match="id: 2, label: 1, score: 2"):
        updraft.save_predictions(ids=[1, 2], labels=[0], scores=[0.1, 0.2])
    assert list(result_dir.iterdir()) == []


def test_without_pyarrow_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"add it to environment\.requirements"):
        updraft.save_predictions(ids=[], labels=[], scores=[])
