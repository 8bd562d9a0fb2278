"""/trees and /blobs: what a client uploads before it submits. Names are digests, so sending twice is harmless."""

from __future__ import annotations

import io
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Path, Request

from updraft.api.body import BodyReader, upload_limiter
from updraft.api.depends import PartsDep, TenantDep
from updraft.api.parts import Parts
from updraft.exceptions import DataError, LimitError
from updraft.wire import UPLOAD_SECONDS, Missing, Stored, TreeBody
from updraft_learner.trees import Tree, TreeError, TreeFile

router = APIRouter(tags=["uploads"])

Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="SHA-256, in lower-case hexadecimal")]


@router.post("/trees/missing", summary="Which blobs of a tree the store lacks")
async def find_missing(parts: PartsDep, tenant: TenantDep, body: TreeBody) -> Missing:
    """Takes longer than other routes where the store holds very much."""

    def ask() -> list[str]:
        tree = _tree(parts, body)
        return parts.deadline.call("storage", lambda: parts.store.missing(tenant, tree), seconds=UPLOAD_SECONDS)

    return Missing(missing=tuple(await to_thread.run_sync(ask, limiter=upload_limiter())))


@router.put("/blobs/{sha256}", summary="Store a blob; the body is its content")
async def put_blob(parts: PartsDep, tenant: TenantDep, sha256: Digest, request: Request) -> Stored:
    """The digest is verified and the size limited while the body comes in."""
    limit_bytes = parts.settings.data_limit_bytes
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit_bytes:
        raise LimitError(f"blob {sha256[:12]}: {announced} bytes; the limit is {limit_bytes}")
    counted = _Counted(request)
    content = io.BufferedReader(BodyReader(counted), 256 * 1024)
    await to_thread.run_sync(parts.store.put_blob, tenant, content, sha256, limit_bytes, limiter=upload_limiter())
    return Stored(sha256=sha256, size_bytes=counted.size_bytes)


@router.put("/trees/{sha256}", summary="Store a tree whose blobs are all stored")
async def put_tree(parts: PartsDep, tenant: TenantDep, sha256: Digest, body: TreeBody) -> Stored:
    """Takes longer than other routes where the store holds very much."""

    def store() -> Tree:
        tree = _tree(parts, body)
        if tree.sha256 != sha256:
            raise DataError(f"tree {sha256[:12]}: the document has another SHA-256 ({tree.sha256[:12]})")
        parts.deadline.call("storage", lambda: parts.store.put_tree(tenant, tree), seconds=UPLOAD_SECONDS)
        return tree

    tree = await to_thread.run_sync(store, limiter=upload_limiter())
    return Stored(sha256=sha256, size_bytes=tree.size_bytes)


class _Counted:
    """The chunks of a request's body, and how many bytes have come."""

    def __init__(self, request: Request) -> None:
        self._chunks = request.stream()
        self.size_bytes = 0

    def __aiter__(self) -> _Counted:
        return self

    async def __anext__(self) -> bytes:
        chunk = await anext(self._chunks)
        self.size_bytes += len(chunk)
        return chunk


def _tree(parts: Parts, body: TreeBody) -> Tree:
    """Raises DataError for a document that is no tree, LimitError for one that no job may use."""
    try:
        files = tuple(TreeFile(file.path, file.sha256, file.size, file.mode) for file in body.files)
        tree = Tree.from_json(Tree(files).to_json())
    except TreeError as exc:
        raise DataError(f"tree: {exc}") from exc
    limit_bytes = parts.settings.data_limit_bytes
    if tree.size_bytes > limit_bytes:
        raise LimitError(f"tree: its files have {tree.size_bytes} bytes; the limit is {limit_bytes}")
    return tree
