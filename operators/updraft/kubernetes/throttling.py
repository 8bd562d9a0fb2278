"""Read how long an overloaded server asks its clients to wait (429, 503 with Retry-After).

Pure; called wherever a request to the cluster is retried.
"""

from __future__ import annotations

TOO_MANY_REQUESTS = 429
LONGEST_PAUSE_SECONDS = 60.0  # Kubernetes asks for at most 32 s; a wrong value must not stop a controller for a day


def asked_pause_seconds(failed: BaseException | None) -> float:
    """Return how long a pause the server that refused asks for; 0 if it asks for none."""
    headers = getattr(failed, "headers", None) or {}
    try:
        seconds = float(headers.get("Retry-After") or 0)
    except (AttributeError, ValueError):  # no headers, or a date, which no API server sends
        return 0.0
    return min(max(seconds, 0.0), LONGEST_PAUSE_SECONDS)


def throttled(failed: BaseException) -> bool:
    """Return whether the client library itself retried, and got 429 each time."""
    from urllib3.exceptions import MaxRetryError, ResponseError

    told = failed.reason if isinstance(failed, MaxRetryError) else None
    return isinstance(told, ResponseError) and str(TOO_MANY_REQUESTS) in str(told)
