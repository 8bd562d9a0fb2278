"""A suite as data: its digest, and what is wrong with its form before Great Expectations sees it."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from updraft.exceptions import DataError

READING_VERSION = 1  # goes up when the same files give another table
SEVERITIES = ("critical", "warning", "info")


def suite_digest(suite: Mapping[str, Any], format: str) -> str:
    """Changes when the suite asks for something else, or the data is read another way; its name and notes do not
    count."""
    listed = suite.get("expectations")
    asked = [
        {key: item.get(key) for key in ("type", "expectation_type", "kwargs", "severity")}
        if isinstance(item, Mapping)
        else item
        for item in (listed if isinstance(listed, list) else [])
    ]
    document = {"expectations": asked, "format": format, "reading": READING_VERSION}
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=str).encode()).hexdigest()


def expectations_of(suite: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The suite's expectations as {type, kwargs, severity, notes}. Raises DataError naming everything that is wrong."""
    listed = suite.get("expectations")
    if not isinstance(listed, list) or not listed:
        raise DataError(
            "expectations: the suite has no expectations, so that any data would pass; write one, or leave it out"
        )
    wrong: list[str] = []
    found: list[dict[str, Any]] = []
    for number, item in enumerate(listed):
        where = f"expectations[{number}]"
        # Suites of versions before 1.0 say expectation_type.
        kind = item.get("type") or item.get("expectation_type") if isinstance(item, Mapping) else None
        if not isinstance(kind, str):
            wrong.append(f"{where}: has no type; write {{type: expect_column_to_exist, kwargs: {{column: label}}}}")
            continue
        kwargs = item.get("kwargs", {})
        if not isinstance(kwargs, Mapping):
            wrong.append(f"{where}.kwargs: is no mapping; write {{column: label}}")
            continue
        severity = item.get("severity", "critical")
        if severity not in SEVERITIES:
            wrong.append(f"{where}.severity: {severity!r} is not one of {', '.join(SEVERITIES)}")
            continue
        found.append({"type": kind, "kwargs": dict(kwargs), "severity": severity})
    if wrong:
        raise DataError("; ".join(wrong))
    return found


def check_types(expectations: list[dict[str, Any]], known: Collection[str]) -> None:
    """Great Expectations drops unknown types without a word; here they are an error that names the nearest."""
    wrong = []
    for number, item in enumerate(expectations):
        if item["type"] in known:
            continue
        near = difflib.get_close_matches(item["type"], known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "see Great Expectations' gallery for those that exist"
        wrong.append(f"expectations[{number}].type: {item['type']!r} does not exist; {hint}")
    if wrong:
        raise DataError("; ".join(wrong))
