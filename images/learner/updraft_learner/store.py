"""The object store: a small protocol, and S3 behind it through boto3.

Works with any S3 server, also those that ignore conditional puts or lose metadata: nothing here uses either. Calls are
retried a bounded number of times with back-off; errors come out as `StorageError`. Called by `stage` and the sidecar.
"""

from __future__ import annotations

import hashlib
import io
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    from updraft_learner.pod import S3Credentials

Kind = Literal["missing bucket", "missing", "denied", "unreachable", "refused"]
T = TypeVar("T")
PART_BYTES = 16 << 20
BROKEN_OFF = 4  # uploads that are kept to be gone on with; the oldest gives way
ATTEMPTS = 5
FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 8.0

_KINDS: dict[str, Kind] = {
    "NoSuchBucket": "missing bucket",
    "NoSuchKey": "missing",
    "404": "missing",
    "NotFound": "missing",
    "AccessDenied": "denied",
    "InvalidAccessKeyId": "denied",
    "SignatureDoesNotMatch": "denied",
    "AuthorizationHeaderMalformed": "denied",
    "RequestTimeTooSkewed": "denied",
    "ExpiredToken": "denied",
    "401": "denied",
    "403": "denied",
    "SlowDown": "unreachable",
    "RequestTimeout": "unreachable",
    "InternalError": "unreachable",
    "ServiceUnavailable": "unreachable",
}


class StorageError(Exception):
    """The object store did not do what was asked; `kind` says why, the message says what to look at."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind: Kind = kind


@dataclass(frozen=True)
class StoredObject:
    key: str
    size: int


class ObjectStore(Protocol):
    def put_bytes(self, key: str, data: bytes) -> None: ...

    def put_file(self, key: str, source: Path | Callable[[], BinaryIO]) -> None:
        """Store a file's content. `source` may be a function that opens it."""

    def get_bytes(self, key: str) -> bytes | None:
        """Content of a small object, or None when there is none."""

    def open(self, key: str) -> BinaryIO:
        """Content as a stream; raises StorageError of kind "missing" when there is none."""

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Objects whose key begins with `prefix`, in order of their keys."""

    def delete(self, key: str) -> None:
        """Deleting what is not there is no error."""


class Store:
    """One bucket of an S3 server.

    Args:
        attempts: how often a call is tried while the server cannot be reached.
        sleep: seconds; replaced in tests.
        resume_uploads: a large file whose upload was broken off, because the server was away, goes on with the part at
            which it was, when this object is asked to put it again. Else it is cleaned up and begins anew.
    """

    def __init__(
        self,
        bucket: str,
        credentials: S3Credentials,
        *,
        attempts: int = ATTEMPTS,
        sleep: Callable[[float], None] = time.sleep,
        resume_uploads: bool = False,
    ) -> None:
        import boto3
        from botocore.config import Config

        self.bucket = bucket
        self.endpoint = credentials.endpoint or "the default S3 endpoint"
        self._attempts = attempts
        self._sleep = sleep
        self._resume_uploads = resume_uploads
        self._broken_off: dict[str, _Upload] = {}
        # A session of its own: the default one is shared by threads without a lock.
        self._client: Any = boto3.session.Session().client(
            "s3",
            endpoint_url=credentials.endpoint,
            region_name=credentials.region or "us-east-1",
            aws_access_key_id=credentials.access_key,
            aws_secret_access_key=credentials.secret_key,
            config=Config(
                signature_version="s3v4",
                s3={"addressing_style": "path"},
                # Servers other than AWS's break on the newer default checksums, for instance in ranged reads.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                retries={"total_max_attempts": 1},
                connect_timeout=5,
                read_timeout=60,
                max_pool_connections=16,
            ),
        )

    def put_bytes(self, key: str, data: bytes) -> None:
        self._try(f"writing {key}", lambda: self._client.put_object(Bucket=self.bucket, Key=key, Body=data))

    def put_file(self, key: str, source: Path | Callable[[], BinaryIO]) -> None:
        # Not boto3's transfer: after a failed part it goes on reading, and holds the whole file in memory.
        with source.open("rb", buffering=0) if isinstance(source, Path) else source() as file:
            first = _read(file, PART_BYTES)
            if len(first) < PART_BYTES:
                self.put_bytes(key, first)
            else:
                self._put_parts(key, first, file)

    def _put_parts(self, key: str, first: bytes, file: BinaryIO) -> None:
        """A multipart upload, one part in memory at a time; each part is tried again by itself."""
        action, where = f"writing {key}", {"Bucket": self.bucket, "Key": key}
        upload = self._broken_off.pop(key, None)
        if upload is None:
            upload = _Upload(str(self._try(action, lambda: self._client.create_multipart_upload(**where)["UploadId"])))
        where["UploadId"] = upload.id
        try:
            count, data = 0, first
            while data:
                digest = hashlib.sha256(data).digest() if self._resume_uploads else b""
                if count == len(upload.parts) or not digest or upload.parts[count][1] != digest:
                    send = partial(self._client.upload_part, **where, PartNumber=count + 1, Body=data)
                    upload.parts[count:] = [(str(self._try(action, send)["ETag"]), digest)]
                count += 1
                # A server takes 10,000 parts: later ones are larger.
                data = _read(file, PART_BYTES * (1 + count // 1000))
            done = [
                {"PartNumber": number, "ETag": tag} for number, (tag, _) in enumerate(upload.parts[:count], start=1)
            ]
            complete = partial(self._client.complete_multipart_upload, **where, MultipartUpload={"Parts": done})
            self._try(action, complete)
        except BaseException as exc:
            if self._resume_uploads and isinstance(exc, StorageError) and exc.kind == "unreachable":
                self._broken_off[key] = upload
                if len(self._broken_off) > BROKEN_OFF:
                    oldest = next(iter(self._broken_off))
                    self._abort(oldest, self._broken_off.pop(oldest))
            else:
                self._abort(key, upload)
            raise

    def _abort(self, key: str, upload: _Upload) -> None:
        with suppress(Exception):  # the failure that led here is what counts
            self._client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload.id)

    def get_bytes(self, key: str) -> bytes | None:
        try:
            return self._try(
                f"reading {key}", lambda: bytes(self._client.get_object(Bucket=self.bucket, Key=key)["Body"].read())
            )
        except StorageError as exc:
            if exc.kind == "missing":
                return None
            raise

    def open(self, key: str) -> BinaryIO:
        return io.BufferedReader(_ResumingReader(self, key), buffer_size=1 << 20)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        token: dict[str, str] = {}
        while True:
            page = self._try(
                f"listing {prefix}",
                lambda token=token: self._client.list_objects_v2(Bucket=self.bucket, Prefix=prefix, **token),  # type: ignore[misc]
            )
            for item in page.get("Contents", []):
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
        """A stream of the object's content from `offset` on, as the client library gives it."""
        extra = {"Range": f"bytes={offset}-"} if offset else {}
        return self._try(
            f"reading {key}", lambda: self._client.get_object(Bucket=self.bucket, Key=key, **extra)["Body"]
        )

    def _try(self, action: str, call: Callable[[], T]) -> T:
        delay_seconds = FIRST_DELAY_SECONDS
        for attempt in range(1, self._attempts + 1):
            try:
                return call()
            except Exception as exc:
                error = wrap(exc, action, bucket=self.bucket, endpoint=self.endpoint)
                if error is None:
                    raise
                if error.kind != "unreachable" or attempt == self._attempts:
                    raise error from exc
            self._sleep(delay_seconds * random.uniform(0.5, 1.0))
            delay_seconds = min(delay_seconds * 2, LONGEST_DELAY_SECONDS)
        raise AssertionError("at least one attempt is made")


@dataclass
class _Upload:
    """A multipart upload, and ETag and digest of each part that the server has."""

    id: str
    parts: list[tuple[str, bytes]] = field(default_factory=list)


class _ResumingReader(io.RawIOBase):
    """Reads an object to its end; a connection that breaks is opened again where it broke."""

    def __init__(self, store: Store, key: str) -> None:
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


def wrap(exc: Exception, action: str, *, bucket: str, endpoint: str) -> StorageError | None:
    """The StorageError for an exception of the client library; None when it is not one of those."""
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        HTTPClientError,
        IncompleteReadError,
        NoCredentialsError,
    )
    from botocore.exceptions import ConnectionError as BotoConnectionError

    if isinstance(exc, StorageError):
        return exc
    if isinstance(exc, Boto3Error) and exc.__context__ is not None and exc.__context__ is not exc:
        inner = wrap(exc.__context__, action, bucket=bucket, endpoint=endpoint)  # type: ignore[arg-type]
        if inner is not None:
            return inner
    where = f"bucket {bucket!r} at {endpoint}"
    if isinstance(exc, ClientError):
        code = str(exc.response.get("Error", {}).get("Code", ""))
        status = int(exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        kind = _KINDS.get(code)
        if kind is None:
            kind = "unreachable" if status >= 500 or status == 429 else _KINDS.get(str(status), "refused")
        return StorageError(kind, _message(kind, action, where, code or str(status)))
    if isinstance(exc, NoCredentialsError):
        return StorageError("denied", _message("denied", action, where, "no credentials"))
    broken = (BotoConnectionError, HTTPClientError, IncompleteReadError, ConnectionError, TimeoutError)
    if isinstance(exc, broken) or type(exc).__module__.startswith("urllib3"):
        return StorageError("unreachable", _message("unreachable", action, where, type(exc).__name__))
    if isinstance(exc, (BotoCoreError, Boto3Error)):
        return StorageError("refused", _message("refused", action, where, type(exc).__name__))
    return None


def _message(kind: Kind, action: str, where: str, detail: str) -> str:
    text = {
        "missing bucket": "the bucket does not exist; create it or correct its name",
        "missing": "there is no such object",
        "denied": "access is denied; check the access key, its secret and its rights on this bucket",
        "unreachable": "the object store cannot be reached; check that it runs and the address is right",
        "refused": "the object store refused the request",
    }[kind]
    return f"{where}: {action}: {text} ({detail})"


def _read(file: BinaryIO, size: int) -> bytes:
    """`size` bytes, fewer only at the end: an unbuffered file may give less than it was asked for."""
    chunks, left = [], size
    while left and (chunk := file.read(left)):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)
