"""A token that ran out and was renewed is read by those who run already."""

from __future__ import annotations

import asyncio

from aiohttp import web
from kubernetes_asyncio.client import ApiClient, Configuration
from unit.kubernetes.async_server import serving

from updraft.kubernetes.watch import PodWatch
from updraft_learner.backoff import Backoff


class Api(ApiClient):
    closed = False

    async def close(self) -> None:
        self.closed = True
        await super().close()


async def no_pods(request: web.Request) -> web.StreamResponse:
    if request.headers["Authorization"] != "Bearer new":
        return web.Response(status=401)
    if "watch" in request.query:
        await asyncio.sleep(60)
    return web.json_response({"metadata": {"resourceVersion": "7"}, "items": []})


def test_a_refused_watch_reads_its_connection_again() -> None:
    tokens = iter(("old", "old", "new"))
    made: list[tuple[str, Api]] = []

    async def run() -> None:
        async with serving({"/api/v1/namespaces/ns/pods": no_pods}) as host:

            async def connect(conn_id: str) -> ApiClient:
                token = next(tokens)
                made.append((token, Api(Configuration(host=host, api_key={"BearerToken": f"Bearer {token}"}))))
                return made[-1][1]

            watch = PodWatch("c", "ns", connect=connect, backoff=Backoff(0.001, 0.001))
            await watch.start()
            await asyncio.wait_for(watch.synced.wait(), 20)
            await watch.stop()

    asyncio.run(run())
    assert [token for token, _ in made] == ["old", "old", "new"]
    assert all(api.closed for _, api in made)
