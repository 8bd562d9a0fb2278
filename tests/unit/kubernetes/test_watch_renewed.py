"""A token that ran out and was renewed is read by those who run already."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes_asyncio.client import ApiException

from updraft.kubernetes import watch
from updraft.kubernetes.watch import PodWatch
from updraft_learner.backoff import Backoff


class Api:
    def __init__(self, token: str) -> None:
        self.token, self.closed = token, False

    async def close(self) -> None:
        self.closed = True


def test_a_refused_watch_reads_its_connection_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = iter(("old", "old", "new"))
    made: list[Api] = []

    class Hook:
        client_configuration: Any

        def __init__(self, conn_id: str) -> None: ...

        async def _get_field(self, name: str) -> None: ...

        async def _load_config(self) -> None:
            self.client_configuration = SimpleNamespace(token=next(tokens))

    def client(configuration: Any) -> Api:
        made.append(Api(configuration.token))
        return made[-1]

    async def listed(self: PodWatch) -> str:
        if self.api.token == "old":
            raise ApiException(status=401, reason="Unauthorized")
        return "7"

    async def watched(self: PodWatch, version: str) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr("airflow.providers.cncf.kubernetes.hooks.kubernetes.AsyncKubernetesHook", Hook)
    monkeypatch.setattr("kubernetes_asyncio.client.ApiClient", client)
    monkeypatch.setattr(PodWatch, "_list", listed)
    monkeypatch.setattr(PodWatch, "_watch", watched)
    monkeypatch.setattr(watch, "BACKOFF", Backoff(0.001, 0.001))

    async def run() -> PodWatch:
        found = PodWatch("c", "ns")
        await found.start()
        await asyncio.wait_for(found.synced.wait(), 20)
        await found.stop()
        return found

    found = asyncio.run(run())
    assert SimpleNamespace(token=found.api.token, made=len(made)) == SimpleNamespace(token="new", made=3)
    assert all(api.closed for api in made)
