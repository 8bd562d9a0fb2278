"""Define the errors of the Kubernetes API as exceptions, by HTTP status and by the reason in the Status object.

The clients raise the same `ApiException` for all errors. `error_of` converts it; all other code catches classes of this
tree. Statuses and reasons: https://github.com/kubernetes/community, API conventions, "Response Status Kind".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class ApiError(Exception):
    """The API server answered with an error.

    Args:
        status: The HTTP status; 0 if no connection was made.
        message: The server's message, or else the HTTP reason.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status} {message}")
        self.status = status
        self.message = message


class ClientError(ApiError):
    """The request can never succeed unchanged (4xx)."""


class UnauthorizedError(ClientError):
    """The server does not accept the log-in (401)."""


class ForbiddenError(ClientError):
    """The account may not do this (403)."""


class QuotaExceededError(ForbiddenError):
    """A ResourceQuota has no room for the object, or has no status yet (403)."""


class ObjectNotFoundError(ClientError):
    """The object does not exist (404)."""


class AlreadyExistsError(ClientError):
    """An object of this name already exists (409)."""


class TransientError(ApiError):
    """The same request may succeed a moment later."""


class WriteConflictError(TransientError):
    """Two clients wrote the same object at once, a ResourceQuota for instance (409, reason Conflict)."""


class TooManyRequestsError(TransientError):
    """The server asks for fewer requests (429)."""


class UnavailableServerError(TransientError):
    """The server, or a proxy before it, cannot answer now (408, 5xx)."""


# Kubernetes reports an exceeded quota with the reason Forbidden, like a missing right; only the message of its
# ResourceQuota plugin differs. The second text is that of a new quota without a status.
OVER_QUOTA = ("exceeded quota:", "status unknown for quota:")
_BY_STATUS: Mapping[int, type[ApiError]] = {
    401: UnauthorizedError,
    403: ForbiddenError,
    404: ObjectNotFoundError,
    408: UnavailableServerError,
    409: AlreadyExistsError,
    429: TooManyRequestsError,
}


def error_of(exc: Any) -> ApiError:
    """Return what an `ApiException`, of the synchronous or the asynchronous client, means."""
    told = _told(exc)
    status, message = int(exc.status or 0), str(told.get("message") or exc.reason)
    return _class(status, str(told.get("reason") or ""), message)(status, message)


def _class(status: int, reason: str, message: str) -> type[ApiError]:
    if status == 409 and reason == "Conflict":
        return WriteConflictError
    if status == 403 and any(words in message for words in OVER_QUOTA):
        return QuotaExceededError
    if status >= 500:
        return UnavailableServerError
    return _BY_STATUS.get(status, ClientError if 400 <= status < 500 else ApiError)


def _told(exc: Any) -> Mapping[str, Any]:
    """Return the Status that the API server answers with; empty where something else did."""
    try:
        told = json.loads(exc.body)
    except (ValueError, TypeError):
        return {}
    return told if isinstance(told, dict) else {}
