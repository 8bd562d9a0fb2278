"""Read what MLflow's clients send: fields of requests, each checked before it is used."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from updraft_learner.mlflow_rest import Answer
from updraft_learner.sidecar import recorder as rec
from updraft_learner.sidecar.refusals import EndpointError

KEY_CHARACTERS = 250
_FIELD = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)

Json = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """One request. `path` lacks the API's prefix."""

    method: str
    path: str
    body: Mapping[str, Any] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)

    def text(self, *names: str) -> str | None:
        """Return the first of these fields that is there, in body or query."""
        for name in names:
            value = self.body.get(name, self.query.get(name))
            if value not in (None, ""):
                return str(value)
        return None


def other_spelling(value: object) -> str | None:
    """Return a field in the spelling of JSON's mapping of protocol buffers. MLflow's server takes `runId` for `run_id`,
    so a body could name its own run in one and another job's in the other; no client of MLflow's writes that."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not _FIELD.fullmatch(str(name)):
                return str(name)
            if (found := other_spelling(inner)) is not None:
                return found
    elif isinstance(value, list):
        return next((found for inner in value if (found := other_spelling(inner)) is not None), None)
    return None


def checked(answer: Answer) -> Json:
    if not answer.ok:
        raise EndpointError(str(answer.body.get("error_code", "INTERNAL_ERROR")), answer.message, answer.status)
    return answer.body


def items(body: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    items = body.get(name) or []
    if not isinstance(items, list) or any(not isinstance(item, dict) for item in items):
        raise EndpointError.invalid(f"{name} is no list of objects")
    return items


def key_of(item: Mapping[str, Any]) -> str:
    key = item.get("key")
    if not isinstance(key, str) or not key or len(key) > KEY_CHARACTERS:
        raise EndpointError.invalid(
            f"key {str(key)[:60]!r} is refused: it must be text of 1 to {KEY_CHARACTERS} characters"
        )
    if not rec.is_name(key):
        raise EndpointError.invalid(f"key {key[:60]!r} is refused: {rec.NAMES_ALLOWED}")
    return key


def texts(items: list[Mapping[str, Any]]) -> dict[str, str]:
    return {key_of(item): str(item.get("value", "")) for item in items}


def number(item: Mapping[str, Any], name: str) -> float:
    try:
        return float(item[name])
    except (KeyError, TypeError, ValueError):
        raise EndpointError.invalid(f"{name} of metric {str(item.get('key'))[:60]!r} is no number") from None


def whole(item: Mapping[str, Any], name: str, default: int) -> int:
    try:
        return int(item.get(name, default))
    except (TypeError, ValueError, OverflowError):
        raise EndpointError.invalid(f"{name} of metric {str(item.get('key'))[:60]!r} is no whole number") from None


def model_of(item: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    names = ("model_id", "dataset_name", "dataset_digest")
    return tuple((name, str(item[name])) for name in names if item.get(name))
