"""Uploads that would fill the api-server's disk or the store: refused before they do, and counted while they go on."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from unit.api.api_fakes import Platform, guards

from updraft.api.access import tenant_policy
from updraft.api.app import create_app
from updraft.api.room import REFUSED_SECONDS, STEP_BYTES, UploadRoom
from updraft.tenants import Tenancy

GIB = 1 << 30


class Disk:
    """Free space that shrinks by what uploads have written."""

    def __init__(self, free_bytes: int) -> None:
        self.free_bytes = free_bytes

    def __call__(self) -> int:
        return self.free_bytes


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def limited(
    platform: Platform, free_bytes: int = 100 * GIB, *, step_bytes: int = STEP_BYTES, **settings: int
) -> Platform:
    platform.settings = platform.settings.model_copy(update={"data_limit_bytes": 10 * GIB, **settings})
    platform.room = UploadRoom(Disk(free_bytes), lambda: platform.now, step_bytes)  # type: ignore[attr-defined]
    platform.now = 0.0  # type: ignore[attr-defined]
    return platform


def blobs(platform: Platform) -> list[Path]:
    return [path for path in (platform.folder / "bucket").rglob("*") if path.is_file()]


def put(platform: Platform, content: bytes, announced: int | None = None) -> httpx.Response:
    headers = {} if announced is None else {"Content-Length": str(announced)}
    return platform.client().put(f"/updraft/api/v1/blobs/{digest(content)}", content=content, headers=headers)


def message(response: httpx.Response) -> str:
    return str(response.json()["error"]["message"])


def test_an_upload_that_the_disk_has_no_room_for_is_refused_before_a_byte_is_read(platform: Platform) -> None:
    limited(platform, free_bytes=3 * GIB, upload_disk_reserve_bytes=2 * GIB)
    read: list[bytes] = []

    async def body() -> AsyncIterator[bytes]:
        read.append(b"x")
        yield b"x"

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(
            create_app(platform.parts, guards(), tenant_policy(lambda: Tenancy.of("default")))
        )
        headers = {"Authorization": "Bearer ada", "Content-Length": str(GIB + 1)}
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.put(f"/api/v1/blobs/{digest(b'x')}", content=body(), headers=headers)

    refused = anyio.run(run)
    assert refused.status_code == 507
    assert "1073.7 MB are left beside other uploads and a reserve of 2147.5 MB" in message(refused)
    assert (read, blobs(platform)) == ([], [])
    assert put(platform, b"small").status_code == 200


HOSTAGES = {  # what there is, and what mallory's uploads announce
    "disk": ({"free_bytes": 60 * GIB, "upload_disk_reserve_bytes": 0}, 30 * GIB),
    "quota": ({"upload_quota_bytes": 60 * GIB}, 30 * GIB),
    "several": ({"free_bytes": 60 * GIB, "upload_disk_reserve_bytes": 0}, 50 * GIB),
}


@pytest.mark.parametrize("what", HOSTAGES)
def test_what_is_only_announced_is_kept_from_nobody(platform: Platform, what: str) -> None:
    """Two bytes of 59 announced GiB refused everybody's uploads, for two hours at 8 KiB/s."""
    has, announced_bytes = HOSTAGES[what]
    limited(platform, **has, data_limit_bytes=50 * GIB)  # type: ignore[arg-type]
    app = create_app(platform.parts, guards(), tenant_policy(lambda: Tenancy.of("default")))

    async def run() -> tuple[int, list[int]]:
        go_on = anyio.Event()
        large: list[int] = []

        async def idle() -> AsyncIterator[bytes]:
            yield b"on"
            await go_on.wait()

        async def upload(client: httpx.AsyncClient, user: str, content: Any, length: int) -> int:
            headers = {"Authorization": f"Bearer {user}", "Content-Length": str(length)}
            url = f"/api/v1/blobs/{digest(b'one')}"
            return (await client.put(url, content=content, headers=headers)).status_code

        async def keep(client: httpx.AsyncClient) -> None:
            large.append(await upload(client, "mallory", idle(), announced_bytes))

        async with (
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client,
            anyio.create_task_group() as group,
        ):
            for _ in range(4):
                group.start_soon(keep, client)
            await anyio.wait_all_tasks_blocked()
            mine = await upload(client, "ada", b"one", 3)
            go_on.set()
        return mine, large

    assert anyio.run(run) == (200, [422] * 4)  # those that ended early have another digest


def test_what_has_come_and_the_next_step_are_no_longer_free(platform: Platform) -> None:
    limited(platform, step_bytes=1000, free_bytes=2_500, upload_disk_reserve_bytes=0)
    app = create_app(platform.parts, guards(), tenant_policy(lambda: Tenancy.of("default")))

    async def run() -> tuple[int, int, int]:
        go_on, ended = anyio.Event(), anyio.Event()
        large: list[int] = []

        async def idle() -> AsyncIterator[bytes]:
            yield b"on"
            await go_on.wait()

        async def upload(client: httpx.AsyncClient, user: str, content: Any, length: int) -> int:
            headers = {"Authorization": f"Bearer {user}", "Content-Length": str(length)}
            url = f"/api/v1/blobs/{digest(b'one')}"
            return (await client.put(url, content=content, headers=headers)).status_code

        async def keep(client: httpx.AsyncClient) -> None:
            large.append(await upload(client, "mallory", idle(), 2_000))
            ended.set()

        async with (
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client,
            anyio.create_task_group() as group,
        ):
            group.start_soon(keep, client)
            await anyio.wait_all_tasks_blocked()
            during = await upload(client, "ada", b"one", 1_600)  # 998 of the 2,500 are held
            go_on.set()
            await ended.wait()
            after = await upload(client, "ada", b"one", 3)
        return during, large[0], after

    assert anyio.run(run) == (507, 422, 200)  # the one that ended early has another digest


def test_an_upload_that_announces_nothing_is_ended_when_the_room_is(platform: Platform) -> None:
    limited(platform, step_bytes=1000, free_bytes=5_500, upload_disk_reserve_bytes=500)
    content = b"x" * 1000

    def chunks(count: int) -> Any:
        return (content for _ in range(count))

    client = platform.client()
    whole = client.put(f"/updraft/api/v1/blobs/{digest(content * 5)}", content=chunks(5))
    assert whole.status_code == 200
    too_much = client.put(f"/updraft/api/v1/blobs/{digest(content * 6)}", content=chunks(6))
    assert too_much.status_code == 507
    assert [path.stat().st_size for path in blobs(platform)] == [5000]


def test_a_tenants_quota_counts_what_is_stored_and_what_is_on_its_way(platform: Platform) -> None:
    limited(platform, upload_quota_bytes=100)
    platform.store.put_bytes(f"default/blobs/{'0' * 64}", b"s" * 60)
    platform.store.put_bytes(f"other/blobs/{'0' * 64}", b"o" * 1000)
    platform.store.put_bytes("default/jobs/digits-1/results/x", b"r" * 1000)
    assert put(platform, b"a" * 30).status_code == 200
    refused = put(platform, b"b" * 30)
    assert refused.status_code == 413
    assert "tenant 'default'" in message(refused)
    assert "UPDRAFT_UPLOAD_QUOTA_BYTES" in message(refused)
    assert put(platform, b"c" * 10).status_code == 200


def test_room_that_somebody_made_in_the_store_is_seen_before_an_upload_is_refused(platform: Platform) -> None:
    limited(platform, upload_quota_bytes=100)
    key = f"default/blobs/{'0' * 64}"
    platform.store.put_bytes(key, b"s" * 90)
    assert put(platform, b"a" * 30).status_code == 413
    platform.store.delete(key)
    assert put(platform, b"a" * 30).status_code == 413  # asked a moment ago
    platform.now = REFUSED_SECONDS + 1  # type: ignore[attr-defined]
    assert put(platform, b"a" * 30).status_code == 200


def test_a_refused_or_broken_upload_gives_its_room_back(platform: Platform) -> None:
    limited(platform, free_bytes=1000, upload_disk_reserve_bytes=0, upload_quota_bytes=100)
    for _ in range(20):
        assert platform.client().put(f"/updraft/api/v1/blobs/{'0' * 64}", content=b"x" * 90).status_code == 422
    assert put(platform, b"y" * 100).status_code == 200


def test_uploads_that_fit_alone_and_not_together_are_refused_as_they_come(platform: Platform) -> None:
    """A step for each: what has come is told by the disk, which both of them fill here."""
    limited(platform, step_bytes=1000, free_bytes=5_000, upload_disk_reserve_bytes=0)
    disk = platform.room._free_bytes
    assert isinstance(disk, Disk)

    def content() -> Any:
        for _ in range(4):
            yield b"x" * 1_000
            disk.free_bytes -= 2_000  # ours, and another api-server's

    whole = b"x" * 4_000
    headers = {"Content-Length": "4000"}
    answer = platform.client().put(f"/updraft/api/v1/blobs/{digest(whole)}", content=content(), headers=headers)
    assert (answer.status_code, blobs(platform)) == (507, [])
