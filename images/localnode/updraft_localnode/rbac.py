"""Answer the authorization API: a client may do everything, because the owner of the machine has the token."""

from __future__ import annotations

import copy
from typing import Any

from updraft_localnode.errors import Json, bad_request

GROUP_VERSION = "authorization.k8s.io/v1"
REASON = "the local node's token may do everything"


def access_review(body: Any) -> Json:
    """Answer an access review. Raises StatusError 400."""
    spec = _spec(body)
    if (spec.get("resourceAttributes") is None) == (spec.get("nonResourceAttributes") is None):
        raise bad_request("spec: exactly one of nonResourceAttributes or resourceAttributes must be specified")
    status = {"allowed": True, "reason": REASON}
    return _answer("SelfSubjectAccessReview", spec, status)


def rules_review(body: Any) -> Json:
    """Answer a rules review. Raises StatusError 400."""
    spec = _spec(body)
    if not spec.get("namespace"):
        raise bad_request("no namespace on request")
    status = {
        "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        "incomplete": False,
    }
    return _answer("SelfSubjectRulesReview", spec, status)


def _spec(body: Any) -> Json:
    spec = body.get("spec") if isinstance(body, dict) else None
    if not isinstance(spec, dict):
        raise bad_request("the body must be a JSON object with a spec")
    return copy.deepcopy(spec)


def _answer(kind: str, spec: Json, status: Json) -> Json:
    stamp = {"creationTimestamp": None}
    return {"kind": kind, "apiVersion": GROUP_VERSION, "metadata": stamp, "spec": spec, "status": status}
