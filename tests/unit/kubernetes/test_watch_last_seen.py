"""What the watch keeps of pods that are gone: their last state, for whoever waits for their launch, and no longer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from kubernetes_asyncio.client import ApiClient, ApiException, Configuration

from updraft.kubernetes.throttling import asked_pause_seconds
from updraft.kubernetes.watch import LaunchKey, PodWatch

KEY: LaunchKey = ("j", "train", "1")
LABELS = {"updraft.dev/job": "j", "updraft.dev/role": "train", "updraft.dev/attempt": "1"}


def pod(name: str, code: int | None = None) -> dict[str, Any]:
    state: dict[str, Any] = {"running": {}} if code is None else {"terminated": {"exitCode": code}}
    learner = {"updraft.dev/learner": name[-1]}
    status = {"phase": "Running", "containerStatuses": [{"name": "base", "state": state}]}
    return {"metadata": {"name": name, "labels": {**LABELS, **learner}}, "status": status}


class Server:
    """Answers each LIST, and each WATCH with all events at once."""

    def __init__(self) -> None:
        self.listed: list[dict[str, Any]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.refuses = False

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.refuses:
            return web.Response(status=429, headers={"Retry-After": "9"})
        if "watch" not in request.query:
            return web.json_response({"metadata": {"resourceVersion": "7"}, "items": self.listed})
        lines = [json.dumps({"type": kind, "object": found}) for kind, found in self.events]
        return web.Response(text="".join(f"{line}\n" for line in lines))

    async def looked(self, watch: PodWatch) -> None:
        """The watch lists, and watches until the server ends that."""
        application = web.Application()
        application.router.add_get("/api/v1/namespaces/ns/pods", self.answer)
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        watch.api = ApiClient(configuration=Configuration(host=f"http://127.0.0.1:{runner.addresses[0][1]}"))
        try:
            await watch._watch(await watch._list())
        finally:
            await watch.api.close()
            await runner.cleanup()


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def watch() -> PodWatch:
    return PodWatch("c", "ns")


def exit_codes(found: PodWatch) -> dict[int, int | None]:
    return {facts.learner: facts.main.exit_code for facts in found.last_seen(KEY)}


def test_the_end_that_came_with_the_removal_is_kept(server: Server, watch: PodWatch) -> None:
    woken = watch.subscribe(KEY)
    server.listed, server.events = [pod("p-1"), pod("p-2")], [("DELETED", pod("p-1", 143))]
    asyncio.run(server.looked(watch))
    assert woken.is_set()
    assert [facts.learner for facts in watch.pods(KEY)] == [2]
    assert exit_codes(watch) == {1: 143, 2: None}


def test_a_pod_that_went_while_nobody_watched_is_as_it_was(server: Server, watch: PodWatch) -> None:
    watch.subscribe(KEY)
    server.listed, server.events = [pod("p-1")], [("MODIFIED", pod("p-1", 1))]
    asyncio.run(server.looked(watch))
    server.listed, server.events = [], []
    asyncio.run(server.looked(watch))
    assert watch.pods(KEY) == []
    assert exit_codes(watch) == {1: 1}


def test_nothing_is_kept_of_a_launch_that_nobody_waits_for(server: Server, watch: PodWatch) -> None:
    server.listed, server.events = [pod("p-1")], [("DELETED", pod("p-1", 0))]
    asyncio.run(server.looked(watch))
    assert watch.last_seen(KEY) == []
    woken = watch.subscribe(KEY)
    asyncio.run(server.looked(watch))
    assert exit_codes(watch) == {1: 0}
    watch.unsubscribe(KEY, woken)
    assert watch.last_seen(KEY) == []


def test_ends_are_in_the_order_in_which_they_were_seen(server: Server, watch: PodWatch) -> None:
    watch.subscribe(KEY)
    server.listed = [pod("p-1"), pod("p-2"), pod("p-3")]
    server.events = [("MODIFIED", pod("p-3", 1)), ("DELETED", pod("p-2", 1)), ("MODIFIED", pod("p-3", 1))]
    asyncio.run(server.looked(watch))
    assert [facts.learner for facts in watch.last_seen(KEY)] == [3, 2, 1]


def test_whether_it_had_been_asked_to_leave_is_as_its_end_was_first_seen(server: Server, watch: PodWatch) -> None:
    watch.subscribe(KEY)
    going = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    before, after = pod("p-1", 0), pod("p-2")
    server.listed = [before, after]
    for told in (before, after):
        leaving = {**told, "metadata": {**told["metadata"], **going}}
        server.events += [("MODIFIED", leaving), ("DELETED", {**leaving, "status": pod("p-1", 0)["status"]})]
    asyncio.run(server.looked(watch))
    assert [(facts.learner, facts.asked_to_leave) for facts in watch.last_seen(KEY)] == [(1, False), (2, True)]


def test_a_server_that_has_too_much_to_do_says_when_to_come_back(server: Server, watch: PodWatch) -> None:
    server.refuses = True
    with pytest.raises(ApiException) as refused:
        asyncio.run(server.looked(watch))
    assert (refused.value.status, asked_pause_seconds(refused.value)) == (429, 9.0)
