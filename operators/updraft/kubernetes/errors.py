"""What the Kubernetes API refused, as exceptions that are told apart by HTTP status and by the reason of the Status.

The clients have one `ApiException` for everything. `error_of` makes one of these of it; everything else asks for a
class. Statuses and reasons: https://github.com/kubernetes/community, API conventions, "Response Status Kind".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class ApiError(Exception):
    """The API server answered with an error.

    Args:
        status: of HTTP; 0 where no connection was made.
        message: the server's own words, or those of HTTP.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status} {message}")
        self.status = status
        self.message = message


class ClientError(ApiError):
    """The request as it is will never succeed (4xx)."""


class UnauthorizedError(ClientError):
    """The log-in is not accepted (401)."""


class ForbiddenError(ClientError):
    """The account may not do this (403)."""


class QuotaExceededError(ForbiddenError):
    """A ResourceQuota has no room for the object, or cannot tell yet (403)."""


class ObjectNotFoundError(ClientError):
    """There is no such object (404)."""


class AlreadyExistsError(ClientError):
    """There is an object of this name already (409)."""


class TransientError(ApiError):
    """The same request may succeed a moment later."""


class WriteConflictError(TransientError):
    """Two wrote at once, into a ResourceQuota for instance (409, reason Conflict)."""


class TooManyRequestsError(TransientError):
    """The server wants to be asked less often (429)."""


class UnavailableServerError(TransientError):
    """The server, or what stands before it, cannot answer now (408, 5xx)."""


# Kubernetes tells of an exceeded quota by the reason Forbidden alone, as of a missing right: only the message of its
# ResourceQuota plugin differs. The second is of a quota that was just made and has no status yet.
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
