"""Define the expectations that a suite may contain: an allow-list of types and of their kwargs.

Great Expectations evaluates some kwargs as code (`row_condition` strings reach `DataFrame.query`), and fetches
addresses that others name (`$ref` in a JSON schema). So only the types and kwargs listed here are passed on, each
checked against its own type; everything else is refused by name. Called when a manifest is read, and again before data
is judged.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
    create_model,
)

MOST_EXPECTATIONS = 2_000
MOST_VALUES = 10_000
MOST_CONDITIONS = 50
REGEX_CHARACTERS = 500
MOST_REGEX_CHARACTERS = 200_000  # in all regular expressions of a suite, and of all suites of a manifest
SCHEMA_CHARACTERS = 20_000
SEVERITIES = ("critical", "warning", "info")
CONDITION_EXAMPLE = "{type: comparison, column: {name: split}, operator: '==', parameter: train}"


@dataclass(frozen=True)
class SuiteProblem:
    """One error in a suite. `path` is below the suite: `expectations[0].kwargs.column`."""

    path: str
    problem: str
    allowed: str
    example: str | None = None

    @property
    def text(self) -> str:
        """Return the problem as one line."""
        return f"{self.path}: {self.problem}; write {self.allowed}" + (
            f", such as {self.example}" if self.example else ""
        )


def _regex(text: str) -> str:
    try:
        _check_syntax(text)
    except (re.error, OverflowError, RecursionError) as exc:
        raise ValueError(f"is no regular expression: {exc}") from exc
    return text


def _check_syntax(pattern: str) -> None:
    """Raise what `re.compile` raises for a pattern that is none, without compiling it.

    Compiling builds tables of characters: `(?i)[\x01-\U0010ffff]` takes 5 ms, and 500 characters of it half a second.
    The parser alone is linear. It is not public, but CPython has kept its name and call since 3.11. Great Expectations
    compiles the pattern later, in the process with limits of `limited`.
    """
    parser: Any = re._parser  # type: ignore[attr-defined]
    parser.parse(pattern)


def regex_characters(suites: Iterable[object]) -> int:
    """Return the number of characters of all regular expressions in these suites, whatever else is wrong with them."""
    return sum(
        len(text) for suite in suites if isinstance(suite, Mapping) for text in _regexes(suite.get("expectations"))
    )


def _regexes(listed: object) -> Iterator[str]:
    for item in listed if isinstance(listed, list) else ():
        kwargs = item.get("kwargs") if isinstance(item, Mapping) else None
        if isinstance(kwargs, Mapping):
            several = kwargs.get("regex_list")
            for text in (kwargs.get("regex"), *(several if isinstance(several, list) else ())):
                if isinstance(text, str):
                    yield text


def _json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Refuse references: the validator would fetch whatever address or file they name."""
    if len(json.dumps(schema, default=str)) > SCHEMA_CHARACTERS:
        raise ValueError(f"is longer than {SCHEMA_CHARACTERS} characters of JSON")
    for key in _keys(schema):
        if key.startswith("$") and key not in ("$comment", "$schema"):
            raise ValueError(f"has {key!r}, which is not followed; write the schema out")
    return schema


def _keys(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from _keys(item)


Name = Annotated[StrictStr, Field(min_length=1, max_length=500)]
Text = Annotated[StrictStr, Field(max_length=1_000)]
Number = StrictInt | StrictFloat
Scalar = StrictBool | StrictInt | StrictFloat | Text | None
Bound = StrictInt | StrictFloat | Annotated[StrictStr, Field(max_length=64)] | None  # text is an ISO date or time
Regex = Annotated[StrictStr, Field(max_length=REGEX_CHARACTERS), AfterValidator(_regex)]
TypeName = Annotated[StrictStr, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
Names = Annotated[list[Name], Field(min_length=1, max_length=MOST_VALUES)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ConditionColumn(_Strict):
    name: Name


class Comparison(_Strict):
    """Rows in which a column compares with a constant; null never does."""

    type: Literal["comparison"]
    column: ConditionColumn
    operator: Literal["==", "!=", "<", "<=", ">", ">=", "IN", "NOT_IN"]
    parameter: StrictBool | StrictInt | StrictFloat | Text | Annotated[list[Scalar], Field(max_length=MOST_VALUES)]


class Nullity(_Strict):
    """Rows in which a column is, or is not, null."""

    type: Literal["nullity"]
    column: ConditionColumn
    is_null: StrictBool


Simple = Annotated[Comparison | Nullity, Field(discriminator="type")]
Parts = Annotated[list[Simple], Field(min_length=1, max_length=MOST_CONDITIONS)]


class And(_Strict):
    type: Literal["and"]
    conditions: Parts


class Or(_Strict):
    type: Literal["or"]
    conditions: Annotated[
        list[Annotated[Comparison | Nullity | And, Field(discriminator="type")]],
        Field(min_length=1, max_length=MOST_CONDITIONS),
    ]


RowCondition = Annotated[Comparison | Nullity | And | Or, Field(discriminator="type")]


class QuantileRanges(_Strict):
    quantiles: Annotated[list[Number], Field(min_length=1, max_length=100)]
    value_ranges: Annotated[list[tuple[Bound, Bound]], Field(min_length=1, max_length=100)]


KWARGS: dict[str, Any] = {
    "allow_relative_error": StrictBool,
    "column": Name,
    "column_A": Name,
    "column_B": Name,
    "column_index": StrictInt,
    "column_list": Names,
    "column_set": Names,
    "double_sided": StrictBool,
    "exact_match": StrictBool,
    "ignore_row_if": Literal[
        "both_values_are_missing", "either_value_is_missing", "neither",
        "all_values_are_missing", "any_value_is_missing", "never",
    ],
    "json_schema": Annotated[dict[str, Any], AfterValidator(_json_schema)],
    "match_on": Literal["any", "all"],
    "max_value": Bound,
    "method": Literal["iqr", "std"],
    "min_value": Bound,
    "mostly": Annotated[Number, Field(ge=0, le=1)],
    "multiplier": Annotated[Number, Field(gt=0)],
    "or_equal": StrictBool,
    "quantile_ranges": QuantileRanges,
    "regex": Regex,
    "regex_list": Annotated[list[Regex], Field(min_length=1, max_length=50)],
    "row_condition": RowCondition,
    "strftime_format": Annotated[StrictStr, Field(max_length=100)],
    "strict_max": StrictBool,
    "strict_min": StrictBool,
    "strictly": StrictBool,
    "sum_total": Number,
    "threshold": Number,
    "ties_okay": StrictBool,
    "type_": TypeName,
    "type_list": Annotated[list[TypeName], Field(min_length=1, max_length=100)],
    "value": StrictInt,
    "value_pairs_set": Annotated[list[tuple[Scalar, Scalar]], Field(min_length=1, max_length=MOST_VALUES)],
    "value_set": Annotated[list[Scalar], Field(min_length=1, max_length=MOST_VALUES)],
}  # fmt: skip

_BOUNDS = "min_value? max_value? strict_min? strict_max?"
_COLUMN = "column row_condition?"
_MAP = f"{_COLUMN} mostly?"
_PAIR = "column_A column_B mostly? ignore_row_if? row_condition?"
_MANY = "column_list mostly? ignore_row_if? row_condition?"

# Type of expectation -> its kwargs; those with a question mark may be left out.
ALLOWED: dict[str, str] = {
    "expect_column_distinct_values_to_be_in_set": f"{_COLUMN} value_set",
    "expect_column_distinct_values_to_contain_set": f"{_COLUMN} value_set",
    "expect_column_distinct_values_to_equal_set": f"{_COLUMN} value_set",
    "expect_column_max_to_be_between": f"{_COLUMN} {_BOUNDS}",
    "expect_column_mean_to_be_between": f"{_COLUMN} {_BOUNDS}",
    "expect_column_median_to_be_between": f"{_COLUMN} {_BOUNDS}",
    "expect_column_min_to_be_between": f"{_COLUMN} {_BOUNDS}",
    "expect_column_most_common_value_to_be_in_set": f"{_COLUMN} value_set ties_okay?",
    "expect_column_pair_values_a_to_be_greater_than_b": f"{_PAIR} or_equal?",
    "expect_column_pair_values_to_be_equal": _PAIR,
    "expect_column_pair_values_to_be_in_set": f"{_PAIR} value_pairs_set",
    "expect_column_proportion_of_non_null_values_to_be_between": f"{_COLUMN} {_BOUNDS}",
    "expect_column_proportion_of_unique_values_to_be_between": f"{_COLUMN} {_BOUNDS}",
    "expect_column_quantile_values_to_be_between": f"{_COLUMN} quantile_ranges allow_relative_error?",
    "expect_column_stdev_to_be_between": f"{_COLUMN} {_BOUNDS}",
    "expect_column_sum_to_be_between": f"{_COLUMN} {_BOUNDS}",
    "expect_column_to_exist": "column column_index?",
    "expect_column_unique_value_count_to_be_between": f"{_COLUMN} {_BOUNDS}",
    "expect_column_value_lengths_to_be_between": f"{_MAP} {_BOUNDS}",
    "expect_column_value_lengths_to_equal": f"{_MAP} value",
    "expect_column_value_z_scores_to_be_less_than": f"{_MAP} threshold double_sided",
    "expect_column_values_to_be_between": f"{_MAP} {_BOUNDS}",
    "expect_column_values_to_be_dateutil_parseable": _MAP,
    "expect_column_values_to_be_decreasing": f"{_MAP} strictly?",
    "expect_column_values_to_be_in_set": f"{_MAP} value_set",
    "expect_column_values_to_be_in_type_list": f"{_MAP} type_list",
    "expect_column_values_to_be_increasing": f"{_MAP} strictly?",
    "expect_column_values_to_be_json_parseable": _MAP,
    "expect_column_values_to_be_null": _MAP,
    "expect_column_values_to_be_of_type": f"{_MAP} type_",
    "expect_column_values_to_be_unique": _MAP,
    "expect_column_values_to_match_json_schema": f"{_MAP} json_schema",
    "expect_column_values_to_match_regex": f"{_MAP} regex",
    "expect_column_values_to_match_regex_list": f"{_MAP} regex_list match_on?",
    "expect_column_values_to_match_strftime_format": f"{_MAP} strftime_format",
    "expect_column_values_to_not_be_in_set": f"{_MAP} value_set",
    "expect_column_values_to_not_be_null": _MAP,
    "expect_column_values_to_not_be_outliers": f"{_MAP} method multiplier?",
    "expect_column_values_to_not_match_regex": f"{_MAP} regex",
    "expect_column_values_to_not_match_regex_list": f"{_MAP} regex_list",
    "expect_compound_columns_to_be_unique": _MANY,
    "expect_multicolumn_sum_to_equal": f"{_MANY} sum_total",
    "expect_multicolumn_values_to_be_equal": _MANY,
    "expect_select_column_values_to_be_unique_within_record": _MANY,
    "expect_table_column_count_to_be_between": "min_value? max_value?",
    "expect_table_column_count_to_equal": "value",
    "expect_table_columns_to_match_ordered_list": "column_list",
    "expect_table_columns_to_match_set": "column_set exact_match?",
    "expect_table_row_count_to_be_between": f"{_BOUNDS} row_condition?",
    "expect_table_row_count_to_equal": "value row_condition?",
}


def suite_errors(listed: object) -> list[SuiteProblem]:
    """Return what is wrong with a suite's list of expectations, each error with its path below the suite."""
    if not isinstance(listed, list) or not listed:
        return [
            SuiteProblem("expectations", "the suite lists no expectation, so that any data would pass",
                       "a list with at least one", "{type: expect_column_to_exist, kwargs: {column: label}}")
        ]  # fmt: skip
    if len(listed) > MOST_EXPECTATIONS:
        problem = f"the suite lists {len(listed)} expectations"
        return [SuiteProblem("expectations", problem, f"at most {MOST_EXPECTATIONS}, or split the data")]
    if (found := regex_characters([{"expectations": listed}])) > MOST_REGEX_CHARACTERS:
        problem = f"the suite's regular expressions have {found} characters"
        return [SuiteProblem("expectations", problem, f"at most {MOST_REGEX_CHARACTERS} in all")]
    return [error for number, item in enumerate(listed) for error in _item_errors(number, item)]


def row_condition(kwargs: Mapping[str, Any]) -> Comparison | Nullity | And | Or | None:
    """Return the typed condition of an expectation that passed `suite_errors`; None without one."""
    return _condition().validate_python(kwargs["row_condition"]) if kwargs.get("row_condition") is not None else None


@cache
def _condition() -> TypeAdapter[Any]:
    return TypeAdapter(RowCondition)


@cache
def _model(kind: str) -> type[BaseModel]:
    fields: dict[str, Any] = {}
    for word in ALLOWED[kind].split():
        name = word.rstrip("?")
        fields[name] = (KWARGS[name] | None, None) if word.endswith("?") else (KWARGS[name], ...)
    # Great Expectations' own names contain underscores (`type_`).
    return create_model(kind, __config__=ConfigDict(extra="forbid", protected_namespaces=()), **fields)


def _item_errors(number: int, item: object) -> Iterator[SuiteProblem]:
    at = f"expectations[{number}]"
    kind = item.get("type") if isinstance(item, Mapping) else None
    if not isinstance(item, Mapping) or not isinstance(kind, str) or not kind:
        yield SuiteProblem(at, "the expectation has no type", "type and kwargs", "{type: expect_column_to_exist}")
        return
    severity = item.get("severity", "critical")
    if severity not in SEVERITIES:
        problem = f"{str(severity)[:60]!r} is not a severity"
        yield SuiteProblem(f"{at}.severity", problem, f"one of {', '.join(SEVERITIES)}")
    if kind not in ALLOWED:
        near = difflib.get_close_matches(kind[:100], ALLOWED, n=1)
        problem = f"{kind[:100]!r} is not an expectation that this platform evaluates"
        yield SuiteProblem(f"{at}.type", problem, "a type of docs/reference/expectations.md", *near)
        return
    kwargs = item.get("kwargs", {})
    if not isinstance(kwargs, Mapping):
        yield SuiteProblem(f"{at}.kwargs", "the kwargs are not a mapping", "a mapping", "{column: label}")
        return
    yield from _kwargs_errors(kind, f"{at}.kwargs", kwargs)


def _kwargs_errors(kind: str, at: str, kwargs: Mapping[str, Any]) -> Iterator[SuiteProblem]:
    try:
        _model(kind).model_validate(dict(kwargs))
    except ValidationError as exc:
        seen: set[str] = set()
        for error in exc.errors(include_url=False, include_context=False, include_input=False):
            name = str(error["loc"][0])[:100]
            if name in seen:  # a union reports one error for each of its members
                continue
            seen.add(name)
            yield _kwarg_error(kind, f"{at}.{name}", name, error["type"], error["msg"])


def _kwarg_error(kind: str, at: str, name: str, what: str, message: str) -> SuiteProblem:
    names = [word.rstrip("?") for word in ALLOWED[kind].split()]
    if name == "row_condition" and name in names:
        problem = "text and pass_through conditions would be run as code"
        return SuiteProblem(at, problem, "a comparison, nullity, and, or condition", CONDITION_EXAMPLE)
    if what == "extra_forbidden":
        near = difflib.get_close_matches(name, names, n=1)
        return SuiteProblem(at, f"{kind} takes no {name}", f"one of {', '.join(names)}", *near)
    if what == "missing":
        return SuiteProblem(at, f"{kind} needs {name}", "it")
    return SuiteProblem(at, message.removeprefix("Value error, "), "a value that the expectation takes")
