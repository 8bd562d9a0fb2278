"""Read the file `predictions.parquet` that an evaluation writes: one row for each example of the held-out data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

FILE = "predictions.parquet"
COLUMNS = ("id", "label", "score")
MOST_ROWS = 1_000_000
SHOWN = 10


class BadPredictions(ValueError):
    """A file that cannot be judged; the message says why and what to do."""


@dataclass(frozen=True)
class Pair:
    """The predictions of both models, in the same order of `id`. `champion`: None without one."""

    challenger: pd.DataFrame
    champion: pd.DataFrame | None


def read(path: Path, slices: Sequence[str]) -> pd.DataFrame:
    """Return the columns `id`, `label`, `score` and those of `slices`, ordered by `id`.

    Raises BadPredictions.
    """
    import pyarrow

    if not path.is_file():
        needed = "write one row for each example, with id, label, score"
        raise BadPredictions(f"evaluate wrote no RESULT_DIR/{FILE}; {needed}")
    try:
        table = _table(path, list(dict.fromkeys((*COLUMNS, *slices))))
    except (pyarrow.ArrowException, OSError) as exc:
        raise BadPredictions(f"{FILE} is no readable Parquet file: {type(exc).__name__}") from exc
    empty = [name for name in COLUMNS if table[name].isna().any()]
    if empty:
        raise BadPredictions(f"{FILE}: {', '.join(empty)} has empty values; write a value for each row")
    table["id"] = table["id"].astype(str)
    twice = table["id"].duplicated()
    if twice.any():
        raise BadPredictions(f"{FILE}: id {table['id'][twice].iloc[0][:50]!r} occurs twice; ids must be unique")
    ordered: pd.DataFrame = table.sort_values("id", ignore_index=True)
    return ordered


def _table(path: Path, wanted: list[str]) -> pd.DataFrame:
    import pyarrow.parquet as parquet

    file = parquet.ParquetFile(path)
    known = file.schema_arrow
    missing = [name for name in wanted if name not in known.names]
    if missing:
        shown = ", ".join(str(name)[:50] for name in known.names[:SHOWN])
        raise BadPredictions(f"{FILE} has no column {', '.join(missing)[:200]}; it has {shown}")
    for name in wanted:
        if not _is_plain(known.field(name).type):
            raise BadPredictions(
                f"{FILE}: {name[:50]} has values of type {known.field(name).type}; write numbers or text"
            )
    rows = file.metadata.num_rows
    if not 0 < rows <= MOST_ROWS:
        raise BadPredictions(f"{FILE} has {rows} rows; 1 to {MOST_ROWS:,} can be judged")
    table: pd.DataFrame = file.read(columns=wanted).to_pandas()
    return table


def _is_plain(kind: Any) -> bool:
    from pyarrow import types

    inner = kind.value_type if types.is_dictionary(kind) else kind
    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_string, types.is_large_string)
    return any(test(inner) for test in tests)


def pair(challenger: pd.DataFrame, champion: pd.DataFrame) -> Pair:
    """Return both models' predictions of the same rows. Raises BadPredictions if the rows are not the same."""
    ours, theirs = set(challenger["id"]), set(champion["id"])
    if ours != theirs:
        raise BadPredictions(
            f"the two evaluations judged different rows: {len(ours - theirs)} ids are only in the new model's, "
            f"{len(theirs - ours)} only in the champion's; evaluate must read the same held-out data for every model"
        )
    differ = (challenger["label"].astype(str) != champion["label"].astype(str)).sum()
    if differ:
        raise BadPredictions(f"the two evaluations have different labels in {differ} rows; labels come from the data")
    return Pair(challenger, champion)
