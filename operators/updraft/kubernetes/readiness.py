"""Decide whether a cluster that refuses a request has read its authorization rules yet.

An API server answers 403 to all requests in its first moments. A job launched in such a moment, during an upgrade of
the control plane for instance, must wait, and not fail as forbidden. Called by `calls.call`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from updraft.kubernetes.errors import UnavailableServerError, error_of

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

TIMEOUT_SECONDS = 5
ANYTHING = {"spec": {"resourceAttributes": {"verb": "list", "group": "", "resource": "pods"}}}


def still_starting(api_client: ApiClient) -> bool:
    """Return whether the cluster's refusals mean nothing now, because it is not ready to judge or does not answer."""
    from kubernetes.client import AuthorizationV1Api
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        # Every authenticated account may ask this once the rules are read; the answer is 500 until all else is ready
        # too.
        api_client.call_api(
            "/readyz", "GET", auth_settings=["BearerToken"], response_types_map={}, _request_timeout=TIMEOUT_SECONDS
        )
    except ApiException as exc:
        if isinstance(error_of(exc), UnavailableServerError):
            return True
    except HTTPError:
        return True
    else:
        return False
    try:  # /readyz was refused: ask what every account may ask
        AuthorizationV1Api(api_client).create_self_subject_access_review(ANYTHING, _request_timeout=TIMEOUT_SECONDS)
    except (ApiException, HTTPError):
        return True
    return False
