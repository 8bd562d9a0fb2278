"""A server on loopback in the test's own event loop, in the place of an API server, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web
from kubernetes_asyncio.client import ApiClient, Configuration

Connect = Callable[[str], Awaitable[ApiClient]]


@asynccontextmanager
async def serving(routes: Mapping[str, Callable[[web.Request], Awaitable[web.StreamResponse]]]) -> AsyncIterator[str]:
    """Answer GET requests of each path with its handler; give the server's address."""
    application = web.Application()
    for path, handler in routes.items():
        application.router.add_get(path, handler)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def client_of(host: str) -> Connect:
    """Return what makes a client of the server, whatever the name of the connection."""

    async def connect(conn_id: str) -> ApiClient:
        return ApiClient(Configuration(host=host))

    return connect
