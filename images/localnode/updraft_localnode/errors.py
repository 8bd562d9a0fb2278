"""Define the errors of the local node itself, and of its API: a `Status` object with code and reason, as Kubernetes
sends it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


class LocalNodeError(Exception):
    """The local node cannot start, or a part of it failed. The message says what to do."""


@dataclass(frozen=True)
class StatusCause:
    """One wrong field of an object."""

    reason: (
        str  # FieldValueInvalid, FieldValueRequired, FieldValueNotSupported, FieldValueDuplicate, FieldValueForbidden
    )
    message: str
    field: str

    def text(self) -> str:
        return f"{self.field}: {self.message}"


@dataclass
class StatusError(Exception):
    """An answer other than success, with the content of the `Status` object."""

    code: int
    reason: str
    message: str
    details: Json = field(default_factory=dict)
    retry_after_seconds: int | None = None

    def __str__(self) -> str:
        return self.message

    def status(self) -> Json:
        body: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            **({"reason": self.reason} if self.reason else {}),
            "code": self.code,
        }
        details = dict(self.details)
        if self.retry_after_seconds is not None:
            details["retryAfterSeconds"] = self.retry_after_seconds
        if details:
            body["details"] = details
        return body


def success(kind: str, name: str, uid: str) -> Json:
    """Return the `Status` that answers a finished deletion."""
    details = {**_details(kind, name), "uid": uid}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}


def unauthorized() -> StatusError:
    return StatusError(401, "Unauthorized", "Unauthorized")


# Groups of the API other than the core; their resources are written `networkpolicies.networking.k8s.io`.
GROUPS = {"networkpolicies": "networking.k8s.io", "poddisruptionbudgets": "policy"}


def qualified(resource: str) -> str:
    return f"{resource}.{GROUPS[resource]}" if resource in GROUPS else resource


def _details(resource: str, name: str) -> Json:
    group = {"group": GROUPS[resource]} if resource in GROUPS else {}
    return {"name": name, **group, "kind": resource}


def not_found(resource: str, name: str) -> StatusError:
    message = f'{qualified(resource)} "{name}" not found'
    return StatusError(404, "NotFound", message, _details(resource, name))


def no_such_route() -> StatusError:
    return StatusError(404, "NotFound", "the server could not find the requested resource")


def method_not_allowed() -> StatusError:
    message = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", message)


def already_exists(resource: str, name: str) -> StatusError:
    message = f'{qualified(resource)} "{name}" already exists'
    return StatusError(409, "AlreadyExists", message, _details(resource, name))


def conflict(resource: str, name: str, why: str) -> StatusError:
    message = f'Operation cannot be fulfilled on {qualified(resource)} "{name}": {why}'
    return StatusError(409, "Conflict", message, _details(resource, name))


def bad_request(message: str) -> StatusError:
    return StatusError(400, "BadRequest", message)


def expired(version: int, oldest: int) -> StatusError:
    return StatusError(410, "Expired", f"too old resource version: {version} ({oldest})")


def kubelet_away(pod: Json, container: str, query: str) -> StatusError:
    """Return what the API server says when it cannot reach a kubelet; it gives no reason then."""
    meta, address = pod["metadata"], f"{pod['status'].get('hostIP', '127.0.0.1')}:10250"
    path = f"containerLogs/{meta['namespace']}/{meta['name']}/{container}{'?' + query if query else ''}"
    return StatusError(500, "", f'Get "https://{address}/{path}": dial tcp {address}: i/o timeout')


def invalid(kind: str, name: str, causes: list[StatusCause]) -> StatusError:
    """Create a 422 that names every wrong field."""
    texts = [cause.text() for cause in causes]
    wrong = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details = {
        "name": name,
        "kind": kind,
        "causes": [{"reason": c.reason, "message": c.message, "field": c.field} for c in causes],
    }
    return StatusError(422, "Invalid", f'{kind} "{name}" is invalid: {wrong}', details)
