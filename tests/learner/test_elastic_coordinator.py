"""The coordinator's pod: what it keeps in the object store, whom it lets in, and when it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from memory_store import MemoryStore

from updraft_learner.contract import Keys, PodConfig
from updraft_learner.elastic import pod
from updraft_learner.elastic.pod import JobCoordinator
from updraft_learner.elastic.report import GroupReport, Members, saved_in
from updraft_learner.store import StorageError

TOKEN = "t0ken"
CONFIG = PodConfig("job-1", "default", "train", 1, 1, 2, "updraft", "default", "", "", members=2)
KEYS = Keys("default")
PLACE = ("job-1", "train", 1)
SECONDS = 10.0


class Away(MemoryStore):
    """A store that can be away."""

    away = False

    def put_bytes(self, key: str, data: bytes) -> None:
        if self.away:
            raise StorageError("unreachable", "the store is away")
        super().put_bytes(key, data)


class Learner:
    """A connection that says hello as a learner does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def hello(cls, port: int, number: int, token: str = TOKEN, plan: Any = None, step: int = -1) -> Learner:
        made = cls(*await asyncio.open_connection("127.0.0.1", port))
        name = f"{number}-x"
        member = {"name": name, "host": "127.0.0.1", "port": 1}
        made.say(type="hello", name=name, member=member, plan=plan, step=step, leaving=False, report=None, token=token)
        return made

    def say(self, **message: Any) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")

    async def hear(self, kind: str) -> dict[str, Any]:
        """Return the next message of this kind."""
        async with asyncio.timeout(SECONDS):
            while True:
                message: dict[str, Any] = json.loads(await self._reader.readline())
                if message["type"] == kind:
                    return message

    async def hears_nothing(self) -> bool:
        """Return whether nothing comes for a while, or the connection was closed."""
        try:
            return await asyncio.wait_for(self._reader.readline(), 0.5) == b""
        except TimeoutError:
            return True

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def serving(store: Any, config: PodConfig = CONFIG) -> AsyncIterator[tuple[int, asyncio.Task[str]]]:
    """Run a coordinator; its port, and the task that ends with the reason."""
    job = JobCoordinator(config, store, TOKEN, hang_seconds=1.0)
    port = await job._coordinator.listen("127.0.0.1", 0)
    task = asyncio.create_task(job.run("127.0.0.1", 0))
    try:
        yield port, task
    finally:
        task.cancel()


def report(store: MemoryStore) -> GroupReport:
    text = store.get_bytes(KEYS.group(*PLACE))
    return GroupReport() if text is None else GroupReport.from_json(text)


async def until(found: Callable[[], Any]) -> None:
    async with asyncio.timeout(SECONDS):
        while not found():
            await asyncio.sleep(0.02)


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 60))  # type: ignore[arg-type]


async def begun(port: int, store: MemoryStore) -> tuple[Learner, Learner, dict[str, Any]]:
    """Two learners that have formed the first generation."""
    first, second = await Learner.hello(port, 1), await Learner.hello(port, 2)
    plan = (await first.hear("plan"))["plan"]
    await second.hear("plan")
    for learner in (first, second):
        learner.say(type="formed", plan=plan, step=0, pause_seconds=None)
    await until(lambda: report(store).state == "training")
    return first, second, plan


def test_the_training_begins_with_all_first_learners_and_the_platform_is_told() -> None:
    async def story() -> None:
        store = MemoryStore()
        async with serving(store) as (port, _):
            first = await Learner.hello(port, 1)
            assert await first.hears_nothing()
            second = await Learner.hello(port, 2)
            await first.hear("plan")
            await second.hear("plan")
            await until(lambda: report(store).learners == (1, 2))
            assert report(store).began

    run(story)


def test_a_connection_without_the_token_is_refused() -> None:
    async def story() -> None:
        store = MemoryStore()
        async with serving(store) as (port, _):
            stranger = await Learner.hello(port, 1, token="guessed")
            assert await stranger.hears_nothing()
            asks = Learner(*await asyncio.open_connection("127.0.0.1", port))
            asks.say(type="status")
            assert await asks.hears_nothing()
            assert report(store).waiting == ()

    run(story)


def test_who_shall_train_is_followed() -> None:
    async def story() -> None:
        store = MemoryStore()
        async with serving(store) as (port, _):
            first, _second, _plan = await begun(port, store)
            store.put_bytes(KEYS.members(*PLACE), Members(2, (1, 2, 3)).to_json())
            await until(lambda: report(store).obeys == 2)
            unwanted = await Learner.hello(port, 4)
            newcomer = await Learner.hello(port, 3)
            offered = (await newcomer.hear("offer"))["plan"]
            assert [each["name"] for each in offered["members"]] == ["1-x", "2-x", "3-x"]
            assert (await first.hear("offer"))["plan"] == offered
            assert await unwanted.hears_nothing()

    run(story)


def test_without_the_store_no_training_begins_and_it_does_when_the_store_is_back() -> None:
    async def story() -> None:
        store = Away()
        async with serving(store) as (port, _):
            store.away = True
            first, second = await Learner.hello(port, 1), await Learner.hello(port, 2)
            assert await first.hears_nothing()
            store.away = False
            await first.hear("plan")
            await second.hear("plan")

    run(story)


def test_a_loss_is_mended_without_the_store() -> None:
    async def story() -> None:
        store = Away()
        async with serving(store) as (port, _):
            first, second, plan = await begun(port, store)
            store.away = True
            second.close()
            first.say(type="report", generation=1, plan=plan, step=3, waited=0.0)
            alone = (await first.hear("plan"))["plan"]
            assert [each["name"] for each in alone["members"]] == ["1-x"]
            store.away = False
            await until(lambda: report(store).excluded == (2,))

    run(story)


def test_a_successor_begins_no_second_training() -> None:
    async def story() -> None:
        store = MemoryStore()
        async with serving(store) as (port, _):
            _, _, plan = await begun(port, store)
        assert saved_in(store.get_bytes(KEYS.group(*PLACE)) or b"")["plan"]["generation"] == 1
        async with serving(store) as (port, _):
            newcomer = await Learner.hello(port, 3)
            offered = (await newcomer.hear("offer"))["plan"]
            assert list(offered["holders"]) == ["1-x", "2-x"]  # they copy from those who have the state
            holder = await Learner.hello(port, 1, plan=plan, step=7)
            assert (await holder.hear("offer"))["plan"] == offered

    run(story)


def test_it_ends_when_a_newer_attempt_exists_and_after_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod, "FENCE_SECONDS", 0.05)
    monkeypatch.setattr(pod, "FAREWELL_SECONDS", 0.1)

    async def story() -> None:
        store = MemoryStore()
        async with serving(store) as (port, ended):
            first, second, _ = await begun(port, store)
            first.say(type="done")
            await until(lambda: report(store).state == "finished")
            first.close()
            second.close()
            assert await ended == "the training has ended"
        store.put_bytes(KEYS.fence("job-1"), json.dumps({"train": 2}).encode())
        async with serving(MemoryStore()) as (_, ended):
            assert not ended.done()
        async with serving(store) as (_, ended):
            assert await ended in ("a newer attempt of the job exists", "the training has ended")

    run(story)
