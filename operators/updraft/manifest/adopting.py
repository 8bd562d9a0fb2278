"""Check `checkpoints.from`: which of a program's own files become checkpoints, and what does not go with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from updraft.manifest.errors import VALUE, FieldError, wrong

EXAMPLE = "output/checkpoint-*"
ALLOWED = "one glob below the program's working directory, with *, ? and [], without '..' and '**'"
PATTERN_CHARACTERS = 500


def check_pattern(value: str) -> str:
    """Return the glob. Raises PydanticCustomError if it could match outside the working directory, or anything."""
    parts = value.split("/")
    if len(value) > PATTERN_CHARACTERS or any(part in ("", ".", "..") for part in parts) or "\\" in value:
        raise wrong(f"{VALUE} is no glob below the working directory", ALLOWED, EXAMPLE, value=value)
    if "**" in value or not value.isprintable() or value != value.strip() or value.startswith("~"):
        raise wrong(f"{VALUE} is no plain glob", ALLOWED, EXAMPLE, value=value)
    if len(parts) == 1 and not value.strip("*?"):
        raise wrong(f"{VALUE} matches all that the program writes", "a glob for its checkpoints", EXAMPLE, value=value)
    return value


def adopting_errors(checkpoints: Mapping[str, Any]) -> Iterator[FieldError]:
    """Yield the fields that mean nothing for checkpoints that the program writes without the platform's API."""
    if checkpoints.get("from") is None:
        return
    if checkpoints.get("every") is not None:
        problem = "is given, and from too: an unchanged program decides by itself when it saves"
        yield FieldError("checkpoints.every", None, problem, "either every or from")
    if checkpoints.get("metric") is not None:
        problem = "is given, and from too: adopted checkpoints have no metrics"
        yield FieldError("checkpoints.metric", None, problem, "either metric or from")
