"""What the watch last saw of pods that are gone, for whoever waits for them; and a watch that is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes_asyncio.client import ApiException

from updraft.kubernetes import watch as watching
from updraft.kubernetes.watch import PodWatch
from updraft_learner import contract

KEY = ("digits-1", "train", "1")


def pod(name: str, *, code: int | None = None, job: str = KEY[0]) -> dict[str, Any]:
    labels = {contract.LABEL_JOB: job, contract.LABEL_ROLE: KEY[1], contract.LABEL_ATTEMPT: KEY[2]}
    state = {"running": {}} if code is None else {"terminated": {"exitCode": code}}
    status = {"phase": "Running", "containerStatuses": [{"name": "base", "state": state}]}
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def api(*pods: dict[str, Any]) -> Any:
    return SimpleNamespace(sanitize_for_serialization=lambda item: item, listed=list(pods))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Events of the next watch; the list is what the watch's `api` holds."""
    events: list[dict[str, Any]] = []

    class Core:
        def __init__(self, given: Any) -> None:
            self._given = given

        async def list_namespaced_pod(self, namespace: str, **_: Any) -> Any:
            return SimpleNamespace(items=self._given.listed, metadata=SimpleNamespace(resource_version="7"))

    class Watch:
        @asynccontextmanager
        async def stream(self, function: Any, namespace: str, **_: Any) -> AsyncIterator[Any]:
            async def each() -> AsyncIterator[dict[str, Any]]:
                for event in events:
                    yield event

            yield each()

    monkeypatch.setattr("kubernetes_asyncio.client.CoreV1Api", Core)
    monkeypatch.setattr("kubernetes_asyncio.watch.Watch", Watch)
    return events


def deleted(gone: dict[str, Any]) -> dict[str, Any]:
    return {"type": "DELETED", "raw_object": gone}


def test_a_pod_that_is_deleted_is_remembered_as_it_was_at_its_end(cluster: list[dict[str, Any]]) -> None:
    watch = PodWatch("c", "ns")
    watch.api = api(pod("p-0"), pod("p-1"), pod("other", job="other-1"))
    cluster += [deleted(pod("p-0", code=143)), deleted(pod("other", code=1, job="other-1"))]

    async def run() -> None:
        woken = watch.subscribe(KEY)
        await watch._watch(await watch._list())
        assert [(p.name, p.main.exit_code) for p in watch.gone(KEY)] == [("p-0", 143)]
        assert [p.name for p in watch.pods(KEY)] == ["p-1"]
        assert woken.is_set()
        assert watch.gone(("other-1", "train", "1")) == []  # nobody waits for it
        watch.unsubscribe(KEY, woken)
        assert watch.gone(KEY) == []

    asyncio.run(run())


def test_a_pod_that_went_while_nobody_watched_is_remembered_as_it_was_last_seen(cluster: list[dict[str, Any]]) -> None:
    watch = PodWatch("c", "ns")
    watch.api = api(pod("p-0"), pod("p-1"))

    async def run() -> None:
        watch.subscribe(KEY)
        await watch._list()
        watch.api.listed = [pod("p-1")]
        await watch._list()
        (left,) = watch.gone(KEY)
        assert (left.name, left.main.state, left.told) == ("p-0", "running", False)

    asyncio.run(run())


def test_a_watch_that_is_refused_says_how(cluster: list[dict[str, Any]]) -> None:
    async def list_pods(**_: Any) -> Any:
        async def read() -> bytes:
            return b"Too many requests, please try again later."

        return SimpleNamespace(status=429, reason="Too Many Requests", headers={"Retry-After": "9"}, read=read)

    with pytest.raises(ApiException) as caught:
        asyncio.run(watching._raising(list_pods)())
    assert (caught.value.status, caught.value.headers["Retry-After"]) == (429, "9")
