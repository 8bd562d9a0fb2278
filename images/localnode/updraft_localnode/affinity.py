"""Decide which nodes a pod may run on and which it prefers: node affinity, selectors, taints, tolerations. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from updraft_localnode.errors import Json

OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
UNREACHABLE = "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_REPELLING = ("NoSchedule", "NoExecute")


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or []
    present = key in labels
    match expression["operator"]:
        case "In":
            return present and labels[key] in values
        case "NotIn":
            return not present or labels[key] not in values
        case "Exists":
            return present
        case "DoesNotExist":
            return not present
        case operator:
            try:
                have, limit = int(labels[key]), int(values[0])
            except (KeyError, IndexError, ValueError, TypeError):
                return False
            return have > limit if operator == "Gt" else have < limit


def _term_holds(term: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> bool:
    """Return all of its expressions. A term without any matches no node, as in Kubernetes."""
    expressions, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    if not expressions and not fields:
        return False
    return all(_holds(e, labels) for e in expressions) and all(_holds(f, {"metadata.name": name}) for f in fields)


def _node_affinity(pod: Json) -> Mapping[str, Any]:
    return (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}


def allows(pod: Json, name: str, labels: Mapping[str, str]) -> bool:
    """Return whether the pod's nodeSelector and its required node affinity admit the node."""
    wanted = pod["spec"].get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    required = _node_affinity(pod).get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = (required or {}).get("nodeSelectorTerms") or []
    return required is None or any(_term_holds(term, name, labels) for term in terms)


def preference(pod: Json, name: str, labels: Mapping[str, str]) -> int:
    """Return the sum of the weights of the preferences that the node meets."""
    preferred = _node_affinity(pod).get("preferredDuringSchedulingIgnoredDuringExecution") or []
    return sum(int(p["weight"]) for p in preferred if _term_holds(p.get("preference") or {}, name, labels))


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    key = toleration.get("key")
    if toleration.get("operator") == "Exists":
        return not key or bool(key == taint["key"])
    return bool(key == taint["key"] and (toleration.get("value") or "") == (taint.get("value") or ""))


def repelled_by(pod: Json, taints: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the first taint that keeps the pod from being placed there."""
    tolerations = pod["spec"].get("tolerations") or []
    repelling = (t for t in taints if t["effect"] in _REPELLING)
    return next((t for t in repelling if not any(_tolerates(own, t) for own in tolerations)), None)


def toleration_seconds(pod: Json, taint: Mapping[str, Any], default: float | None) -> float | None:
    """Return how long the pod stays on a node after a NoExecute taint; None for ever. `default` where the pod does not
    say."""
    matching = [t for t in pod["spec"].get("tolerations") or [] if _tolerates(t, taint)]
    if not matching:
        return default
    limits = [float(t["tolerationSeconds"]) for t in matching if t.get("tolerationSeconds") is not None]
    if not limits:
        return None
    return max(min(limits), 0.0) if default is None else max(min(*limits, default), 0.0)
