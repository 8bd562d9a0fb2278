"""The cluster is asked for its nodes once for all waiting jobs, and not while it asks for a pause."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from kubernetes_asyncio.client import ApiClient, Configuration

from updraft.exceptions import UnavailableError
from updraft.kubernetes import nodes
from updraft.kubernetes.nodes import nodes_of

NODE = {"metadata": {"name": "a"}}
LISTED = {"items": [NODE]}
Answer = Callable[[], web.Response]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(nodes, "monotonic", lambda: now[0])
    return now


def against(answer: Answer, ask: Callable[[], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests that a server saw which answers like this while `ask` runs."""
    seen: list[str] = []

    async def serve(request: web.Request) -> web.Response:
        seen.append(str(request.rel_url))
        return answer()

    async def run() -> None:
        application = web.Application()
        application.router.add_get("/api/v1/nodes", serve)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()

        async def client(conn_id: str) -> ApiClient:
            return ApiClient(Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}"))

        monkeypatch.setattr(nodes, "async_client", client)
        try:
            await asyncio.wait_for(ask(), 20)
        finally:
            await runner.cleanup()

    asyncio.run(run())
    return seen


def test_all_who_wait_share_one_list_until_it_is_old(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> None:
        assert await asyncio.gather(*(nodes_of("c") for _ in range(500))) == [[NODE]] * 500
        clock[0] += nodes.KEPT_SECONDS
        assert await nodes_of("c") == [NODE]

    seen = against(lambda: web.json_response(LISTED), ask, monkeypatch)
    assert seen == ["/api/v1/nodes?resourceVersion=0"] * 2


def test_a_server_that_has_too_much_to_do_is_left_alone(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [web.Response(status=429, headers={"Retry-After": "20"}), web.json_response(LISTED)]

    async def ask() -> None:
        for _ in range(2):
            with pytest.raises(UnavailableError, match=r"cannot be listed \(it answered 429\); `updraft doctor`"):
                await nodes_of("c")
            clock[0] += 19
        assert await nodes_of("c") == [NODE]

    assert len(against(lambda: answers.pop(0), ask, monkeypatch)) == 2


def test_an_answer_that_is_no_list_is_waited_out(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [web.Response(text="hello"), web.json_response({}), web.json_response(LISTED)]

    async def ask() -> None:
        for _ in range(2):
            with pytest.raises(UnavailableError, match="cannot be listed"):
                await nodes_of("c")
            clock[0] += nodes.KEPT_SECONDS
        assert await nodes_of("c") == [NODE]

    against(lambda: answers.pop(0), ask, monkeypatch)


def test_who_is_cancelled_while_asking_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Event()

    async def hangs(conn_id: str) -> Any:
        asked.set()
        await asyncio.sleep(3600)

    async def run() -> None:
        monkeypatch.setattr(nodes, "_list", hangs)
        first = asyncio.create_task(nodes_of("c"))
        await asked.wait()

        async def answers(conn_id: str) -> list[dict[str, Any]]:
            return [NODE]

        monkeypatch.setattr(nodes, "_list", answers)
        second = asyncio.create_task(nodes_of("c"))
        first.cancel()
        assert await asyncio.wait_for(second, 20) == [NODE]

    asyncio.run(run())
