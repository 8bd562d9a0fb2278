"""Parse requests as the API server does: query parameters, bodies, patches. Pure except for `json_body`."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from updraft_localnode.errors import Json, StatusCause, StatusError, bad_request, conflict, invalid
from updraft_localnode.logs import LogOptions, parse_time, seconds_ago

MERGE_TYPES = ("application/strategic-merge-patch+json", "application/merge-patch+json")
PATCHABLE = ("labels", "annotations", "ownerReferences")


def flag(query: Mapping[str, str], name: str) -> bool:
    """Return whether the flag is set. Python clients send `True`."""
    return query.get(name, "").lower() in ("true", "1")


def number(query: Mapping[str, str], name: str, lowest: int = 0) -> int | None:
    """Return a number of the query. Raises StatusError 400."""
    text = query.get(name)
    if text in (None, ""):
        return None
    try:
        value = int(str(text))
    except ValueError:
        raise bad_request(f"{name}: {text!r} is not a whole number") from None
    if value < lowest:
        raise bad_request(f"{name}: {value} must be greater than or equal to {lowest}")
    return value


async def json_body(request: Request) -> Any:
    """Return the request's JSON, or None for an empty body. Raises StatusError 400."""
    raw = await request.body()
    if not raw.strip():
        return None
    try:
        return json.loads(raw)
    except ValueError as exc:
        raise bad_request(f"the body is not valid JSON: {exc}") from exc


@dataclass(frozen=True)
class DeleteOptions:
    grace_seconds: int | None = None
    orphan: bool = False
    uid: str | None = None  # a precondition

    @classmethod
    def of(cls, query: Mapping[str, str], body: Any) -> DeleteOptions:
        options = body if isinstance(body, dict) else {}
        grace = number(query, "gracePeriodSeconds")
        if grace is None and options.get("gracePeriodSeconds") is not None:
            grace = number({"gracePeriodSeconds": str(options["gracePeriodSeconds"])}, "gracePeriodSeconds")
        policy = query.get("propagationPolicy") or options.get("propagationPolicy")
        return cls(grace, policy == "Orphan", (options.get("preconditions") or {}).get("uid"))

    def check(self, resource: str, obj: Json) -> None:
        """Raise StatusError 409 if this is another object than the caller means."""
        meta = obj["metadata"]
        if self.uid and self.uid != meta["uid"]:
            why = f"the UID in the precondition ({self.uid}) does not match the UID in record ({meta['uid']})"
            raise conflict(resource, meta["name"], why)


def log_options(query: Mapping[str, str]) -> LogOptions:
    """Parse the options of a log request. Raises StatusError 400."""
    since_seconds = number(query, "sinceSeconds", 1)
    since = None if since_seconds is None else seconds_ago(since_seconds)
    if query.get("sinceTime"):
        if since is not None:
            raise bad_request("at most one of `sinceTime` or `sinceSeconds` may be specified")
        try:
            since = parse_time(query["sinceTime"])
        except ValueError as exc:
            raise bad_request(f"sinceTime: {query['sinceTime']!r} is not an RFC 3339 time") from exc
    return LogOptions(
        follow=flag(query, "follow"),
        timestamps=flag(query, "timestamps"),
        since=since,
        tail_lines=number(query, "tailLines"),
        limit_bytes=number(query, "limitBytes", 1),
    )


def _merge(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386). For maps of text the strategic merge is the same."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merge(result.get(key), value)
    return result


def patched(resource: str, obj: Json, patch: Any, content_type: str) -> Json:
    """Return `obj` with new metadata; a node also cordoned or not.

    Raises StatusError 400, 409, 415, or 422 for a field that may not be changed.
    """
    if content_type.partition(";")[0].strip() not in MERGE_TYPES:
        message = f"the body of the request was in an unknown format - accepted media types include: {MERGE_TYPES}"
        raise StatusError(415, "UnsupportedMediaType", message)
    if not isinstance(patch, dict):
        raise bad_request("the patch must be a JSON object")
    meta, name = patch.get("metadata") or {}, obj["metadata"]["name"]
    for field in ("resourceVersion", "uid"):
        if meta.get(field) and meta[field] != obj["metadata"][field]:
            raise conflict(
                resource, name, "the object has been modified; please apply your changes to the latest version"
            )
    result: Json = _merge(obj, patch)
    allowed = {**obj, "metadata": {**obj["metadata"]}}
    for field in PATCHABLE:
        if field in result["metadata"]:
            allowed["metadata"][field] = result["metadata"][field]
        else:
            allowed["metadata"].pop(field, None)
    fields = f"metadata.{', '.join(PATCHABLE)}"
    if resource == "nodes":
        fields += " and spec.unschedulable"
        spec = result.get("spec")
        told = spec.get("unschedulable") if isinstance(spec, dict) else None
        kept = {key: value for key, value in obj["spec"].items() if key != "unschedulable"}
        allowed["spec"] = {**kept, **({"unschedulable": told} if isinstance(told, bool) else {})}
    if result != allowed:
        changed = [key for key in patch if key != "metadata" and result.get(key) != obj.get(key)]
        why = f"Forbidden: the local node changes {fields} only"
        causes = [StatusCause("FieldValueForbidden", why, field) for field in changed or ["metadata"]]
        raise invalid(obj["kind"], name, causes)
    return result


def page(items: Sequence[Json], limit: int | None, token: str | None) -> tuple[list[Json], str | None, int]:
    """Return one page of a list in order of namespace and name, the token of the next page, and how many items
    remain."""

    def position(obj: Json) -> list[str]:
        return [obj["metadata"].get("namespace", ""), obj["metadata"]["name"]]

    left = list(items)
    if token:
        try:
            after = json.loads(base64.urlsafe_b64decode(token))
            left = [obj for obj in left if position(obj) > after]
        except (ValueError, TypeError) as exc:
            raise bad_request("continue: the token is not valid") from exc
    if not limit or len(left) <= limit:
        return left, None, 0
    shown = left[:limit]
    following = base64.urlsafe_b64encode(json.dumps(position(shown[-1])).encode()).decode()
    return shown, following, len(left) - limit
