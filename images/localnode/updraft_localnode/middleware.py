"""Check the token and apply the fault lab's faults before every route; convert errors to `Status` objects after it.

Used by `server`.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from updraft_localnode.connections import Connections
from updraft_localnode.errors import StatusError, method_not_allowed, no_such_route, unauthorized
from updraft_localnode.faultstate import FaultState, error_of

logger = logging.getLogger(__name__)
PUBLIC_PATHS = frozenset({"/healthz", "/livez", "/readyz", "/version", "/version/"})


class ApiMiddleware:
    """Checks the token and applies faults before every route, and converts errors after it."""

    def __init__(self, app: ASGIApp, token: str, faults: FaultState, wires: Connections) -> None:
        self._app, self._token, self._faults, self._wires = app, token, faults, wires

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in PUBLIC_PATHS:
            await self._app(scope, receive, send)
        elif not self._knows(Request(scope)):
            await _error_response(unauthorized())(scope, receive, send)
        elif scope["path"] == "/faults":
            await self._app(scope, receive, send)
        else:
            await self._with_faults(scope, receive, send)

    async def _with_faults(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._faults.cut == "close":
            self._wires.close(scope)
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        await self._reachable()
        if self._faults.lag_seconds:
            await asyncio.sleep(self._faults.lag_seconds)
        fault = self._faults.take_error(scope["method"], scope["path"])
        if fault is None:
            await self._app(scope, receive, self._hanging(send))
            return
        if fault.executed and scope["method"] != "GET":
            await self._app(scope, receive, _unheard)
        await _error_response(error_of(fault))(scope, receive, send)

    async def _reachable(self) -> None:
        """Return when no packet is held up any more."""
        while self._faults.cut == "hang":
            await asyncio.sleep(min(self._faults.cut_seconds_left, 0.2))

    def _hanging(self, send: Send) -> Send:
        async def held_up(message: Message) -> None:
            await self._reachable()
            await send(message)

        return held_up

    def _knows(self, request: Request) -> bool:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token.encode())


async def _unheard(_: Message) -> None:
    """Drop an answer whose reader never gets it."""


def _error_response(error: StatusError) -> Response:
    seconds = error.retry_after_seconds
    headers = {} if seconds is None else {"Retry-After": str(seconds)}
    return JSONResponse(error.status(), error.code, headers=headers)


async def _on_api_error(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, StatusError)
    return _error_response(exc)


async def _on_http_error(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    return _error_response(method_not_allowed() if exc.status_code == 405 else no_such_route())


async def _on_defect(_: Request, exc: Exception) -> Response:
    logger.error("request failed", exc_info=exc)
    return _error_response(StatusError(500, "InternalError", f"Internal error occurred: {type(exc).__name__}"))


ERROR_HANDLERS: Mapping[int | type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
    StatusError: _on_api_error,
    HTTPException: _on_http_error,
    Exception: _on_defect,
}
