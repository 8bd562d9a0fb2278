"""Uploads that are slow on purpose: they end with a reason, and they leave room for those of others."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable

import anyio
import httpx
import pytest
from starlette.exceptions import HTTPException
from unit.api.api_fakes import Platform, guards

from updraft.api.access import tenant_policy
from updraft.api.app import create_app
from updraft.api.uploads import BodyReader
from updraft.tenants import Tenancy

ONE = hashlib.sha256(b"one").hexdigest()


def test_one_users_idle_uploads_leave_room_for_others(platform: Platform) -> None:
    """Eight of them used to hold every thread for uploads."""
    app = create_app(platform.parts, guards(), tenant_policy(lambda: Tenancy.of("default")))

    async def run() -> tuple[int, list[int]]:
        go_on = anyio.Event()
        ended: list[int] = []

        async def idle() -> AsyncIterator[bytes]:
            yield b"on"
            await go_on.wait()
            yield b"e"

        async def upload(client: httpx.AsyncClient) -> None:
            headers = {"Authorization": "Bearer mallory"}
            ended.append((await client.put(f"/api/v1/blobs/{ONE}", content=idle(), headers=headers)).status_code)

        transport = httpx.ASGITransport(app)
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://test") as client,
            anyio.create_task_group() as group,
        ):
            for _ in range(50):
                group.start_soon(upload, client)
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(20):
                headers = {"Authorization": "Bearer ada"}
                mine = (await client.put(f"/api/v1/blobs/{ONE}", content=b"one", headers=headers)).status_code
            go_on.set()
        return mine, ended

    assert anyio.run(run) == (200, [200] * 50)


def read(times: list[float], chunk: bytes, announced_bytes: int | None = None) -> Callable[[], object]:
    """Reads a body of which a chunk comes at each of these times."""

    async def chunks() -> AsyncIterator[bytes]:
        for _ in times[1:]:
            yield chunk

    async def run() -> bytes:
        moments = iter(times)
        return await anyio.to_thread.run_sync(
            BodyReader(chunks(), announced_bytes, clock=lambda: next(moments)).readall
        )

    return lambda: anyio.run(run)


def test_an_upload_that_trickles_is_ended_with_the_reason() -> None:
    with pytest.raises(HTTPException, match=r"too slow: 2 bytes in 40 s; at least 8192 bytes a second") as caught:
        read([0, 20, 40, 60], b"x")()
    assert caught.value.status_code == 408


def test_an_upload_that_cannot_end_in_time_is_ended_early() -> None:
    """At 8 KiB/s one of 50 GiB was let go on for two hours."""
    announced_bytes = 50 * 1024**3
    with pytest.raises(
        HTTPException, match=r"too slow: 600000 bytes in 40 s; at least 7456540 bytes a second"
    ) as caught:
        read([0, 20, 29, 40, 60], b"x" * 200_000, announced_bytes)()
    assert caught.value.status_code == 408
    assert read([0, 20, 29, 40, 60], b"x" * 200_000, 800_000)() == b"x" * 800_000


def test_an_upload_that_never_ends_is_ended_however_fast() -> None:
    with pytest.raises(HTTPException, match=r"longer than 2 h.*s3://"):
        read([0, 1, 7201], b"x")()


def test_a_usual_upload_passes() -> None:
    assert read([0, 29, 40, 60], b"x" * 200_000)() == b"x" * 600_000
