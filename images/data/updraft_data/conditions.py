"""Select the rows that meet a typed row condition.

The selection uses pandas' own comparisons. Great Expectations would pass the condition as text to `DataFrame.query`.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from updraft_data.expectations import And, Comparison, Nullity, Or
from updraft_learner.prepare.errors import SourceError

if TYPE_CHECKING:
    import pandas as pd


def selected_rows(table: pd.DataFrame, condition: Comparison | Nullity | And | Or) -> pd.DataFrame:
    """Return the rows of `table` for which `condition` holds.

    Raises SourceError when a column does not exist or cannot be compared with the constant.
    """
    rows: pd.DataFrame = table[_mask(table, condition)]
    return rows


def _mask(table: pd.DataFrame, condition: Comparison | Nullity | And | Or) -> Any:
    if isinstance(condition, And):
        return reduce(lambda one, other: one & other, [_mask(table, part) for part in condition.conditions])
    if isinstance(condition, Or):
        return reduce(lambda one, other: one | other, [_mask(table, part) for part in condition.conditions])
    name = condition.column.name
    if name not in table.columns:
        shown = ", ".join(str(column) for column in table.columns[:10])
        raise SourceError("data", f"row_condition: there is no column {name[:100]!r}; there are {shown}")
    column = table[name]
    if isinstance(condition, Nullity):
        return column.isna() if condition.is_null else column.notna()
    try:
        return _compared(column, condition) & column.notna()
    except (TypeError, ValueError) as exc:
        problem = f"column {name[:100]!r} of type {column.dtype} cannot be compared"
        raise SourceError("data", f"row_condition: {problem} with {str(condition.parameter)[:100]!r} ({exc})") from exc


def _compared(column: pd.Series[Any], condition: Comparison) -> Any:
    operator, value = condition.operator, condition.parameter
    if operator in ("IN", "NOT_IN"):
        among = column.isin(value if isinstance(value, list) else [value])
        return among if operator == "IN" else ~among
    compare = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}[operator]
    return getattr(column, compare)(value)
