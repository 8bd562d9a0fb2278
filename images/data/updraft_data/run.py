"""Run a suite over a table with Great Expectations: in memory, without telemetry, counting what was evaluated."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from updraft_data.conditions import selected_rows
from updraft_data.drift import profile
from updraft_data.expectations import row_condition
from updraft_data.result import ValidationResult
from updraft_data.suite import expectations_of
from updraft_data.table import read_table
from updraft_data.texts import failure_text
from updraft_learner.prepare.errors import SourceError
from updraft_learner.prepare.select import select
from updraft_learner.trees import Tree

if TYPE_CHECKING:
    import pandas as pd

_NUMBER = "updraft_number"


def validate(folder: Path, tree: Tree, suite: Mapping[str, Any], *, format: str = "auto") -> ValidationResult:
    """Judge the tree, of which at least `needed_paths` are laid out below `folder`.

    Raises SourceError when the data cannot be read or the suite is no suite; data that is read but does not meet the
    suite is a result.
    """
    started = time.monotonic()
    expectations = expectations_of(suite)
    selection = select(tree, format)
    table = read_table(folder, selection)
    outcomes = _evaluate(table, expectations)
    failed: list[str] = []
    warnings: list[str] = []
    columns = [str(column) for column in table.columns]
    for number, item in enumerate(expectations):
        outcome = outcomes.get(number)
        if outcome is None:
            failed.append(f"{item['type']}: was not evaluated")
        elif not outcome.get("success"):
            text = failure_text(item["type"], item["kwargs"], outcome, columns)
            (failed if item["severity"] == "critical" else warnings).append(text)
    return ValidationResult(
        success=not failed,
        evaluated=len(outcomes),
        failed=tuple(failed),
        warnings=tuple(warnings),
        statistics={
            "format": selection.format,
            "files": len(selection.files),
            "rows": len(table),
            "columns": len(columns),
            "expectations": len(expectations),
        },
        duration_seconds=round(time.monotonic() - started, 3),
        profile=profile(table).model_dump(mode="json"),
    )


def _evaluate(table: pd.DataFrame, expectations: list[dict[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Return Great Expectations' result of each expectation, by its number in the suite."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx
    import great_expectations.expectations
    from great_expectations.data_context.types.base import ProgressBarsConfig
    from great_expectations.exceptions.exceptions import GreatExpectationsError
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    groups: dict[str, list[Any]] = {}  # by row condition: each group is evaluated over the selected rows
    wrong: list[str] = []
    for number, item in enumerate(expectations):
        asked = json.dumps(item["kwargs"].get("row_condition"), sort_keys=True)
        kwargs = {name: value for name, value in item["kwargs"].items() if name != "row_condition"}
        try:
            configuration = ExpectationConfiguration(
                type=item["type"], kwargs=kwargs, meta={_NUMBER: number}, severity=item["severity"]
            )
            groups.setdefault(asked, []).append(configuration.to_domain_obj())
        except (GreatExpectationsError, ValueError, TypeError) as exc:
            wrong.append(f"expectations[{number}] ({item['type']}): {_problems(exc)}")
    if wrong:
        raise SourceError("data", "; ".join(wrong))
    definition = context.data_sources.add_pandas("data").add_dataframe_asset("table")
    whole = definition.add_batch_definition_whole_dataframe("whole")
    outcomes: dict[int, Mapping[str, Any]] = {}
    for asked, made in groups.items():
        condition = row_condition({"row_condition": json.loads(asked)})
        rows = table if condition is None else selected_rows(table, condition)
        # Not `add_expectation`, which silently replaces an earlier one about the same column.
        suite = gx.ExpectationSuite(name="updraft", expectations=made)
        batch = whole.get_batch(batch_parameters={"dataframe": rows})
        report: dict[str, Any] = batch.validate(suite, result_format="SUMMARY").to_json_dict()  # type: ignore[no-untyped-call]
        outcomes |= {entry["expectation_config"]["meta"][_NUMBER]: entry for entry in report["results"]}
    return outcomes


def _problems(exc: Exception) -> str:
    """Return pydantic's errors as `field: problem`, without the class names."""
    errors = getattr(exc, "errors", None)
    if callable(errors):
        found = [(".".join(str(part) for part in error["loc"]), str(error["msg"])) for error in errors()]
        return ", ".join(message if place == "__root__" else f"{place}: {message}" for place, message in found)
    return str(exc).strip().splitlines()[0][:300]
