"""Handle a suite as data: its digest, and its expectations after the allow-list has accepted them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from updraft_data.expectations import suite_errors
from updraft_learner.prepare.errors import SourceError

READING_VERSION = 1  # increased when the same files give a different table
MOST_ERRORS = 20


def suite_digest(suite: Mapping[str, Any], format: str) -> str:
    """Return a digest that changes when the suite asks for something else, or the data is read another way; its name
    and notes do not count."""
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
    """Return the suite's expectations as {type, kwargs, severity}. Raises SourceError naming all that is wrong."""
    listed = suite.get("expectations")
    if isinstance(listed, list):  # suites of versions before 1.0 use expectation_type
        listed = [
            {"type": item.get("expectation_type"), **item} if isinstance(item, Mapping) else item for item in listed
        ]
    errors = suite_errors(listed)
    if errors:
        raise SourceError("data", "; ".join(error.text for error in errors[:MOST_ERRORS]))
    assert isinstance(listed, list)
    return [
        {"type": item["type"], "kwargs": dict(item.get("kwargs", {})), "severity": item.get("severity", "critical")}
        for item in listed
    ]
