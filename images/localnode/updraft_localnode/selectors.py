"""Parse label and field selectors, and match objects. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from updraft_localnode.errors import bad_request

_KEY = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_VALUE = r"[-A-Za-z0-9_.]*"
_SET = re.compile(rf"^({_KEY})\s+(in|notin)\s*\(([^()]*)\)$")
_EQUAL = re.compile(rf"^({_KEY})\s*(==|=|!=)\s*({_VALUE})$")
_EXISTS = re.compile(rf"^(!?)\s*({_KEY})$")
_COMMON_FIELDS = ("metadata.name", "metadata.namespace")
SUPPORTED_FIELDS: Mapping[str, tuple[str, ...]] = {
    "pods": ("status.phase", "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "status.podIP"),
    "events": (
        *(f"involvedObject.{n}" for n in ("kind", "namespace", "name", "uid", "apiVersion", "fieldPath")),
        *("reason", "type", "source"),
    ),
    "secrets": ("type",),
    "namespaces": ("status.phase",),
    "nodes": ("spec.unschedulable",),
}


@dataclass(frozen=True)
class Requirement:
    """One condition of a label selector. `operator` is in, notin, exists or absent."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        present = self.key in labels
        match self.operator:
            case "exists":
                return present
            case "absent":
                return not present
            case "in":
                return present and labels[self.key] in self.values
            case _:  # "notin" also matches an object without the label, as in Kubernetes
                return not present or labels[self.key] not in self.values


@dataclass(frozen=True)
class Selector:
    """Conditions on an object's labels and fields."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[tuple[str, bool, str], ...] = ()  # path, whether equal, value

    def matches(self, obj: Mapping[str, Any]) -> bool:
        labels = obj.get("metadata", {}).get("labels") or {}
        return all(r.matches(labels) for r in self.labels) and all(
            (field_value(obj, path) == value) is equal for path, equal, value in self.fields
        )


def _split(text: str) -> list[str]:
    """Split at commas outside of parentheses."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def _requirement(text: str) -> Requirement:
    if match := _SET.match(text):
        key, operator, values = match.groups()
        return Requirement(key, operator, frozenset(v.strip() for v in values.split(",")))
    if match := _EQUAL.match(text):
        key, operator, value = match.groups()
        return Requirement(key, "notin" if operator == "!=" else "in", frozenset([value]))
    if match := _EXISTS.match(text):
        return Requirement(match.group(2), "absent" if match.group(1) else "exists")
    raise bad_request(f"unable to parse requirement: {text!r} is no label selector (k=v, k!=v, k in (a,b), k, !k)")


def parse_labels(text: str) -> tuple[Requirement, ...]:
    """Parse a label selector. Raises StatusError 400."""
    return tuple(_requirement(part) for part in _split(text))


def parse_fields(text: str, resource: str) -> tuple[tuple[str, bool, str], ...]:
    """Parse a field selector. Raises StatusError 400, also for a field that this kind of object does not support."""
    supported = (*_COMMON_FIELDS, *SUPPORTED_FIELDS.get(resource, ()))
    parsed = []
    for part in _split(text):
        match = re.match(r"^([^=!]+?)(==|=|!=)(.*)$", part)
        if match is None:
            raise bad_request(f'invalid selector: "{part}"; can\'t understand "{part}"')
        path, operator, value = match.groups()
        if path not in supported:
            raise bad_request(f"field label not supported: {path}")
        parsed.append((path, operator != "!=", value))
    return tuple(parsed)


def parse_selector(labels: str | None, fields: str | None, resource: str) -> Selector:
    return Selector(parse_labels(labels or ""), parse_fields(fields or "", resource))


def field_value(obj: Mapping[str, Any], path: str) -> str:
    """Return the field as text; an absent one is empty."""
    value: Any = obj
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return "" if value is None else str(value)


Predicate = Callable[[Mapping[str, Any]], bool]
