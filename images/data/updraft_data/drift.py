"""Describe the distribution of each column of a table, and say how far two descriptions are apart.

The pod that validates data makes the description (`profile`), with pandas; the platform compares two of them, with the
standard library.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    import pandas as pd

MOST_COLUMNS = 100
QUANTILES = 101  # of a column of numbers: the accuracy of a difference is 1 / (QUANTILES - 1)
MOST_TEXTS = 1_000  # different texts of a column; one with more is no category
SHOWN_TEXTS = 50  # the most frequent ones; the others count as one
TEXT_CHARACTERS = 100
OTHERS = "\x00others"

Share = Annotated[float, Field(ge=0, le=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class Numbers(_Frozen):
    """A column of numbers: its quantiles from 0 to 1, and the share of empty cells."""

    kind: Literal["numbers"] = "numbers"
    quantiles: Annotated[tuple[Finite, ...], Field(max_length=QUANTILES)]
    empty: Share = 0.0


class Texts(_Frozen):
    """A column of categories: the share of each text, and of empty cells."""

    kind: Literal["texts"] = "texts"
    shares: Annotated[dict[Annotated[str, Field(max_length=TEXT_CHARACTERS)], Share], Field(max_length=SHOWN_TEXTS + 1)]
    empty: Share = 0.0


class Profile(_Frozen):
    """The description of a table: its number of rows, and the distribution of each column that has one."""

    rows: Annotated[int, Field(ge=0)]
    columns: Annotated[
        dict[str, Annotated[Numbers | Texts, Field(discriminator="kind")]], Field(max_length=MOST_COLUMNS)
    ]


def profile(table: pd.DataFrame) -> Profile:
    """Return the description of the table's first columns that have numbers, or at most MOST_TEXTS different texts."""
    columns: dict[str, Numbers | Texts] = {}
    for name in table.columns:
        if len(columns) == MOST_COLUMNS:
            break
        column = _column(table[name])
        if column is not None:
            columns[str(name)[:TEXT_CHARACTERS]] = column
    return Profile(rows=len(table), columns=columns)


def _column(cells: pd.Series[Any]) -> Numbers | Texts | None:
    import numpy as np

    empty = float(cells.isna().mean())
    if cells.dtype.kind in "iuf":
        values = cells.to_numpy(dtype=float)
        values = values[np.isfinite(values)]
        if not len(values):
            return None
        found = np.quantile(values, np.linspace(0, 1, QUANTILES), method="inverted_cdf")
        return Numbers(quantiles=tuple(float(f"{each:.6g}") for each in found), empty=round(empty, 6))
    if cells.dtype.kind == "M":  # of other days: always different
        return None
    try:
        counts = cells.dropna().astype(str).str.slice(0, TEXT_CHARACTERS).value_counts(normalize=True)
    except (TypeError, ValueError, AttributeError):
        return None
    if not 0 < len(counts) <= MOST_TEXTS:
        return None
    shares = {str(text): round(float(share), 6) for text, share in counts.head(SHOWN_TEXTS).items()}
    if len(counts) > SHOWN_TEXTS:
        shares[OTHERS] = min(1.0, max(0.0, 1.0 - sum(shares.values())))
    return Texts(shares=shares, empty=round(empty, 6))


def drift(old: Profile, new: Profile, columns: Sequence[str] = ()) -> dict[str, float]:
    """Return how far each column of `new` is from that of `old`, from 0 (the same) to 1.

    For numbers it is the Kolmogorov-Smirnov distance: the largest difference between the shares of values up to any
    number. For texts it is the total variation distance: the share of rows that would have to change. A difference in
    the share of empty cells counts, too; a column that one of the two lacks is 1 apart.

    Args:
        columns: The columns that count; all of both if empty.
    """
    names = columns or sorted({*old.columns, *new.columns})
    return {name: _distance(old.columns.get(name), new.columns.get(name)) for name in names}


def _distance(old: Numbers | Texts | None, new: Numbers | Texts | None) -> float:
    if isinstance(old, Numbers) and isinstance(new, Numbers):
        apart = _kolmogorov_smirnov(old.quantiles, new.quantiles)
    elif isinstance(old, Texts) and isinstance(new, Texts):
        apart = _total_variation(old.shares, new.shares)
    else:
        return 0.0 if old is None and new is None else 1.0
    return max(apart, abs(old.empty - new.empty))


def _kolmogorov_smirnov(old: Sequence[float], new: Sequence[float]) -> float:
    return max(abs(bisect_right(old, value) / len(old) - bisect_right(new, value) / len(new)) for value in {*old, *new})


def _total_variation(old: Mapping[str, float], new: Mapping[str, float]) -> float:
    return min(1.0, sum(abs(old.get(text, 0.0) - new.get(text, 0.0)) for text in {*old, *new}) / 2)
