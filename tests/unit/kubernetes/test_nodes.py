"""The cluster is asked for its nodes once for all waiting jobs, and not while it asks for a pause."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from kubernetes.client.exceptions import ApiException
from unit.kubernetes.async_server import Connect, client_of, serving
from urllib3.exceptions import HTTPError

from updraft.exceptions import UnavailableError
from updraft.kubernetes.nodes import KEPT_SECONDS, PODS_KEPT_SECONDS, REFUSED_SECONDS, nodes_of, with_other_pods
from updraft.kubernetes.other_pods import USED

NODE = {"metadata": {"name": "a"}}
LISTED = {"items": [NODE]}
Answer = Callable[[], web.Response]


class Asking:
    """A caller with a clock of its own, and a client of the server that it asks."""

    def __init__(self, connect: Connect) -> None:
        self.connect, self.now = connect, 100.0

    async def nodes(self) -> list[dict[str, Any]]:
        return await nodes_of("c", connect=self.connect, clock=lambda: self.now)


def against(answer: Answer, ask: Callable[[Asking], Awaitable[None]]) -> list[str]:
    """The requests that a server saw which answers like this while `ask` runs."""
    seen: list[str] = []

    async def serve(request: web.Request) -> web.Response:
        seen.append(str(request.rel_url))
        return answer()

    async def run() -> None:
        async with serving({"/api/v1/nodes": serve}) as host:
            await asyncio.wait_for(ask(Asking(client_of(host))), 20)

    asyncio.run(run())
    return seen


def test_all_who_wait_share_one_list_until_it_is_old() -> None:
    async def ask(asking: Asking) -> None:
        assert await asyncio.gather(*(asking.nodes() for _ in range(500))) == [[NODE]] * 500
        asking.now += KEPT_SECONDS
        assert await asking.nodes() == [NODE]

    seen = against(lambda: web.json_response(LISTED), ask)
    assert seen == ["/api/v1/nodes?resourceVersion=0"] * 2


def test_a_server_that_has_too_much_to_do_is_left_alone() -> None:
    answers = [web.Response(status=429, headers={"Retry-After": "20"}), web.json_response(LISTED)]

    async def ask(asking: Asking) -> None:
        for _ in range(2):
            with pytest.raises(UnavailableError, match=r"cannot be listed \(it answered 429\); `updraft doctor`"):
                await asking.nodes()
            asking.now += 19
        assert await asking.nodes() == [NODE]

    assert len(against(lambda: answers.pop(0), ask)) == 2


def test_an_answer_that_is_no_list_is_waited_out() -> None:
    answers: list[Any] = [web.Response(text="hello"), web.json_response({}), web.json_response(LISTED)]

    async def ask(asking: Asking) -> None:
        for _ in range(2):
            with pytest.raises(UnavailableError, match="cannot be listed"):
                await asking.nodes()
            asking.now += KEPT_SECONDS
        assert await asking.nodes() == [NODE]

    against(lambda: answers.pop(0), ask)


def test_who_is_cancelled_while_asking_keeps_nobody_waiting() -> None:
    async def ask(asking: Asking) -> None:
        asked = asyncio.Event()

        async def hangs(conn_id: str) -> Any:
            asked.set()
            await asyncio.sleep(3600)

        first = asyncio.create_task(nodes_of("c", connect=hangs))
        await asked.wait()
        second = asyncio.create_task(asking.nodes())
        first.cancel()
        assert await second == [NODE]

    against(lambda: web.json_response(LISTED), ask)


def test_what_pods_of_others_take_is_asked_for_seldom_and_done_without() -> None:
    """A refusal keeps no job waiting, and is not asked for again for minutes."""
    taken = {"spec": {"nodeName": "a", "containers": [{"resources": {"requests": {"cpu": "2"}}}]}}
    answers = [web.json_response({"items": [taken]}), web.Response(status=500), web.Response(status=403)]
    asked: list[str] = []

    async def nodes(_request: web.Request) -> web.Response:
        return web.json_response(LISTED)

    async def pods(request: web.Request) -> web.Response:
        asked.append(request.rel_url.query["labelSelector"])
        return answers.pop(0)

    async def run() -> None:
        async with serving({"/api/v1/nodes": nodes, "/api/v1/pods": pods}) as host:
            asking = Asking(client_of(host))
            for seconds, cpus in ((0, 2), (KEPT_SECONDS, 2), (PODS_KEPT_SECONDS, 2), (PODS_KEPT_SECONDS, None)):
                asking.now += seconds
                (node,) = await asking.nodes()
                assert node.get(USED, {}).get("cpu") == cpus
            asking.now += REFUSED_SECONDS - 1
            await asking.nodes()

    asyncio.run(run())
    assert asked == ["!updraft.dev/job"] * 3


def test_without_an_event_loop_they_are_known_too() -> None:
    """And a cluster that refuses or does not answer keeps the nodes from nobody."""
    taken = {"spec": {"nodeName": "a", "containers": [{"resources": {"requests": {"cpu": "2"}}}]}}

    def core(answer: Any) -> Any:
        def listed(**_: Any) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return SimpleNamespace(data=json.dumps({"items": answer}).encode())

        return SimpleNamespace(list_pod_for_all_namespaces=listed)

    (node,) = with_other_pods(core([taken]), [NODE], 1)
    assert node[USED] == {"cpu": 2}
    for refused in (ApiException(status=403), HTTPError("timed out")):
        assert with_other_pods(core(refused), [NODE], 1) == [NODE]
