"""The watch beside many followed logs, each of which holds a connection of the same client."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web
from unit.kubernetes.api_server import kubeconfig
from unit.kubernetes.async_server import serving

from updraft.kubernetes import logs
from updraft.kubernetes.watch import PodWatch

FOLLOWED = 130


async def followed_log(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"2026-01-02T03:04:05.000000006Z it runs\n")
    await asyncio.sleep(60)
    return response


async def no_pods(request: web.Request) -> web.StreamResponse:
    if "watch" in request.query:
        await asyncio.sleep(60)
    return web.json_response({"metadata": {"resourceVersion": "7"}, "items": []})


async def first_line(watch: PodWatch, number: int, read: asyncio.Semaphore) -> None:
    async for _ in logs.follow(watch.api, "ns", f"pod-{number}", "base", logs.Cursor()):
        read.release()


def test_more_followed_logs_than_the_client_has_connections_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> str:
        async with serving(
            {
                "/api/v1/namespaces/ns/pods": no_pods,
                "/api/v1/namespaces/ns/pods/{pod}/log": followed_log,
            }
        ) as host:
            extra = {"kube_config_path": str(kubeconfig(tmp_path / "kubeconfig", host))}
            monkeypatch.setenv("AIRFLOW_CONN_MANY", json.dumps({"conn_type": "kubernetes", "extra": extra}))
            watch = PodWatch("many", "ns")
            await watch.start()
            read = asyncio.Semaphore(0)
            followers = [asyncio.create_task(first_line(watch, number, read)) for number in range(FOLLOWED)]
            try:
                for _ in range(FOLLOWED):
                    await asyncio.wait_for(read.acquire(), 20)
                return await asyncio.wait_for(watch._list(), 20)
            finally:
                for task in followers:
                    task.cancel()
                await asyncio.gather(*followers, return_exceptions=True)
                await watch.stop()

    assert asyncio.run(run()) == "7"
