"""Upload large files to the object store in parts, and continue uploads that were interrupted.

A book stores which upload of a key was begun, and the digest of each part that the server has. A process that puts the
key again, the same or a later one, sends only parts that the server lacks or that have changed. `store.S3Store` uses
the book; the sidecar says where it is stored.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from updraft_learner.storage_errors import StorageError

PART_BYTES = 16 << 20
RESTARTS = 3  # of an upload that the server does not know any more
KEPT_UPLOADS = 4  # interrupted uploads; a further one replaces the oldest


@dataclass
class Upload:
    """A multipart upload. `parts` are the server's tag and the content's digest of parts 1, 2, ...

    In a book, an upload without an id was requested, but the answer was lost: the server may have begun it.
    """

    key: str
    upload_id: str = ""
    parts: list[tuple[str, str]] = field(default_factory=list)


class UploadForgotten(StorageError):
    """The server does not know an upload that was begun."""


class UploadBook:
    """Unfinished uploads, oldest first: in memory, and for the next process in one small file each.

    Args:
        folder: None for memory only. If the disk is full, the upload continues, but the next process does not know of
        it.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._uploads: dict[str, Upload] = {}
        for path in sorted(folder.glob("*.json"), key=_changed_ns) if folder is not None else ():
            with suppress(OSError, ValueError, TypeError, KeyError):
                raw = json.loads(path.read_bytes())
                parts = [(str(tag), str(digest)) for tag, digest in raw["parts"]]
                self._uploads[raw["key"]] = Upload(str(raw["key"]), str(raw["upload_id"]), parts)

    def take(self, key: str) -> Upload | None:
        """Remove and return what is known of a key; `keep` stores it again when it makes progress or is interrupted."""
        return self._uploads.pop(key, None)

    def keep(self, upload: Upload) -> None:
        self._uploads[upload.key] = upload
        path = self._path(upload.key)
        if path is None:
            return
        part = path.with_suffix(".part")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            part.write_text(json.dumps(asdict(upload)), encoding="utf-8")
            os.replace(part, path)
        except OSError:
            with suppress(OSError):
                part.unlink()

    def forget(self, key: str) -> None:
        self._uploads.pop(key, None)
        path = self._path(key)
        if path is not None:
            with suppress(OSError):
                path.unlink()

    def all(self) -> list[Upload]:
        return list(self._uploads.values())

    def _path(self, key: str) -> Path | None:
        return None if self._folder is None else self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


class Uploader:
    """Multipart uploads to one bucket.

    Args:
        client: botocore's, or `s3.S3Client`.
        insist: Calls a function, and retries while the server cannot be reached; raises StorageError.
        book: Without it, a failed upload is aborted at once.
        part_bytes: The size of each of the first thousand parts; later ones are larger.
    """

    def __init__(
        self,
        bucket: str,
        client: Any,
        insist: Callable[[str, Callable[[], Any]], Any],
        book: UploadBook | None,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._bucket, self._client, self._insist, self._book = bucket, client, insist, book
        self.part_bytes = part_bytes

    def put(self, key: str, first: bytes, file: BinaryIO) -> None:
        """Send `first` and the rest of a file, one part in memory at a time; each part is retried by itself.

        Raises:
            UploadForgotten: the server was restarted and does not know the upload; begin again.
            StorageError: it cannot be stored now.
        """
        known = self._book.take(key) if self._book is not None else None
        upload = known or Upload(key)
        try:
            if not upload.upload_id:
                self._begin(upload, unheard=known is not None)
            self._send(upload, first, file)
        except BaseException as exc:
            kind = exc.kind if isinstance(exc, StorageError) else None
            if self._book is None or kind not in (None, "unreachable"):
                self._abort(upload)
            else:
                self._book.keep(upload)
                for oldest in self._book.all()[:-KEPT_UPLOADS]:
                    self._abort(oldest)
            if kind == "missing":
                raise UploadForgotten(kind, str(exc)) from exc
            raise

    def abort_below(self, prefix: str, stale: Callable[[str], bool]) -> int:
        """See `ObjectStore.abort_uploads`."""
        marker: dict[str, str] = {}
        count = 0
        while True:
            list_them = partial(self._client.list_multipart_uploads, Bucket=self._bucket, Prefix=prefix, **marker)
            page = self._insist(f"listing uploads below {prefix}", list_them)
            for item in page.get("Uploads", []):
                if stale(str(item["Key"])):
                    self._abort(Upload(str(item["Key"]), str(item["UploadId"])))
                    count += 1
            if not page.get("IsTruncated"):
                return count
            marker = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def abort_kept(self) -> None:
        """Give up what this and earlier processes did not finish."""
        for upload in self._book.all() if self._book is not None else ():
            self._abort(upload)

    def _begin(self, upload: Upload, *, unheard: bool) -> None:
        """Begin an upload. `unheard`: an earlier request may have begun an upload, but its answer was lost; it is
        aborted."""

        def create() -> Any:
            nonlocal unheard
            if unheard and self._book is not None:
                self._abort_unheard(upload.key)
            unheard = True
            return self._client.create_multipart_upload(Bucket=self._bucket, Key=upload.key)

        if self._book is not None:
            self._book.keep(upload)
        upload.upload_id = str(self._insist(f"writing {upload.key}", create)["UploadId"])
        if self._book is not None:
            self._book.keep(upload)

    def _send(self, upload: Upload, first: bytes, file: BinaryIO) -> None:
        action = f"writing {upload.key}"
        where = {"Bucket": self._bucket, "Key": upload.key, "UploadId": upload.upload_id}
        count, data = 0, first
        while data:
            digest = hashlib.sha256(data).hexdigest() if self._book is not None else ""
            if count == len(upload.parts) or upload.parts[count][1] != digest:
                send = partial(self._client.upload_part, **where, PartNumber=count + 1, Body=data)
                upload.parts[count:] = [(str(self._insist(action, send)["ETag"]), digest)]
                if self._book is not None:
                    self._book.keep(upload)
            count += 1
            # A server takes at most 10,000 parts, so later parts are larger.
            data = read_whole(file, self.part_bytes * (1 + count // 1000))
        parts = [{"PartNumber": number, "ETag": tag} for number, (tag, _) in enumerate(upload.parts[:count], start=1)]
        finish = partial(self._client.complete_multipart_upload, **where, MultipartUpload={"Parts": parts})
        self._insist(action, finish)
        if self._book is not None:
            self._book.forget(upload.key)

    def _abort(self, upload: Upload) -> None:
        with suppress(Exception):  # only the error that led here counts
            if upload.upload_id:
                self._client.abort_multipart_upload(Bucket=self._bucket, Key=upload.key, UploadId=upload.upload_id)
            elif self._book is not None:
                self._abort_unheard(upload.key)
        if self._book is not None:
            self._book.forget(upload.key)

    def _abort_unheard(self, key: str) -> None:
        """Abort all uploads of a key, which only the holder of the book writes."""
        with suppress(Exception):  # not every server can list uploads; then an unfinished one stays
            page = self._client.list_multipart_uploads(Bucket=self._bucket, Prefix=key)
            for item in page.get("Uploads", []):
                if item["Key"] == key:
                    where = {"Key": key, "UploadId": str(item["UploadId"])}
                    self._client.abort_multipart_upload(Bucket=self._bucket, **where)


def read_whole(file: BinaryIO, size: int) -> bytes:
    """Read `size` bytes, fewer only at the end: an unbuffered file may give less than it was asked for."""
    chunks, left = [], size
    while left and (chunk := file.read(left)):
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def _changed_ns(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return 0
