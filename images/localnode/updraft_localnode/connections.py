"""Track open connections of the HTTP server, so that the fault lab can cut them. Used by `server` and `faultlab`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from starlette.types import Scope


class Connections:
    def __init__(self) -> None:
        self._connections: Callable[[], Iterable[Any]] = tuple

    def attach(self, connections: Callable[[], Iterable[Any]]) -> None:
        """Set where the server's connections are: objects with `client` and `transport`, as uvicorn's protocols are."""
        self._connections = connections

    def close(self, scope: Scope) -> None:
        """End the connection of one request without an answer."""
        self._close(lambda client: client == tuple(scope["client"]))

    def close_all(self, *, but: tuple[str, int] | None) -> None:
        """End every connection but the one on which this was asked for."""
        self._close(lambda client: client != but)

    def _close(self, chosen: Callable[[Any], bool]) -> None:
        for connection in list(self._connections()):
            if chosen(connection.client) and connection.transport is not None:
                connection.transport.abort()
