"""A suite as a JSON document, its digest, and the checks that Great Expectations does not make."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from updraft.exceptions import DataError


def suite_digest(suite: Mapping[str, Any]) -> str:
    """SHA-256 of what the suite asks for; its name and notes do not count."""
    asked = [
        {"type": e.get("type"), "kwargs": e.get("kwargs") or {}, "severity": e.get("severity", "critical")}
        for e in suite.get("expectations") or ()
    ]
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()


def check_suite(suite: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises DataError for an empty suite, which would pass anything, and for types that would be dropped."""
    expectations = suite.get("expectations")
    if not expectations:
        raise DataError(
            "expectations: the suite has no expectations and would pass any data; write one, or leave it out"
        )
    problems = []
    for number, expectation in enumerate(expectations):
        kind = expectation.get("type")
        if kind not in known:
            near = difflib.get_close_matches(str(kind), known, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            problems.append(f"expectations[{number}].type: {kind!r} is not an expectation of Great Expectations{hint}")
    if problems:
        raise DataError("; ".join(problems))
