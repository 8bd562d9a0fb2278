"""Make the plugin's application at its first request, so that loading the plugin is cheap.

Every process of Airflow loads the plugin; only the api-server serves it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from threading import Lock
from typing import Any

Message = MutableMapping[str, Any]
Asgi = Callable[[MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Any]


def platform_app() -> Asgi:
    from updraft.api import app

    return app.platform_app()


class LazyApp:
    """An ASGI application that makes the real one with `make` at the first request, and calls it."""

    def __init__(self, make: Callable[[], Asgi] = platform_app) -> None:
        self._make = make
        self._app: Asgi | None = None
        self._lock = Lock()

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        app = self._app if self._app is not None else await asyncio.to_thread(self._ready)
        await app(scope, receive, send)

    def _ready(self) -> Asgi:
        with self._lock:
            if self._app is None:
                self._app = self._make()
            return self._app

    def __str__(self) -> str:
        return "Updraft's routes"
