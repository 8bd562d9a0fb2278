"""What the watch keeps of pods that are gone: their last state, for whoever waits for their launch, and no longer."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from updraft.kubernetes.watch import LaunchKey, PodWatch

KEY: LaunchKey = ("j", "train", "1")
LABELS = {"updraft.dev/job": "j", "updraft.dev/role": "train", "updraft.dev/attempt": "1"}


def pod(name: str, code: int | None = None) -> dict[str, Any]:
    state: dict[str, Any] = {"running": {}} if code is None else {"terminated": {"exitCode": code}}
    learner = {"updraft.dev/learner": name[-1]}
    status = {"phase": "Running", "containerStatuses": [{"name": "base", "state": state}]}
    return {"metadata": {"name": name, "labels": {**LABELS, **learner}}, "status": status}


class Cluster:
    """One LIST, then the events of one WATCH."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.listed: list[dict[str, Any]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        cluster = self

        class Core:
            def __init__(self, api: Any) -> None: ...

            async def list_namespaced_pod(self, namespace: str, **options: Any) -> Any:
                return SimpleNamespace(items=cluster.listed, metadata=SimpleNamespace(resource_version="1"))

        class Watch:
            @asynccontextmanager
            async def stream(self, *args: Any, **options: Any) -> Any:
                async def told() -> Any:
                    for kind, found in cluster.events:
                        yield {"type": kind, "raw_object": found}

                yield told()

        monkeypatch.setattr("kubernetes_asyncio.client.CoreV1Api", Core)
        monkeypatch.setattr("kubernetes_asyncio.watch.Watch", Watch)

    async def look(self, watch: PodWatch) -> None:
        await watch._watch(await watch._list())


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def watch() -> PodWatch:
    found = PodWatch("c", "ns")
    found.api = SimpleNamespace(sanitize_for_serialization=lambda item: item)
    return found


def exit_codes(found: PodWatch) -> dict[int, int | None]:
    return {facts.learner: facts.main.exit_code for facts in found.last_seen(KEY)}


def test_the_end_that_came_with_the_removal_is_kept(cluster: Cluster) -> None:
    found = watch()
    found.subscribe(KEY)
    cluster.listed = [pod("p-1"), pod("p-2")]
    cluster.events = [("DELETED", pod("p-1", 143))]
    asyncio.run(cluster.look(found))
    assert [facts.learner for facts in found.pods(KEY)] == [2]
    assert exit_codes(found) == {1: 143, 2: None}


def test_a_pod_that_went_while_nobody_watched_is_as_it_was(cluster: Cluster) -> None:
    found = watch()
    found.subscribe(KEY)
    cluster.listed, cluster.events = [pod("p-1")], [("MODIFIED", pod("p-1", 1))]
    asyncio.run(cluster.look(found))
    cluster.listed, cluster.events = [], []
    asyncio.run(cluster.look(found))
    assert found.pods(KEY) == []
    assert exit_codes(found) == {1: 1}


def test_nothing_is_kept_of_a_launch_that_nobody_waits_for(cluster: Cluster) -> None:
    found = watch()
    cluster.listed, cluster.events = [pod("p-1")], [("DELETED", pod("p-1", 0))]
    asyncio.run(cluster.look(found))
    assert found.last_seen(KEY) == []
    event = found.subscribe(KEY)
    asyncio.run(cluster.look(found))
    assert exit_codes(found) == {1: 0}
    found.unsubscribe(KEY, event)
    assert found.last_seen(KEY) == []
