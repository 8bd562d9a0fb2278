"""Watch the learners' pods of a namespace, once for all triggers of a triggerer.

A trigger subscribes to one launch and is woken when one of its pods changes. The cluster sees one LIST and one WATCH
per namespace, however many jobs wait. Used by `updraft.triggers` only, in the triggerer's event loop.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from updraft.kubernetes.clients import async_client
from updraft.kubernetes.errors import UnauthorizedError, error_of
from updraft.kubernetes.objects import Launch
from updraft.kubernetes.pod_status import pod_facts
from updraft.kubernetes.throttling import asked_pause_seconds
from updraft.recovery.facts import PodFacts
from updraft_learner import contract
from updraft_learner.backoff import Backoff

if TYPE_CHECKING:
    from aiohttp import ClientResponse
    from kubernetes_asyncio.client import ApiClient

log = logging.getLogger(__name__)

WATCH_SECONDS = 300  # the server ends a watch after this; the new list then repairs the effect of a lost event
BACKOFF = Backoff(1.0, 15.0)

LaunchKey = tuple[str, str, str]  # job, role, attempt


class PodWatch:
    """The facts of every learner's pod in one namespace. A subscriber is woken when a pod of its launch changes.

    Args:
        connect: Creates the client from the current Airflow connection.
        backoff: The pauses after refused requests, unless the cluster asks for longer ones.
    """

    def __init__(
        self,
        conn_id: str,
        namespace: str,
        *,
        connect: Callable[[str], Awaitable[ApiClient]] = async_client,
        backoff: Backoff = BACKOFF,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._open_api, self._backoff, self._sleep = connect, backoff, sleep
        self.conn_id = conn_id
        self.namespace = namespace
        self.api: Any = None  # kubernetes_asyncio ApiClient, one for all requests of this watch
        self.synced = asyncio.Event()  # set while the facts come from a live list or watch
        self.last_error: str | None = None
        self.users = 0
        self._replaced: list[Any] = []  # earlier clients; a log may still be read through one
        self._pods: dict[LaunchKey, dict[str, PodFacts]] = {}
        self._gone: dict[LaunchKey, dict[str, PodFacts]] = {}  # deleted pods of subscribed launches, as last seen
        # Ended pods of subscribed launches, in the order in which their ends were seen: whether each had been asked to
        # leave.
        self._ends: dict[LaunchKey, dict[str, bool]] = {}
        self._waiters: dict[LaunchKey, set[asyncio.Event]] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._connect()
        self._task = asyncio.create_task(self._run(), name=f"pod watch {self.namespace}")

    async def _connect(self) -> None:
        """Create the client from what the connection says now."""
        fresh = await self._open_api(self.conn_id)
        if self.api is not None:
            self._replaced.append(self.api)
        self.api = fresh

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for api in (*self._replaced, self.api):
            if api is not None:
                await api.close()

    def pods(self, key: LaunchKey) -> list[PodFacts]:
        return sorted(self._pods.get(key, {}).values(), key=lambda facts: facts.learner)

    def last_seen(self, key: LaunchKey) -> list[PodFacts]:
        """Return the pods of a subscribed launch, and its deleted pods as the cluster last reported them. Pods whose
        program has ended come first, in the order in which their ends were seen."""
        found = {**self._gone.get(key, {}), **self._pods.get(key, {})}
        ended = self._ends.get(key, {})
        first = [replace(found.pop(name), asked_to_leave=asked) for name, asked in ended.items() if name in found]
        return [*first, *sorted(found.values(), key=lambda facts: facts.learner)]

    async def lacks_secret(self, name: str) -> bool:
        """Return whether the cluster says that there is none of this name; an answer that does not come says
        nothing."""
        from aiohttp import ClientError
        from kubernetes_asyncio.client import CoreV1Api

        try:  # without reading the content, which the client would log at level DEBUG
            answer: Any = await CoreV1Api(self.api).read_namespaced_secret(
                name, self.namespace, _request_timeout=20, _preload_content=False
            )
        except (ClientError, TimeoutError, OSError):
            return False
        answer.close()
        return bool(answer.status == HTTPStatus.NOT_FOUND)

    def launches(self) -> dict[LaunchKey, list[PodFacts]]:
        """Return the pods of every launch that has one in this namespace."""
        return {key: list(pods.values()) for key, pods in self._pods.items() if pods}

    def subscribe(self, key: LaunchKey) -> asyncio.Event:
        event = asyncio.Event()
        self._waiters.setdefault(key, set()).add(event)
        for facts in self.pods(key):
            self._note_end(key, facts)
        return event

    def unsubscribe(self, key: LaunchKey, event: asyncio.Event) -> None:
        waiters = self._waiters.get(key, set())
        waiters.discard(event)
        if not waiters:
            self._waiters.pop(key, None)
            self._gone.pop(key, None)
            self._ends.pop(key, None)

    async def _run(self) -> None:
        from kubernetes_asyncio.client import ApiException

        failures = 0
        while True:
            try:
                version = await self._list()
                failures = 0
                self.last_error = None
                self.synced.set()
                await self._watch(version)
            except asyncio.CancelledError:
                raise
            except Exception as exc:  # noqa: BLE001 - the outermost line of the loop: after any error, list again
                self.synced.clear()
                self.last_error = f"{type(exc).__name__}: {str(exc)[:200]}"
                failures += 1
                delay = max(self._backoff.jittered_seconds(failures), asked_pause_seconds(exc))
                log.warning("Pod watch of %s: %s; again in %.1f s", self.namespace, self.last_error, delay)
                await self._sleep(delay)
                if isinstance(exc, ApiException) and isinstance(error_of(exc), UnauthorizedError):
                    with suppress(Exception):  # a half-written kubeconfig: read it again after the next 401
                        await self._connect()

    async def _list(self) -> str:
        async with await self._ask(30) as response:
            listed = json.loads(await response.read())
        fresh: dict[LaunchKey, dict[str, PodFacts]] = {}
        for pod in listed["items"]:
            fresh.setdefault(_key(pod), {})[pod["metadata"]["name"]] = pod_facts(pod)
        changed = {key for key in self._pods.keys() | fresh.keys() if self._pods.get(key) != fresh.get(key)}
        for key in changed & self._waiters.keys():
            self._gone.setdefault(key, {}).update(self._pods.get(key, {}))
            for facts in fresh.get(key, {}).values():
                self._note_end(key, facts)
        self._pods = fresh
        # After the first list, wake all: "no pod" is news as well.
        for key in changed | (set(self._waiters) if not self.synced.is_set() else set()):
            self._wake(key)
        return str(listed["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> None:
        """Watch until the server ends the watch. Raises ApiException, also for a version that the server has
        forgotten."""
        from kubernetes_asyncio.client import ApiException

        seconds = WATCH_SECONDS + 30
        async with await self._ask(
            seconds, watch=True, resource_version=version, timeout_seconds=WATCH_SECONDS
        ) as response:
            async for line in response.content:
                event = json.loads(line)
                pod = event["object"]
                if event["type"] == "ERROR":
                    raise ApiException(status=pod.get("code"), reason=pod.get("message"))
                if event["type"] not in ("ADDED", "MODIFIED", "DELETED"):
                    continue
                key, facts = _key(pod), pod_facts(pod)
                known = self._pods.setdefault(key, {})
                if event["type"] == "DELETED":
                    known.pop(facts.name, None)
                    if not known:
                        self._pods.pop(key)
                    if key in self._waiters:
                        self._gone.setdefault(key, {})[facts.name] = facts
                else:
                    known[facts.name] = facts
                self._note_end(key, facts)
                self._wake(key)

    async def _ask(self, seconds: float, **query: Any) -> ClientResponse:
        """Return the learners' pods as the server writes them: the client's objects of a thousand pods take ten seconds
        to be made, in which no trigger of this process runs. Raises ApiException."""
        from kubernetes_asyncio.client import ApiException, CoreV1Api

        # With `_preload_content=False` the client returns the response of its HTTP library.
        response: ClientResponse = await CoreV1Api(self.api).list_namespaced_pod(  # type: ignore[assignment]
            self.namespace,
            label_selector=contract.LABEL_JOB,
            _request_timeout=seconds,
            _preload_content=False,
            **query,
        )
        if response.status >= 400:
            refused = ApiException(status=response.status, reason=response.reason)
            refused.headers = response.headers
            response.close()
            raise refused
        return response

    def _note_end(self, key: LaunchKey, facts: PodFacts) -> None:
        if key in self._waiters and (facts.ended or facts.main.exit_code is not None):
            self._ends.setdefault(key, {}).setdefault(facts.name, facts.asked_to_leave)

    def _wake(self, key: LaunchKey) -> None:
        for event in self._waiters.get(key, ()):
            event.set()


def _key(pod: dict[str, Any]) -> LaunchKey:
    labels = pod["metadata"].get("labels") or {}
    return (
        labels.get(contract.LABEL_JOB, ""),
        labels.get(contract.LABEL_ROLE, ""),
        labels.get(contract.LABEL_ATTEMPT, ""),
    )


def launch_key(launch: Launch) -> LaunchKey:
    return (launch.job_id, launch.role, str(launch.attempt))


_shared: dict[tuple[int, str, str], PodWatch] = {}
_lock = asyncio.Lock()


@asynccontextmanager
async def shared_watch(conn_id: str, namespace: str) -> AsyncIterator[PodWatch]:
    """Give the watch of this event loop; it is started for its first user and stopped after its last."""
    key = (id(asyncio.get_running_loop()), conn_id, namespace)
    async with _lock:
        watch = _shared.get(key)
        if watch is None:
            watch = PodWatch(conn_id, namespace)
            await watch.start()
            _shared[key] = watch
        watch.users += 1
    try:
        yield watch
    finally:
        watch.users -= 1
        if watch.users == 0:
            _shared.pop(key, None)
            await watch.stop()
