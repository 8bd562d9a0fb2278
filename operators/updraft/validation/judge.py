"""Run a suite on a data set and say in words what failed."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from updraft.exceptions import DataError
from updraft.validation.suite import check_suite
from updraft.validation.table import format_of, read_table
from updraft_learner.trees import Tree

EXAMPLES = 5
LOUD_LOGGERS = ("great_expectations",)


@dataclass(frozen=True)
class ValidationResult:
    """The suite's verdict. Expectations of severity `warning` or `info` are told and do not fail the data."""

    success: bool
    evaluated: int
    failed: tuple[str, ...]
    warnings: tuple[str, ...]
    rows: int
    duration_seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def validate(folder: Path, tree: Tree, suite: Mapping[str, Any], *, format: str = "auto") -> ValidationResult:
    """Judge the files of `tree`, laid out below `folder`. Raises DataError for data or a suite that cannot be used."""
    kind, paths = format_of(tree, format)
    table = read_table(folder, tree, kind, paths)
    if table.empty:
        raise DataError("the data set has no rows; upload the data or correct the source")
    started = time.monotonic()
    outcome = _run(table, suite)
    asked = suite["expectations"]
    if len(outcome.results) != len(asked):
        raise DataError(
            f"expectations: {len(asked)} were asked for and Great Expectations evaluated {len(outcome.results)}; "
            "look for two that are the same"
        )
    failed: list[str] = []
    warnings: list[str] = []
    for result in outcome.results:
        if not result.success:
            severity = str(getattr(result.expectation_config, "severity", None) or "critical").rpartition(".")[2]
            (failed if severity.lower() == "critical" else warnings).append(_words(result))
    return ValidationResult(
        success=not failed,
        evaluated=len(outcome.results),
        failed=tuple(failed),
        warnings=tuple(warnings),
        rows=len(table),
        duration_seconds=round(time.monotonic() - started, 3),
    )


def _run(table: Any, suite: Mapping[str, Any]) -> Any:
    import os

    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    import great_expectations as gx
    from great_expectations.data_context.types.base import ProgressBarsConfig
    from great_expectations.exceptions.exceptions import GreatExpectationsError
    from great_expectations.expectations.registry import list_registered_expectation_implementations

    for name in LOUD_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    check_suite(suite, list_registered_expectation_implementations())
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = ProgressBarsConfig(globally=False, metric_calculations=False)
    try:
        expectations = [
            {
                "type": e["type"],
                "kwargs": dict(e.get("kwargs") or {}),
                "meta": e.get("meta") or {},
                "severity": e.get("severity", "critical"),
            }
            for e in suite["expectations"]
        ]
        loaded = gx.ExpectationSuite(name=str(suite.get("name") or "suite"), expectations=expectations)
        batch = (
            context.data_sources.add_pandas("data")
            .add_dataframe_asset("table")
            .add_batch_definition_whole_dataframe("all")
        )
        definition = gx.ValidationDefinition(name="judge", data=batch, suite=context.suites.add(loaded))
        return definition.run(batch_parameters={"dataframe": table}, result_format="SUMMARY")
    except (GreatExpectationsError, TypeError, ValueError) as exc:
        raise DataError(f"expectations: the suite cannot be used: {str(exc).splitlines()[0][:300]}") from exc


def _words(result: Any) -> str:
    """`expect_x(column=label, min_value=0): 3 of 1797 values unexpected, such as 12, 13`."""
    config = result.expectation_config
    arguments = ", ".join(
        f"{key}={_short(value)}"
        for key, value in sorted(config.kwargs.items())
        if key not in ("batch_id", "result_format")
    )
    return f"{config.type}({arguments}): {_found(result)}"


def _found(result: Any) -> str:
    if broken := _exception(result.exception_info or {}):
        return broken
    facts = result.result or {}
    if "unexpected_count" in facts:
        examples = facts.get("partial_unexpected_list") or ()
        such = f", such as {', '.join(_short(e) for e in examples[:EXAMPLES])}" if examples else ""
        return f"{facts['unexpected_count']} of {facts.get('element_count', '?')} values unexpected{such}"
    return f"observed {_short(facts.get('observed_value'))}"


def _exception(info: Mapping[str, Any]) -> str | None:
    """The message of an expectation that could not be evaluated; two shapes exist, one keyed by metric."""
    for entry in [info, *(value for value in info.values() if isinstance(value, Mapping))]:
        if entry.get("raised_exception"):
            return str(entry.get("exception_message") or "could not be evaluated").splitlines()[0][:200]
    return None


def _short(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
