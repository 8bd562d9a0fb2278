"""Parse a param's new value as the type of the value that it replaces: on a command line, in a form, in a request."""

from __future__ import annotations

import json

from updraft.manifest.errors import FieldError, show

# JSON Schema patterns. Airflow's form shows a pattern that does not match, so they are short; `typed` checks exactly.
PATTERNS = {int: "^[-+]?[0-9]+$", float: "^[-+0-9.eE]+$"}
KINDS = {bool: "true or false", int: "a whole number", float: "a number, such as 0.001 or 1e-3"}


def typed(name: str, text: str, like: object) -> object | FieldError:
    """Return `text` as a value of the type of `like`; a FieldError of `params.<name>` if it is none."""
    try:
        return _typed(text, like)
    except ValueError:
        problem = f"{show(text)} is of another type"
        return FieldError(f"params.{name}", show(text), problem, KINDS[type(like)])


def retyped(name: str, value: object, like: object) -> object | FieldError:
    """Return a single value as one of the type of `like`: text is read as `typed` does, and a number or truth value
    becomes text where text stood. Returns a FieldError of `params.<name>` for another type; lists and mappings stay as
    they are."""
    if not isinstance(value, bool | int | float | str) or type(value) is type(like):
        return value
    if (type(value), type(like)) == (int, float):
        return value
    if isinstance(like, str):
        return json.dumps(value)
    if isinstance(value, str):
        return typed(name, value, like)
    return FieldError(f"params.{name}", show(value), f"{show(value)} is of another type", KINDS[type(like)])


def _typed(text: str, like: object) -> object:
    """Convert `text` to the type of `like`. Raises ValueError."""
    if isinstance(like, bool):
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    if isinstance(like, int):
        return int(text)
    return float(text) if isinstance(like, float) else text
