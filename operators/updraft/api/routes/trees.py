"""/trees and /blobs: store what a client uploads before it submits. Names are digests, so sending twice is harmless."""

from __future__ import annotations

import io
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Path, Request

from updraft.api.access import CallerDep
from updraft.api.bodies import tree_body
from updraft.api.depends import PartsDep, TenantDep
from updraft.api.parts import Parts
from updraft.api.room import Held
from updraft.api.uploads import BodyReader, tree_slot, upload_limiter, user_slot
from updraft.exceptions import DataError, LimitError
from updraft.schemas import UPLOAD_SECONDS, Missing, Stored
from updraft_learner.trees import DEFAULT_LIMIT_FILES, Tree, TreeError

router = APIRouter(tags=["uploads"])

Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="SHA-256, in lower-case hexadecimal")]


@router.post("/trees/missing", summary="Which blobs of a tree the store lacks", openapi_extra=tree_body.documented)
async def find_missing(parts: PartsDep, caller: CallerDep, tenant: TenantDep, request: Request) -> Missing:
    """Return which blobs of a tree the store does not have. Takes longer than other routes if the store holds very
    much. One tree of a user is read at a time."""

    def ask(text: bytes) -> list[str]:
        tree = _tree(parts, text)
        return parts.deadline.call("storage", lambda: parts.store.missing(tenant, tree), seconds=UPLOAD_SECONDS)

    async with tree_slot(caller.name):
        text = await tree_body.read(request)
        return Missing(missing=tuple(await to_thread.run_sync(ask, text, limiter=upload_limiter())))


@router.put("/blobs/{sha256}", summary="Store a blob; the body is its content")
async def put_blob(parts: PartsDep, caller: CallerDep, tenant: TenantDep, sha256: Digest, request: Request) -> Stored:
    """Store a blob. The digest is verified and the size limited while the body comes in. An upload is ended (408) if it
    stands still for 30 s, brings less than 8 KiB a second, is too slow to bring its Content-Length within 2 h, or takes
    longer than 2 h. Four uploads of a user are stored at once. An upload beyond the tenant's quota is refused (413),
    and so is one for which the api-server's disk has no room (507). Room is reserved for the received bytes and at most
    64 MiB more, so uploads that fit alone may not fit together; then the later bytes are refused."""
    limit_bytes = parts.settings.data_limit_bytes
    header = request.headers.get("content-length", "")
    announced_bytes = int(header[:16]) if header.isdecimal() else None
    if announced_bytes is not None and announced_bytes > limit_bytes:
        raise LimitError(f"blob {sha256[:12]}: {announced_bytes} bytes; the limit is {limit_bytes}")

    def measure() -> int:
        return parts.deadline.call("storage", lambda: parts.store.stored_bytes(tenant), seconds=UPLOAD_SECONDS)

    async def stored_bytes() -> int:
        return await to_thread.run_sync(measure, limiter=upload_limiter())

    async with user_slot(caller.name), parts.room.hold(tenant, announced_bytes, parts.settings, stored_bytes) as held:
        content = io.BufferedReader(BodyReader(_Counted(request, held), announced_bytes), 256 * 1024)
        await to_thread.run_sync(parts.store.put_blob, tenant, content, sha256, limit_bytes, limiter=upload_limiter())
    return Stored(sha256=sha256, size_bytes=held.received_bytes)


@router.put("/trees/{sha256}", summary="Store a tree whose blobs are all stored", openapi_extra=tree_body.documented)
async def put_tree(parts: PartsDep, caller: CallerDep, tenant: TenantDep, sha256: Digest, request: Request) -> Stored:
    """Store a tree. Takes longer than other routes if the store holds very much. One tree of a user is read at a
    time."""

    def store(text: bytes) -> int:
        tree = _tree(parts, text)
        if tree.sha256 != sha256:
            raise DataError(f"tree {sha256[:12]}: the document has another SHA-256 ({tree.sha256[:12]})")
        parts.deadline.call("storage", lambda: parts.store.put_tree(tenant, tree), seconds=UPLOAD_SECONDS)
        return tree.size_bytes

    async with tree_slot(caller.name):
        text = await tree_body.read(request)
        size_bytes = await to_thread.run_sync(store, text, limiter=upload_limiter())
    return Stored(sha256=sha256, size_bytes=size_bytes)


class _Counted:
    """The chunks of a request's body; each is counted against the room that the upload holds."""

    def __init__(self, request: Request, held: Held) -> None:
        self._chunks, self._held = request.stream(), held

    def __aiter__(self) -> _Counted:
        return self

    async def __anext__(self) -> bytes:
        chunk = await anext(self._chunks)
        await self._held.receive(len(chunk))
        return chunk


def _tree(parts: Parts, text: bytes) -> Tree:
    """Parse a tree. Raises DataError for a document that is no tree, LimitError for one that no job may use.

    The document has up to 100,000 files, so it is read once, and never by the event loop.
    """
    try:
        tree = Tree.from_json(text)
    except TreeError as exc:
        raise DataError(f"tree: {exc}") from exc
    if len(tree.files) > DEFAULT_LIMIT_FILES:
        raise LimitError(f"tree: it has {len(tree.files)} files; the limit is {DEFAULT_LIMIT_FILES}")
    limit_bytes = parts.settings.data_limit_bytes
    if tree.size_bytes > limit_bytes:
        raise LimitError(f"tree: its files have {tree.size_bytes} bytes; the limit is {limit_bytes}")
    return tree
