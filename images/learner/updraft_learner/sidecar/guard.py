"""Decide who may use the loopback MLflow endpoint: requests with the launch's token, addressed to the endpoint itself.

In a cluster, only the pod reaches its loopback address. On the local node, every user of the machine does, and so do
web pages in a browser there: with a form, or with a host name of theirs that they point to 127.0.0.1. The token keeps
other processes out; `Host` and `Origin` keep web pages out. Called by `endpoint` before it reads a request's body.
"""

from __future__ import annotations

import hmac
from email.message import Message

from updraft_learner.contract import ENDPOINT_TOKEN_ENV
from updraft_learner.sidecar.refusals import EndpointError

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
HOW = f"send the header `Authorization: Bearer ${ENDPOINT_TOKEN_ENV}`; MLflow's client does so by itself"
BASIC = (
    "This request has a user name and a password: MLflow's client prefers MLFLOW_TRACKING_USERNAME and _PASSWORD, and "
    "~/.mlflow/credentials, to the token. Remove them for the job's own run"
)


class Guard:
    """Checks the headers of requests to the endpoint on `port`.

    Raises ValueError for an empty token.
    """

    def __init__(self, token: str, port: int) -> None:
        if not token:
            raise ValueError("the endpoint needs a token")
        self._token = token.encode()
        self._hosts = frozenset(f"{name}:{port}" for name in LOOPBACK_NAMES)
        self._origins = frozenset(f"http://{host}" for host in self._hosts)

    def check_address(self, headers: Message) -> None:
        """Raise EndpointError (403) unless `Host` is this endpoint, once, and `Origin`, if any, is too."""
        hosts = [host.strip().lower() for host in headers.get_all("Host", [])]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            named = ", ".join(hosts)[:100] or "nothing"
            raise EndpointError.permission(
                f"the header Host names {named!r}; allowed is {' or '.join(sorted(self._hosts))}"
            )
        for origin in headers.get_all("Origin", []):
            if origin.strip().lower() not in self._origins:
                raise EndpointError.permission(
                    f"the header Origin names {origin[:100]!r}: pages of other servers may not use this endpoint"
                )

    def check_token(self, headers: Message) -> None:
        """Raise EndpointError (401) unless the request has the launch's token; the time taken does not show how much of
        it was right."""
        given = headers.get_all("Authorization", [])
        scheme, _, token = given[0].strip().partition(" ") if len(given) == 1 else ("", "", "")
        right = hmac.compare_digest(token.strip().encode("utf-8", "replace"), self._token)
        if scheme.lower() == "bearer" and right:
            return
        if scheme.lower() == "basic":
            raise EndpointError.unauthenticated(f"{HOW}. {BASIC}")
        problem = "the token is not that of this launch" if given else "the request has no token"
        raise EndpointError.unauthenticated(f"{problem}; {HOW}")
