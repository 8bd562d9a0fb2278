"""Files of a data set become one pandas table: a table file's rows, or a row per file.

Several table files of the same columns are put one below the other. An image folder, or anything else, gets a generated
table of files: path, size_bytes, sha256, extension, label (the folder that holds the file).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from updraft.exceptions import DataError
from updraft_learner.trees import Tree

if TYPE_CHECKING:
    import pandas as pd

FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".npz": "npz",
}


def format_of(tree: Tree, asked: str) -> tuple[str, tuple[str, ...]]:
    """The format that a data set is read as, and the paths of its files of that format.

    `auto` takes the one table format that is there; without any, or with several, a table of files is made.
    """
    paths: dict[str, list[str]] = {}
    for file in tree.files:
        kind = FORMATS.get(PurePosixPath(file.path).suffix.lower())
        if kind is not None:
            paths.setdefault(kind, []).append(file.path)
    if asked in ("files", "images"):
        return "files", ()
    if asked == "auto":
        if len(paths) == 1:
            kind, found = next(iter(paths.items()))
            return kind, tuple(sorted(found))
        return "files", ()
    if asked not in paths:
        endings = ", ".join(sorted(end for end, kind in FORMATS.items() if kind == asked))
        raise DataError(f"data.format: {asked}, but the data set has no file that ends in {endings}")
    return asked, tuple(sorted(paths[asked]))


def read_table(folder: Path, tree: Tree, kind: str, paths: Sequence[str]) -> pd.DataFrame:
    """The table of a data set whose files lie below `folder`. Raises DataError for a file that cannot be read."""
    import pandas as pd

    if kind == "files":
        return _file_table(tree)
    parts = []
    for path in paths:
        try:
            parts.append(_read(folder / path, kind))
        except (ValueError, OSError, KeyError) as exc:
            raise DataError(f"{path} cannot be read as {kind}: {str(exc).splitlines()[0][:200]}") from exc
    first = list(parts[0].columns)
    for path, part in zip(paths, parts, strict=True):
        if list(part.columns) != first:
            differing = sorted({str(c) for c in part.columns} ^ {str(c) for c in first})[:5]
            raise DataError(
                f"{path} has other columns than {paths[0]} ({', '.join(differing)}); they are one table only"
            )
    return parts[0] if len(parts) == 1 else pd.concat(parts, ignore_index=True)


def _read(path: Path, kind: str) -> pd.DataFrame:
    import pandas as pd

    if kind == "csv":
        return pd.read_csv(path, sep="\t" if path.suffix.lower() == ".tsv" else ",")
    if kind == "parquet":
        return pd.read_parquet(path)
    if kind == "jsonl":
        return pd.read_json(path, lines=True)
    return _read_npz(path)


def _read_npz(path: Path) -> pd.DataFrame:
    """A row per sample: one-dimensional arrays as they are, larger ones as minimum, maximum and mean of each sample."""
    import numpy as np
    import pandas as pd

    columns: dict[str, object] = {}
    with np.load(path, allow_pickle=False) as arrays:  # a pickle would run its author's code
        for name in arrays.files:
            array = arrays[name]
            if array.ndim == 1:
                columns[name] = array
            elif array.ndim > 1:
                flat = array.reshape(len(array), -1)
                columns |= {f"{name}_min": flat.min(1), f"{name}_max": flat.max(1), f"{name}_mean": flat.mean(1)}
    lengths = {name: len(column) for name, column in columns.items()}  # type: ignore[arg-type]
    if len(set(lengths.values())) > 1:
        raise ValueError(f"its arrays differ in length: {lengths}")
    return pd.DataFrame(columns)


def _file_table(tree: Tree) -> pd.DataFrame:
    import pandas as pd

    rows = [
        {
            "path": file.path,
            "size_bytes": file.size,
            "sha256": file.sha256,
            "extension": PurePosixPath(file.path).suffix.lower(),
            "label": PurePosixPath(file.path).parent.name,
        }
        for file in tree.files
    ]
    return pd.DataFrame(rows, columns=["path", "size_bytes", "sha256", "extension", "label"])
