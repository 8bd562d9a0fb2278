"""What the watch makes of the server's answers, from a server that says what it is told to say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from kubernetes_asyncio.client import ApiClient, ApiException, Configuration

from updraft.kubernetes.watch import PodWatch

LABELS = {"updraft.dev/job": "j", "updraft.dev/role": "train", "updraft.dev/attempt": "1", "updraft.dev/learner": "1"}
KEY = ("j", "train", "1")


def pod(phase: str) -> dict[str, Any]:
    return {"metadata": {"name": "j-train-1", "labels": LABELS}, "status": {"phase": phase}}


def event(kind: str, body: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": body}).encode() + b"\n"


@asynccontextmanager
async def watching(items: list[dict[str, Any]], events: list[bytes], status: int = 200) -> AsyncIterator[PodWatch]:
    async def answer(request: web.Request) -> web.StreamResponse:
        if status != 200:
            return web.Response(status=status)
        assert request.query["labelSelector"] == "updraft.dev/job"
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "7"}, "items": items})
        assert request.query["resourceVersion"] == "7"
        response = web.StreamResponse()
        await response.prepare(request)
        for each in events:
            await response.write(each[:10])
            await response.write(each[10:])
        return response

    application = web.Application()
    application.router.add_get("/api/v1/namespaces/ns/pods", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    watch = PodWatch("c", "ns")
    watch.api = ApiClient(configuration=Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}"))
    try:
        yield watch
    finally:
        await watch.stop()
        await runner.cleanup()


def test_pods_come_change_and_go() -> None:
    events = [event("MODIFIED", pod("Running")), event("BOOKMARK", {"metadata": {}}), event("DELETED", pod("Failed"))]

    async def run() -> tuple[list[str], list[str], bool]:
        async with watching([pod("Pending")], events[:2]) as watch:
            woken = watch.subscribe(KEY)
            version = await watch._list()
            listed = [facts.phase for facts in watch.pods(KEY)]
            woken.clear()
            await watch._watch(version)
            changed = [facts.phase for facts in watch.pods(KEY)]
            assert woken.is_set()
        async with watching([pod("Pending")], events) as watch:
            await watch._watch(await watch._list())
            return listed, changed, bool(watch.launches())

    assert asyncio.run(run()) == (["Pending"], ["Running"], False)


@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_refusal_is_told_with_its_status(status: int) -> None:
    async def run() -> None:
        async with watching([], [], status) as watch:
            await watch._list()

    with pytest.raises(ApiException) as caught:
        asyncio.run(run())
    assert caught.value.status == status


def test_a_version_that_is_forgotten_ends_the_watch() -> None:
    async def run() -> None:
        async with watching([], [event("ERROR", {"code": 410, "message": "too old"})]) as watch:
            await watch._watch(await watch._list())

    with pytest.raises(ApiException) as caught:
        asyncio.run(run())
    assert caught.value.status == 410
