"""Reserve room for uploads: on the disk of the api-server's temporary folder, and in the tenant's quota of the store.

An upload stays in the temporary folder until it is complete, and its blobs stay in the store. `UploadRoom.hold` refuses
an upload that announces more than there is room for. After that it reserves only a step more than has arrived, so an
announcement alone takes no room from others. There is one per application, used on its event loop only. Several
api-server processes count separately, and see each other's bytes once they are written.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.exceptions import HTTPException

from updraft.exceptions import LimitError
from updraft.settings import Settings
from updraft_learner.trees import megabytes

STEP_BYTES = 64 << 20  # reserved for an upload beyond the bytes that have arrived
MEASURED_SECONDS = 300.0  # how long a measured number of a tenant's stored bytes is used
REFUSED_SECONDS = 10.0  # the same, if an upload would be refused because of it

Measure = Callable[[], Awaitable[int]]


@dataclass
class _Stored:
    """The bytes that a tenant had stored at `at`, and those that this process has added since."""

    bytes: int
    at: float


class UploadRoom:
    """The room that the running uploads of all users reserve.

    Args:
        free_bytes: Returns the free bytes of the temporary folder.
        clock: Returns monotonic seconds.
        step_bytes: The bytes that an upload reserves beyond those that have arrived.
    """

    def __init__(
        self,
        free_bytes: Callable[[], int] = lambda: shutil.disk_usage(tempfile.gettempdir()).free,
        clock: Callable[[], float] = time.monotonic,
        step_bytes: int = STEP_BYTES,
    ) -> None:
        self._free_bytes, self._clock, self.step_bytes = free_bytes, clock, step_bytes
        self._ongoing: set[Held] = set()
        self._stored: dict[str, _Stored] = {}

    @asynccontextmanager
    async def hold(
        self, tenant: str, announced_bytes: int | None, settings: Settings, measure: Measure
    ) -> AsyncIterator[Held]:
        """Reserve room for an upload while it runs; `measure` returns the bytes that the tenant has stored.

        Raises LimitError (413) beyond the tenant's quota, HTTPException 507 if the disk has no room.
        """
        held = Held(self, tenant, settings, measure, announced_bytes)
        self._ongoing.add(held)
        try:
            await self.check(held, announced_bytes or 0)
            yield held
            if tenant in self._stored:
                self._stored[tenant].bytes += held.received_bytes
        finally:
            self._ongoing.discard(held)

    async def check(self, held: Held, more_bytes: int) -> None:
        """Raise as `hold` does unless `held` may take this many bytes more."""
        await self._check_quota(held, more_bytes)
        outstanding_bytes = sum(other.reserved_bytes - other.received_bytes for other in self._ongoing)
        reserve_bytes = held.settings.upload_disk_reserve_bytes
        free_bytes = self._free_bytes() - outstanding_bytes - reserve_bytes
        if more_bytes > free_bytes:
            raise HTTPException(
                507,
                f"the api-server's disk has no room for this upload: {megabytes(more_bytes)} are wanted, "
                f"{megabytes(max(free_bytes, 0))} are left beside other uploads and a reserve of "
                f"{megabytes(reserve_bytes)}; try again later, or bring data of this size into the object store and "
                "name it as s3://",
            )

    async def _check_quota(self, held: Held, more_bytes: int) -> None:
        quota_bytes, tenant = held.settings.upload_quota_bytes, held.tenant
        for newest_seconds in (MEASURED_SECONDS, REFUSED_SECONDS):
            stored_bytes = await self._stored_bytes(held, newest_seconds)
            ongoing_bytes = sum(other.reserved_bytes for other in self._ongoing if other.tenant == tenant)
            if stored_bytes + ongoing_bytes + more_bytes <= quota_bytes:
                return
        raise LimitError(
            f"tenant {tenant!r}: {megabytes(more_bytes)} more would exceed its quota of {megabytes(quota_bytes)} for "
            f"code and data in the platform's store; {megabytes(stored_bytes)} are stored and "
            f"{megabytes(ongoing_bytes)} on their way. Name data as s3:// instead, or ask the platform's operator to "
            "raise UPDRAFT_UPLOAD_QUOTA_BYTES"
        )

    async def _stored_bytes(self, held: Held, newest_seconds: float) -> int:
        """Return the bytes that the tenant has stored, as known at most `newest_seconds` ago."""
        stored = self._stored.get(held.tenant)
        if stored is None or self._clock() - stored.at > newest_seconds:
            at = self._clock()
            stored = self._stored[held.tenant] = _Stored(await held.measure(), at)
        return stored.bytes


class Held:
    """The room of one upload: the bytes that it has reserved, and those that have arrived."""

    def __init__(
        self, room: UploadRoom, tenant: str, settings: Settings, measure: Measure, announced_bytes: int | None
    ) -> None:
        self.tenant, self.settings, self.measure = tenant, settings, measure
        self.announced_bytes = announced_bytes
        self.reserved_bytes = self.received_bytes = 0
        self._room = room

    async def receive(self, size_bytes: int) -> None:
        """Count bytes that have come, and hold the next step. Raises as `UploadRoom.hold` does."""
        beyond_bytes = self.received_bytes + size_bytes - self.reserved_bytes
        if beyond_bytes > 0:
            more_bytes = max(beyond_bytes, self._step_bytes())
            await self._room.check(self, more_bytes)
            self.reserved_bytes += more_bytes
        self.received_bytes += size_bytes

    def _step_bytes(self) -> int:
        if self.announced_bytes is None:
            return self._room.step_bytes
        return min(self._room.step_bytes, self.announced_bytes - self.reserved_bytes)
