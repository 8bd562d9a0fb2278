"""Write one readable sentence for an unmet expectation. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

EXAMPLES = 5
VALUE_CHARACTERS = 60


def failure_text(kind: str, kwargs: Mapping[str, Any], outcome: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Return a sentence about a failed expectation. `outcome` is one entry of `results`, as Great Expectations writes
    it in JSON."""
    return f"{kind}({_arguments(kwargs)}): {_why(kwargs, outcome, columns)}"


def _arguments(kwargs: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in kwargs.items() if value is not None and key not in ("column", "batch_id")}
    parts = [f"column={kwargs['column']}"] if "column" in kwargs else []
    low, high = rest.pop("min_value", None), rest.pop("max_value", None)
    if low is not None or high is not None:
        parts.append(f"{_value(low) if low is not None else ''}..{_value(high) if high is not None else ''}")
    return ", ".join([*parts, *(f"{key}={_value(value)}" for key, value in rest.items())])


def _why(kwargs: Mapping[str, Any], outcome: Mapping[str, Any], columns: Sequence[str]) -> str:
    message = _exception(outcome.get("exception_info") or {})
    missing = kwargs.get("column")
    if missing is not None and missing not in columns:
        return f"there is no column {_value(missing)}; there are {_names(columns)}"
    if message:
        return f"could not be evaluated: {message}"
    result: Mapping[str, Any] = outcome.get("result") or {}
    if result.get("unexpected_count"):
        text = f"{result['unexpected_count']} of {result.get('element_count', '?')} values unexpected"
        examples = _distinct(result.get("partial_unexpected_list") or ())
        return f"{text}, e.g. {', '.join(examples)}" if examples else text
    details = result.get("details")
    mismatched = details.get("mismatched") if isinstance(details, Mapping) else None
    if isinstance(mismatched, Mapping):
        parts = [f"{key}: {_names(names)}" for key, names in mismatched.items() if names]
        return "; ".join(parts) or "not met"
    if "observed_value" in result:
        return f"observed {_value(result['observed_value'])}"
    return "not met"


def _exception(info: Mapping[str, Any]) -> str | None:
    """Return the message, which is in the entry itself or, as for missing columns, below the id of a metric."""
    entries = [info] if "raised_exception" in info else [entry for entry in info.values() if isinstance(entry, Mapping)]
    for entry in entries:
        if entry.get("raised_exception"):
            text = str(entry.get("exception_message") or "unknown").strip().splitlines()[0]
            return text.removeprefix("Error: ")[:300]
    return None


def _distinct(values: Sequence[Any]) -> list[str]:
    shown: list[str] = []
    for value in values:
        text = _value(value)
        if text not in shown:
            shown.append(text)
        if len(shown) == EXAMPLES:
            break
    return shown


def _names(names: Sequence[Any]) -> str:
    shown = ", ".join(_value(name) for name in list(names)[:10])
    return f"{shown} and {len(names) - 10} more" if len(names) > 10 else shown


def _value(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    elif isinstance(value, float):
        value = f"{value:g}"
    elif isinstance(value, list | tuple):
        value = f"[{_names(value)}]"
    text = str(value)
    return text if len(text) <= VALUE_CHARACTERS else f"{text[: VALUE_CHARACTERS - 1]}…"
