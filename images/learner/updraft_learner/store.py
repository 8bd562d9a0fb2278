"""Use the object store through a small protocol; the implementation is S3.

Works with any S3 server, also with servers that ignore conditional puts or lose metadata, because neither is used.
Calls are retried a limited number of times with back-off; errors are raised as `StorageError`. `stage` and the sidecar,
which open the store with `open_store`, call this, and so does the platform.
"""

from __future__ import annotations

import functools
import io
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar
from urllib.parse import urlsplit

from updraft_learner.backoff import Backoff
from updraft_learner.storage_errors import StorageError, too_large, wrap
from updraft_learner.uploads import PART_BYTES, RESTARTS, UploadBook, Uploader, UploadForgotten, read_whole

if TYPE_CHECKING:
    from updraft_learner.pod import S3Credentials

__all__ = ["ObjectStore", "OpenedRange", "S3Store", "StorageError", "StoredObject", "botocore_client", "open_store"]

T = TypeVar("T")
ATTEMPTS = 5
BACKOFF = Backoff(0.5, 8.0)
# The default limit for an object that is read as a whole; the platform's largest log chunk is below it. A learner's
# objects must not fill the memory of a process that reads for all learners.
READ_LIMIT_BYTES = 16 << 20


@dataclass(frozen=True)
class StoredObject:
    key: str
    size: int


@dataclass(frozen=True)
class OpenedRange:
    """Some bytes of an object, not read yet, and what the server says of the whole object."""

    body: Any  # with `read` and `close`
    etag: str
    modified: datetime | None  # None: the server does not say
    total: int | None


class ObjectStore(Protocol):
    def put_bytes(self, key: str, data: bytes) -> None: ...

    def put_file(self, key: str, source: Path | Callable[[], BinaryIO]) -> None:
        """Store a file's content. `source` may be a function that opens it."""

    def get_bytes(self, key: str, limit_bytes: int = READ_LIMIT_BYTES) -> bytes | None:
        """Return the content of a small object, or None if it does not exist.

        Raises StorageError of kind "too large", without reading it, if it is larger than the limit.
        """

    def open(self, key: str) -> BinaryIO:
        """Open an object's content as a stream. Raises StorageError of kind "missing" when there is none."""

    def size(self, key: str) -> int | None:
        """Return an object's size in bytes, or None if it does not exist."""

    def list(self, prefix: str, after: str = "") -> Iterator[StoredObject]:
        """Yield the objects whose key begins with `prefix` and is greater than `after`, in order of their keys."""

    def delete(self, key: str) -> None:
        """Delete an object; a missing object is no error."""

    def abort_uploads(self, prefix: str, stale: Callable[[str], bool]) -> int:
        """Give up unfinished uploads below `prefix` whose key is `stale`; returns how many there were."""


def open_store(
    bucket: str,
    credentials: S3Credentials,
    *,
    attempts: int = ATTEMPTS,
    read_seconds: float = 60,
    uploads: UploadBook | None = None,
) -> S3Store:
    """Open a store for the pod: without botocore, which takes half a second to start, unless `needs_botocore`."""
    if needs_botocore(credentials):
        client = botocore_client(credentials, read_seconds=read_seconds)
    else:
        from updraft_learner.s3 import S3Client

        client = S3Client(credentials, read_seconds=read_seconds)
    return S3Store(bucket, credentials, attempts=attempts, client=client, uploads=uploads)


def needs_botocore(credentials: S3Credentials) -> bool:
    """Return whether keys must be found elsewhere or requests go through a proxy."""
    return not (credentials.access_key and credentials.secret_key) or _is_proxied(credentials.endpoint)


def _is_proxied(endpoint: str | None) -> bool:
    """Return whether the environment sends requests to this address through a proxy."""

    def value(name: str) -> str:
        return os.environ.get(name.lower()) or os.environ.get(name) or ""

    parts = urlsplit(endpoint or "https://amazonaws.com")
    host = parts.hostname or ""
    direct = [word.strip().lstrip("*").lstrip(".") for word in value("NO_PROXY").split(",") if word.strip()]
    if any(word in ("", host) or host.endswith(f".{word}") for word in direct):
        return False
    return bool(value("HTTPS_PROXY" if parts.scheme == "https" else "HTTP_PROXY") or value("ALL_PROXY"))


def botocore_client(credentials: S3Credentials, *, read_seconds: float = 60) -> Any:
    import botocore.session
    from botocore.config import Config

    # A session of its own: threads share the default session without a lock.
    session = botocore.session.Session()
    session.register_component("data_loader", _descriptions())
    return session.create_client(
        "s3",
        endpoint_url=credentials.endpoint,
        region_name=credentials.region or "us-east-1",
        aws_access_key_id=credentials.access_key,
        aws_secret_access_key=credentials.secret_key,
        config=Config(
            signature_version="s3v4",
            s3={"addressing_style": "path"},
            # Servers other than AWS's fail with the newer default checksums, for instance in ranged reads.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            retries={"total_max_attempts": 1},
            connect_timeout=5,
            read_timeout=read_seconds,
            max_pool_connections=16,
        ),
    )


@functools.cache
def _descriptions() -> Any:
    """Return the descriptions of S3's calls that botocore ships: reading them is nine tenths of the time that a client
    takes to make."""
    from botocore.loaders import create_loader

    return create_loader()


class S3Store:
    """One bucket of an S3 server.

    Args:
        attempts: How often a call is tried while the server cannot be reached.
        sleep: Waits some seconds; replaced in tests.
        client: botocore's, or one like it; by default a new one of botocore's.
        uploads: The book of unfinished uploads. With it, a large file whose upload was interrupted, because the server
            or a process failed, continues at the unfinished part when it is put again. Without it, the upload is
            aborted and starts again.
        part_bytes: A file of this size or more is uploaded in parts.
    """

    def __init__(
        self,
        bucket: str,
        credentials: S3Credentials,
        *,
        attempts: int = ATTEMPTS,
        sleep: Callable[[float], None] = time.sleep,
        client: Any = None,
        uploads: UploadBook | None = None,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self.bucket = bucket
        self.endpoint = credentials.endpoint or "the default S3 endpoint"
        self._attempts = attempts
        self._sleep = sleep
        self._client: Any = client if client is not None else botocore_client(credentials)
        self.uploads = Uploader(bucket, self._client, self._try, uploads, part_bytes)

    def put_bytes(self, key: str, data: bytes) -> None:
        self._try(f"writing {key}", lambda: self._client.put_object(Bucket=self.bucket, Key=key, Body=data))

    def put_file(self, key: str, source: Path | Callable[[], BinaryIO]) -> None:
        for last in (False,) * RESTARTS + (True,):
            try:
                self._put_file(key, source)
                return
            except UploadForgotten:
                if last:
                    raise

    def _put_file(self, key: str, source: Path | Callable[[], BinaryIO]) -> None:
        # Not boto3's transfer: after a failed part it continues to read, and holds the whole file in memory.
        with source.open("rb", buffering=0) if isinstance(source, Path) else source() as file:
            first = read_whole(file, self.uploads.part_bytes)
            if len(first) < self.uploads.part_bytes:
                self.put_bytes(key, first)
            else:
                self.uploads.put(key, first, file)

    def abort_uploads(self, prefix: str, stale: Callable[[str], bool]) -> int:
        return self.uploads.abort_below(prefix, stale)

    def get_bytes(self, key: str, limit_bytes: int = READ_LIMIT_BYTES) -> bytes | None:
        try:
            return self._try(f"reading {key}", lambda: self._read(key, limit_bytes))
        except StorageError as exc:
            if exc.kind == "missing":
                return None
            raise

    def _read(self, key: str, limit_bytes: int) -> bytes:
        answer = self._client.get_object(Bucket=self.bucket, Key=key)
        body, length = answer["Body"], answer.get("ContentLength")
        if length is None:  # no known server omits it
            data = read_whole(body, limit_bytes + 1)
            length = len(data)
        elif length <= limit_bytes:
            data = bytes(body.read())
        if length > limit_bytes:
            body.close()
            raise too_large(key, length, limit_bytes)
        return data

    def open(self, key: str) -> BinaryIO:
        return io.BufferedReader(_ResumingReader(self, key), buffer_size=1 << 20)

    def size(self, key: str) -> int | None:
        try:
            answer = self._try(f"reading {key}", lambda: self._client.head_object(Bucket=self.bucket, Key=key))
        except StorageError as exc:
            if exc.kind == "missing":
                return None
            raise
        return int(answer["ContentLength"])

    def list(self, prefix: str, after: str = "") -> Iterator[StoredObject]:
        token = {"StartAfter": after} if after else {}
        while True:
            page = self._try(
                f"listing {prefix}",
                lambda token=token: self._client.list_objects_v2(Bucket=self.bucket, Prefix=prefix, **token),  # type: ignore[misc]
            )
            for item in page.get("Contents", []):
                if str(item["Key"]) > after:  # some servers do not know StartAfter
                    yield StoredObject(str(item["Key"]), int(item["Size"]))
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, key: str) -> None:
        try:
            self._try(f"deleting {key}", lambda: self._client.delete_object(Bucket=self.bucket, Key=key))
        except StorageError as exc:
            if exc.kind != "missing":
                raise

    def read_from(self, key: str, offset: int) -> Any:
        """Return a stream of the object's content from `offset` on, as the client library gives it."""
        extra = {"Range": f"bytes={offset}-"} if offset else {}
        return self._try(
            f"reading {key}", lambda: self._client.get_object(Bucket=self.bucket, Key=key, **extra)["Body"]
        )

    def open_range(self, key: str, offset: int, size: int) -> OpenedRange:
        """Open `size` bytes of an object, at least one. Raises StorageError."""
        wanted = f"bytes={offset}-{offset + size - 1}"
        answer = self._try(f"reading {key}", lambda: self._client.get_object(Bucket=self.bucket, Key=key, Range=wanted))
        total = str(answer.get("ContentRange") or "").rpartition("/")[2]
        return OpenedRange(
            answer["Body"],
            str(answer.get("ETag") or ""),
            answer.get("LastModified"),
            int(total) if total.isdecimal() else None,
        )

    def _try(self, action: str, call: Callable[[], T]) -> T:
        for attempt in range(1, self._attempts + 1):
            try:
                return call()
            except Exception as exc:
                error = wrap(exc, action, bucket=self.bucket, endpoint=self.endpoint)
                if error is None:
                    raise
                if error.kind != "unreachable" or attempt == self._attempts:
                    raise error from exc
            self._sleep(BACKOFF.jittered_seconds(attempt))
        raise AssertionError("at least one attempt is made")


class _ResumingReader(io.RawIOBase):
    """Reads an object to its end; if the connection breaks, it opens a new one at that position."""

    def __init__(self, store: S3Store, key: str) -> None:
        self._store, self._key = store, key
        self._offset = 0
        self._failures = 0
        self._body = store.read_from(key, 0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            try:
                data = self._body.read(len(buffer))
            except Exception as exc:
                error = wrap(exc, f"reading {self._key}", bucket=self._store.bucket, endpoint=self._store.endpoint)
                self._failures += 1
                if error is None:
                    raise
                if error.kind != "unreachable" or self._failures >= ATTEMPTS:
                    raise error from exc
                self._body = self._store.read_from(self._key, self._offset)
                continue
            buffer[: len(data)] = data
            self._offset += len(data)
            return len(data)

    def close(self) -> None:
        if not self.closed:
            self._body.close()
        super().close()
