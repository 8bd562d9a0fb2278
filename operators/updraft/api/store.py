"""Read and write the object store for the routes. Works with any `ObjectStore`, so also with a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO

from updraft.exceptions import NotFoundError, RefusedError
from updraft.schemas import LogLine
from updraft.storage import objects
from updraft.storage.content import ContentStore
from updraft.storage.errors import platform_errors
from updraft_learner.contract import MARKER_LIMIT_BYTES, Keys, LearnerStatus
from updraft_learner.store import ObjectStore
from updraft_learner.trees import Tree

CHUNK_BYTES = 256 * 1024
KINDS = "results, model or checkpoint:NAME"


@dataclass(frozen=True)
class StoredFile:
    """A file of a job: its path among the files of its kind, its size, its key."""

    path: str
    size_bytes: int
    key: str


@dataclass(frozen=True)
class JobStore:
    """The platform's bucket. `open_store` is called for each request, because credentials may have been rotated."""

    open_store: Callable[[], ObjectStore]

    def check(self) -> str:
        """Return a message that the store answers. Raises UnavailableError, or UpdraftError when the bucket or the
        credentials are wrong."""
        with platform_errors():
            self.open_store().get_bytes("health-check-that-does-not-exist")
        return "the object store answers"

    def content(self, tenant: str) -> ContentStore:
        return ContentStore(self.open_store(), Keys(tenant))

    def missing(self, tenant: str, tree: Tree) -> list[str]:
        return sorted(self.content(tenant).missing(tree))

    def stored_bytes(self, tenant: str) -> int:
        """Return the size of the tenant's code and data, uploaded or staged. Lists all of them."""
        with platform_errors():
            return sum(item.size for item in self.open_store().list(Keys(tenant).blob("")))

    def put_blob(self, tenant: str, content: BinaryIO, sha256: str, limit_bytes: int) -> None:
        self.content(tenant).put_blob(content, sha256, limit_bytes=limit_bytes)

    def put_tree(self, tenant: str, tree: Tree) -> None:
        self.content(tenant).put_tree(tree)

    def status(self, tenant: str, job_id: str, role: str, attempt: int, learner: int) -> LearnerStatus | None:
        return objects.read_status(tenant, job_id, role, attempt, learner, store=self.open_store())

    def log(
        self, tenant: str, job_id: str, role: str, attempt: int, learner: int, after: int, limit: int
    ) -> Sequence[LogLine]:
        """Return at most `limit` lines with numbers above `after`."""
        store = self.open_store()
        found = objects.read_log(tenant, job_id, role, attempt, learner, after=after, limit=limit, store=store)
        return [LogLine.model_validate(line) for line in found]

    def log_end(self, tenant: str, job_id: str, role: str, attempt: int, learner: int, limit: int) -> Sequence[LogLine]:
        """Return the last `limit` lines."""
        found = objects.read_log_end(tenant, job_id, role, attempt, learner, limit=limit, store=self.open_store())
        return [LogLine.model_validate(line) for line in found]

    def files(self, tenant: str, job_id: str, kind: str, after: str, limit: int) -> tuple[list[StoredFile], bool]:
        """Return at most `limit` files of a kind whose paths are greater than `after`, in order of their paths, and
        whether there are more. Raises NotFoundError for a kind, or a checkpoint, that does not exist."""
        prefix, leave_out = _prefix(Keys(tenant), job_id, kind)
        with platform_errors():
            store = self.open_store()
            _check_complete(store, tenant, job_id, kind)
            listed = (
                StoredFile(item.key[len(prefix) :], item.size, item.key) for item in store.list(prefix, prefix + after)
            )
            found = list(islice((file for file in listed if not file.path.startswith(leave_out)), limit + 1))
        return found[:limit], len(found) > limit

    def file(self, tenant: str, job_id: str, kind: str, path: str) -> StoredFile:
        """Return one file of a kind. Accepts every path that a program's file can have on Linux.

        Raises RefusedError for a path that no file can have, NotFoundError if there is none.
        """
        _check_path(path)
        prefix, leave_out = _prefix(Keys(tenant), job_id, kind)
        with platform_errors():
            store = self.open_store()
            _check_complete(store, tenant, job_id, kind)
            size = None if path.startswith(leave_out) else store.size(prefix + path)
        if size is None:
            raise NotFoundError(f"{path!r} is not among the {kind} of job {job_id}")
        return StoredFile(path, size, prefix + path)

    def read(self, file: StoredFile) -> Iterator[bytes]:
        """Yield the content in chunks. Opened before the first is asked for, so that an error can still be answered."""
        with platform_errors():
            stream = self.open_store().open(file.key)
        return _chunks(stream)


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    with stream, platform_errors():
        while chunk := stream.read(CHUNK_BYTES):
            yield chunk


def _check_path(path: str) -> None:
    """Raise RefusedError for a path that no file can have."""
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise RefusedError(
            f"path {path[:200]!r} is refused: no file can have it; the list of files has those that exist"
        )


def _check_complete(store: ObjectStore, tenant: str, job_id: str, kind: str) -> None:
    """Raise NotFoundError for a checkpoint that does not exist or is not complete."""
    if not kind.startswith("checkpoint:"):
        return
    name = kind.partition(":")[2]
    if store.get_bytes(Keys(tenant).checkpoint_marker(job_id, name), MARKER_LIMIT_BYTES) is None:
        raise NotFoundError(f"checkpoint {name!r} of job {job_id} does not exist or is not complete")


def _prefix(keys: Keys, job_id: str, kind: str) -> tuple[str, tuple[str, ...]]:
    """Return where the files of that kind lie, and what lies there but is of another kind."""
    if kind == "results":
        return f"{keys.job(job_id)}/results/", ("export/",)
    if kind == "model":
        return f"{keys.results(job_id, 'export', 1)}/{objects.EXPORT_FOLDER}/", ()
    name = kind.removeprefix("checkpoint:")
    if kind.startswith("checkpoint:") and name and "/" not in name and name not in (".", ".."):
        return f"{keys.checkpoint(job_id, name)}/", ()
    raise NotFoundError(f"kind {kind!r} does not exist; it is {KINDS}")
