"""Send streaming answers, watches and followed logs, and choose the requested log. Used by `server`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from starlette.requests import Request

from updraft_localnode.errors import Json, StatusError, bad_request
from updraft_localnode.faultstate import FaultState
from updraft_localnode.partition import LostNode
from updraft_localnode.selectors import Selector
from updraft_localnode.store import KINDS, ResourceStore, api_version

BOOKMARK_SECONDS = 30.0


class WatchDroppedError(Exception):
    """The fault lab breaks off a watch."""


@dataclass(frozen=True)
class WatchStream:
    """One watch: what it is about, and how changes look through its selector."""

    store: ResourceStore
    resource: str
    namespace: str | None
    selector: Selector
    bookmarks: bool = False

    def _sees(self, obj: Json | None) -> bool:
        if obj is None or self.namespace not in (None, obj["metadata"].get("namespace")):
            return False
        return self.selector.matches(obj)

    def events_since(self, version: int) -> list[Json]:
        """Return the events after `version`. An object that begins to match the selector is reported as added, one that
        no longer matches as deleted."""
        events = []
        for change in self.store.changes_since(version):
            if change.resource != self.resource:
                continue
            now = change.type != "DELETED" and self._sees(change.object)
            before = self._sees(change.before)
            if now or before:
                kind = "MODIFIED" if now and before else "ADDED" if now else "DELETED"
                events.append({"type": kind, "object": change.object})
        return events

    def _bookmark(self) -> Json:
        meta = {"resourceVersion": str(self.store.version)}
        return {
            "type": "BOOKMARK",
            "object": {"kind": KINDS[self.resource], "apiVersion": api_version(self.resource), "metadata": meta},
        }

    async def stream(
        self, version: int | None, timeout_seconds: float, faults: FaultState, request: Request
    ) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        deadline, epoch = loop.time() + timeout_seconds, faults.watch_epoch
        if not version:  # none or 0: begin with the existing objects
            existing = [obj for obj in self.store.items(self.resource, self.namespace) if self.selector.matches(obj)]
            version = self.store.version
            yield _lines([{"type": "ADDED", "object": obj} for obj in existing])
        while True:
            try:
                events = self.events_since(version)
            except StatusError as exc:
                yield _lines([{"type": "ERROR", "object": exc.status()}])
                return
            version = self.store.version
            if events:
                yield _lines(events)
            left = deadline - loop.time()
            if left <= 0:
                break
            if faults.watch_epoch == epoch and not await self.store.changed(version, min(left, BOOKMARK_SECONDS)):
                if await request.is_disconnected():
                    return
                if self.bookmarks:
                    yield _lines([self._bookmark()])
            if faults.watch_epoch != epoch:
                raise WatchDroppedError
        if self.bookmarks:
            yield _lines([self._bookmark()])


def _lines(events: list[Json]) -> bytes:
    return b"".join(json.dumps(event).encode() + b"\n" for event in events)


class LogBrokenError(Exception):
    """The kubelet that sent a log no longer answers."""


async def until_disconnected(
    request: Request, chunks: AsyncIterator[bytes], lost: Callable[[], LostNode | None]
) -> AsyncIterator[bytes]:
    """End a followed log whose reader has disconnected, which otherwise only the next line would show.

    The log of a lost node becomes silent, and breaks off when the API server notices.
    """
    following = asyncio.ensure_future(anext(chunks, None))
    try:
        while True:
            done, _ = await asyncio.wait({following}, timeout=1.0)
            if (node := lost()) is not None:
                await asyncio.sleep(node.timeout_seconds)
                raise LogBrokenError
            if not done:
                if await request.is_disconnected():
                    return
                continue
            chunk = following.result()
            if chunk is None:
                return
            yield chunk
            following = asyncio.ensure_future(anext(chunks, None))
    finally:
        following.cancel()


def log_container(pod: Json, wanted: str | None) -> str:
    """Return the container whose log is read. Raises StatusError 400 as the API server does."""
    name = pod["metadata"]["name"]
    containers = [c["name"] for c in pod["spec"]["containers"]]
    everything = [*containers, *(c["name"] for c in pod["spec"].get("initContainers") or [])]
    if not wanted:
        if len(everything) == 1:
            return str(containers[0])
        choices = f"[{' '.join(everything)}]"
        raise bad_request(f"a container name must be specified for pod {name}, choose one of: {choices}")
    if wanted not in everything:
        raise bad_request(f"container {wanted} is not valid for pod {name}")
    return wanted


def _waiting_text(waiting: Json) -> str:
    reason = str(waiting.get("reason", "ContainerCreating"))
    if reason in ("ErrImagePull", "ImagePullBackOff"):
        return "trying and failing to pull image"
    return reason


def log_attempt(pod: Json, container: str, *, previous: bool) -> int:
    """Return which run of the container the log is of. Raises StatusError 400 if there is none."""
    name, status = pod["metadata"]["name"], pod["status"]
    found = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    known = next((s for s in found if s["name"] == container), None)
    waiting = {"reason": "ContainerCreating"} if known is None else known["state"].get("waiting")
    attempt = 0 if known is None else int(known["restartCount"])
    if previous:
        if attempt == 0:
            raise bad_request(f'previous terminated container "{container}" in pod "{name}" not found')
        return attempt - 1
    if waiting is None or (known is not None and known.get("lastState")):
        return attempt  # while it waits for its restart, show the log of the run before
    raise bad_request(f'container "{container}" in pod "{name}" is waiting to start: {_waiting_text(waiting)}')
