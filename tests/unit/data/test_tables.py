"""What the expectations are about: files of a tree as one table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from updraft_data.table import read_table
from updraft_learner.prepare.errors import SourceError
from updraft_learner.prepare.select import needed_paths, select
from updraft_learner.trees import Tree, TreeFile, scan


def read(folder: Path, format: str = "auto") -> pd.DataFrame:
    tree, _ = scan(folder)
    return read_table(folder, select(tree, format))


def records(folder: Path, format: str = "auto") -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in read(folder, format).to_dict("records")]


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.tsv", "t.parquet", "t.jsonl", "t.json"])
def test_every_table_format_is_the_same_table(tmp_path: Path, name: str) -> None:
    table = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    path = tmp_path / name
    if ".parquet" in name:
        table.to_parquet(path)
    elif ".json" in name:
        table.to_json(path, orient="records", lines=name.endswith("l"))
    else:
        table.to_csv(path, index=False, sep="\t" if "tsv" in name else ",")
    assert records(tmp_path) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


def test_tables_of_the_same_columns_are_put_below_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    (tmp_path / "b.csv").write_text("y,x\n4,3\n")
    assert records(tmp_path) == [{"x": 1, "y": 2}, {"x": 3, "y": 4}]
    (tmp_path / "c.csv").write_text("x,z\n1,2\n")
    with pytest.raises(SourceError, match=r"c\.csv has other columns than a\.csv: it lacks y and has z besides"):
        read(tmp_path)


def test_arrays_become_columns_and_large_ones_facts_per_sample(tmp_path: Path) -> None:
    image = np.array([[[0.0, 1.0], [2.0, np.nan]], [[4.0, 5.0], [6.0, 7.0]]])
    np.savez(
        tmp_path / "d.npz", label=np.array([7, 8]), pixels=np.array([[1, 2], [3, 4]]), image=image, note=np.array(1)
    )
    table = read(tmp_path)
    assert list(table.columns) == [
        "label",
        "pixels_0",
        "pixels_1",
        "image_min",
        "image_max",
        "image_mean",
        "image_nonfinite",
    ]
    assert table["pixels_1"].tolist() == [2, 4]
    assert table["image_nonfinite"].tolist() == [1, 0]
    assert table["image_max"].tolist()[1] == 7.0


def test_arrays_that_are_no_table_or_hold_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros(3), y=np.zeros(2))
    with pytest.raises(SourceError, match=r"different lengths \(x 3, y 2\)"):
        read(tmp_path)
    np.savez(tmp_path / "d.npz", x=np.array([{"evil": 1}], dtype=object))
    with pytest.raises(SourceError, match=r"array 'x' of d\.npz holds Python objects, which are never read"):
        read(tmp_path)


def test_an_image_folder_becomes_a_row_per_file(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        (tmp_path / label / "1.PNG").write_bytes(label.encode())
    (tmp_path / "README.md").write_text("pets")
    tree, _ = scan(tmp_path)
    assert needed_paths(tree) == []
    table = read(tmp_path)
    assert list(table.columns) == ["path", "size_bytes", "sha256", "label", "extension"]
    assert table[["path", "size_bytes", "label", "extension"]].to_dict("records") == [
        {"path": "cat/1.PNG", "size_bytes": 3, "label": "cat", "extension": "png"},
        {"path": "dog/1.PNG", "size_bytes": 3, "label": "dog", "extension": "png"},
    ]
    assert len(read(tmp_path, "files")) == 3


def test_auto_never_guesses_between_formats(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("x\n1\n")
    (tmp_path / "1.png").write_bytes(b"x")
    (tmp_path / "digits.suite.json").write_text("{}")
    with pytest.raises(SourceError, match="holds 1 csv, 1 images files; say which one"):
        read(tmp_path)
    assert records(tmp_path, "csv") == [{"x": 1}]
    assert len(read(tmp_path, "images")) == 1
    with pytest.raises(SourceError, match=r"parquet was asked for, but no file ends in \.parquet, \.pq"):
        read(tmp_path, "parquet")
    with pytest.raises(SourceError, match="'tables' is not one of auto, csv"):
        read(tmp_path, "tables")


def test_unknown_files_get_a_table_of_files(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"x")
    assert read(tmp_path)["path"].tolist() == ["model.bin"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.parquet", b"no parquet", r"t\.parquet cannot be read as parquet"),
        ("t.npz", b"PK no zip", r"t\.npz cannot be read as npz"),
        ("t.csv", b"", r"t\.csv cannot be read as csv"),
        ("t.csv", b"a,b\n", r"t\.csv has no rows"),
        ("t.csv", b'a\n"x\n', r"t\.csv cannot be read as csv"),
        ("t.jsonl", b"{", r"t\.jsonl cannot be read as jsonl"),
    ],
)
def test_broken_and_empty_tables_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=message):
        read(tmp_path)


def test_no_files_and_far_too_many_bytes_are_refused() -> None:
    with pytest.raises(SourceError, match="there are no files"):
        select(Tree(()))
    with pytest.raises(SourceError, match="judge a part of the data"):
        select(Tree((TreeFile("t.csv", "a" * 64, 5 * 1024**3),)))
