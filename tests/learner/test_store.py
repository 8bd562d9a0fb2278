"""The object store through a real S3 protocol, and how its errors read."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from folder_store import FolderStore

from updraft_learner.pod import S3Credentials
from updraft_learner.s3 import S3Client
from updraft_learner.storage_errors import S3Error
from updraft_learner.store import ObjectStore, S3Store, StorageError, botocore_client
from updraft_learner.uploads import UploadBook

ClientError = pytest.importorskip("botocore.exceptions").ClientError  # not in a learner's own environment


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


KINDS = ["plain", "botocore"]
PART_BYTES = 5 << 20  # S3 takes no smaller ones


def connect(endpoint: str, kind: str = "plain", bucket: str = "updraft", **options: Any) -> S3Store:
    credentials = S3Credentials(endpoint, "us-east-1", "key", "hush-secret")
    client = S3Client(credentials) if kind == "plain" else botocore_client(credentials)
    return S3Store(bucket, credentials, client=client, part_bytes=PART_BYTES, **options)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def bucket(endpoint: str, tmp_path: Path) -> str:
    """A new bucket."""
    name = tmp_path.name.replace("_", "-")[-40:].strip("-")
    botocore_client(S3Credentials(endpoint, "us-east-1", "key", "hush-secret")).create_bucket(Bucket=name)
    return name


@pytest.fixture(params=[*KINDS, "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return FolderStore(tmp_path / "store")
    return connect(request.getfixturevalue("endpoint"), request.param, request.getfixturevalue("bucket"))


def uploads(store: S3Store) -> list[str]:
    """Keys of unfinished uploads in the store's bucket."""
    page = store._client.list_multipart_uploads(Bucket=store.bucket, Prefix="")
    return sorted(upload["Key"] for upload in page.get("Uploads", []))


def test_objects_come_back_as_they_were(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    store.put_bytes("a/one", b"1")
    store.put_file("a/two", tmp_path / "file")
    store.put_file("b/three", lambda: io.BytesIO(b"333"))
    assert [(item.key, item.size) for item in store.list("a/")] == [("a/one", 1), ("a/two", 100_000)]
    assert [item.key for item in store.list("a/", "a/one")] == ["a/two"]
    assert [item.key for item in store.list("", "a/zzz")] == ["b/three"]
    assert store.get_bytes("a/one") == b"1"
    assert store.get_bytes("nothing") is None
    with store.open("a/two") as stream:
        assert stream.read() == b"x" * 100_000
    store.delete("a/one")
    store.delete("a/one")
    assert [item.key for item in store.list("")] == ["a/two", "b/three"]
    with pytest.raises(StorageError) as caught:
        store.open("nothing")
    assert caught.value.kind == "missing"


def test_what_is_longer_than_the_limit_is_refused_and_not_read(store: ObjectStore) -> None:
    store.put_bytes("a", b"x" * 1000)
    assert store.get_bytes("a", 1000) == b"x" * 1000
    with pytest.raises(StorageError, match="it has 1000 bytes; no more than 999 are read") as caught:
        store.get_bytes("a", 999)
    assert caught.value.kind == "too large"
    assert store.get_bytes("a", 1000) == b"x" * 1000


class WithoutLength:
    """A client of a server that does not say how long an object is."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def get_object(self, **where: Any) -> dict[str, Any]:
        return {"Body": self._client.get_object(**where)["Body"]}


def test_what_has_no_length_is_read_up_to_the_limit(endpoint: str, kind: str, bucket: str) -> None:
    connected = connect(endpoint, kind, bucket)
    connected.put_bytes("a", b"x" * 1000)
    credentials = S3Credentials(endpoint, "us-east-1", "key", "hush-secret")
    store = S3Store(bucket, credentials, client=WithoutLength(connected._client))
    assert store.get_bytes("a", 1000) == b"x" * 1000
    with pytest.raises(StorageError, match="no more than 10 are read"):
        store.get_bytes("a", 10)


def test_large_files_go_up_in_parts(endpoint: str, kind: str, bucket: str, tmp_path: Path) -> None:
    store = connect(endpoint, kind, bucket)
    with (tmp_path / "file").open("wb") as file:
        file.truncate(2 * PART_BYTES + 1)
    store.put_file("file", tmp_path / "file")
    assert [(item.key, item.size) for item in store.list("")] == [("file", 2 * PART_BYTES + 1)]


def test_a_part_that_fails_is_sent_again_and_a_hopeless_upload_is_cleaned_up(
    endpoint: str, kind: str, bucket: str
) -> None:
    store = connect(endpoint, kind, bucket, attempts=2, sleep=lambda seconds: None)
    content = bytes(range(256)) * (7 << 12)
    original, failures, parts = store._client.upload_part, [1], []

    def upload_part(**request: Any) -> Any:
        parts.append(request["PartNumber"])
        if request["PartNumber"] == 2 and failures:
            failures.pop()
            raise ConnectionResetError
        return original(**request)

    store._client.upload_part = upload_part
    store.put_file("file", lambda: io.BytesIO(content))
    assert parts == [1, 2, 2]
    assert store.open("file").read() == content
    failures.extend([1] * 9)
    with pytest.raises(StorageError) as caught:
        store.put_file("other", lambda: io.BytesIO(content))
    assert caught.value.kind == "unreachable"
    assert [item.key for item in store.list("")] == ["file"]
    assert uploads(store) == []


@pytest.mark.parametrize("kind", ["plain"])
@pytest.mark.parametrize("process", ["the same", "another"])
def test_an_upload_that_was_broken_off_goes_on_with_the_part_at_which_it_was(
    endpoint: str, kind: str, bucket: str, tmp_path: Path, process: str
) -> None:
    folder = tmp_path / "uploads" if process == "another" else None
    book = UploadBook(folder)
    store = connect(endpoint, kind, bucket, attempts=1, sleep=lambda seconds: None, uploads=book)
    content = bytearray(bytes(range(256)) * (16 << 12))  # 16 MiB: four parts
    original, away, parts = store._client.upload_part, [3], []

    def upload_part(**request: Any) -> Any:
        if request["PartNumber"] in away:
            raise ConnectionResetError
        parts.append(request["PartNumber"])
        return original(**request)

    def restart() -> None:
        nonlocal store
        if folder is not None:
            store = connect(endpoint, kind, bucket, attempts=1, uploads=UploadBook(folder))
            store._client.upload_part = upload_part

    store._client.upload_part = upload_part
    for _ in range(2):
        with pytest.raises(StorageError):
            store.put_file("file", lambda: io.BytesIO(content))
        restart()
    away.clear()
    store.put_file("file", lambda: io.BytesIO(content))
    assert parts == [1, 2, 3, 4]
    assert store.open("file").read() == content
    assert uploads(store) == []

    # What has changed meanwhile is sent anew, and what was longer is cut.
    away.append(4)
    with pytest.raises(StorageError):
        store.put_file("file", lambda: io.BytesIO(content))
    restart()
    away.clear()
    parts.clear()
    content[PART_BYTES + 1] ^= 1
    del content[3 * PART_BYTES - 1 :]
    store.put_file("file", lambda: io.BytesIO(content))
    assert parts == [2, 3]
    assert store.open("file").read() == content
    assert folder is None or list(folder.iterdir()) == []


@pytest.mark.parametrize("kind", ["plain"])
@pytest.mark.parametrize("ended", ["answer lost", "process killed", "given up"])
def test_an_upload_that_was_begun_and_not_heard_of_does_not_stay(
    endpoint: str, kind: str, bucket: str, tmp_path: Path, ended: str
) -> None:
    folder, begun = tmp_path / "uploads", list[str]()
    store = connect(endpoint, kind, bucket, attempts=2, sleep=lambda seconds: None, uploads=UploadBook(folder))
    original = store._client.create_multipart_upload
    store._client.create_multipart_upload(Bucket=bucket, Key="file-of-another")

    def create(**request: Any) -> Any:
        answer = original(**request)
        begun.append(answer["UploadId"])
        if len(begun) == 1:
            raise ConnectionResetError if ended == "answer lost" else KeyboardInterrupt
        return answer

    store._client.create_multipart_upload = create
    content = b"x" * (2 * PART_BYTES)
    if ended != "answer lost":
        with pytest.raises(KeyboardInterrupt):
            store.put_file("file", lambda: io.BytesIO(content))
        assert uploads(store) == ["file", "file-of-another"]
        store = connect(endpoint, kind, bucket, uploads=UploadBook(folder))
    if ended == "given up":
        store.uploads.abort_kept()
    else:
        store.put_file("file", lambda: io.BytesIO(content))
        assert store.open("file").read() == content
    assert uploads(store) == ["file-of-another"]
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("kind", ["plain"])
def test_of_uploads_that_nobody_goes_on_with_the_oldest_is_cleaned_up(
    endpoint: str, kind: str, bucket: str, tmp_path: Path
) -> None:
    book = UploadBook(tmp_path / "uploads")
    store = connect(endpoint, kind, bucket, attempts=1, sleep=lambda seconds: None, uploads=book)

    def upload_part(**request: Any) -> Any:
        raise ConnectionResetError

    store._client.upload_part = upload_part
    for number in range(6):
        with pytest.raises(StorageError):
            store.put_file(f"file-{number}", lambda: io.BytesIO(bytes(PART_BYTES)))
    assert uploads(store) == [f"file-{number}" for number in (2, 3, 4, 5)]
    later = connect(endpoint, kind, bucket, uploads=UploadBook(tmp_path / "uploads"))
    later.uploads.abort_kept()
    assert (uploads(store), list((tmp_path / "uploads").iterdir())) == ([], [])


def test_an_upload_that_the_server_has_forgotten_begins_anew(
    endpoint: str, kind: str, bucket: str, tmp_path: Path
) -> None:
    store = connect(endpoint, kind, bucket, attempts=1, uploads=UploadBook(tmp_path / "uploads"))
    content = bytes(range(256)) * (11 << 12)
    original, sent = store._client.upload_part, list[int]()

    def upload_part(**request: Any) -> Any:
        sent.append(request["PartNumber"])
        if sent == [1, 2]:  # as a server that was started anew does
            if kind == "plain":
                raise S3Error("NoSuchUpload", 404)
            raise ClientError({"Error": {"Code": "NoSuchUpload"}}, "UploadPart")
        return original(**request)

    store._client.upload_part = upload_part
    store.put_file("file", lambda: io.BytesIO(content))
    assert sent == [1, 2, 1, 2, 3]
    assert store.open("file").read() == content
    assert uploads(store) == []


def test_uploads_of_earlier_attempts_are_given_up(endpoint: str, kind: str, bucket: str) -> None:
    store = connect(endpoint, kind, bucket)
    for key in ("job/old/a b", "job/new/a", "other/old/a"):
        store._client.create_multipart_upload(Bucket=bucket, Key=key)
    assert store.abort_uploads("job/", lambda key: "/old/" in key) == 1
    assert uploads(store) == ["job/new/a", "other/old/a"]


def test_a_stream_that_breaks_goes_on_where_it_was(endpoint: str, kind: str, bucket: str) -> None:
    store = connect(endpoint, kind, bucket)
    content = bytes(range(256)) * 20_000
    store.put_bytes("key", content)
    offsets: list[int] = []
    original = store.read_from

    class Breaking:
        def __init__(self, body: Any) -> None:
            self.body, self.left = body, 2

        def read(self, size: int) -> bytes:
            self.left -= 1
            if self.left < 0:
                raise ConnectionResetError
            return bytes(self.body.read(size))

        def close(self) -> None:
            self.body.close()

    def read_from(key: str, offset: int) -> Any:
        offsets.append(offset)
        body = original(key, offset)
        return Breaking(body) if len(offsets) < 3 else body

    store.read_from = read_from  # type: ignore[method-assign]
    with store.open("key") as stream:
        assert stream.read() == content
    assert len(offsets) == 3
    assert offsets[0] < offsets[1] < offsets[2]


def test_a_missing_bucket_is_named(endpoint: str, kind: str) -> None:
    with pytest.raises(StorageError, match=r"bucket 'nowhere' at http://.*the bucket does not exist") as caught:
        connect(endpoint, kind, "nowhere").put_bytes("a", b"")
    assert caught.value.kind == "missing bucket"
    with pytest.raises(StorageError) as caught:
        connect(endpoint, kind, "nowhere").put_file("a", lambda: io.BytesIO(b""))
    assert caught.value.kind == "missing bucket"


def test_a_server_that_is_away_is_asked_a_few_times(kind: str) -> None:
    slept: list[float] = []
    store = connect("http://127.0.0.1:9", kind, attempts=3, sleep=slept.append)
    with pytest.raises(StorageError, match="cannot be reached") as caught:
        store.get_bytes("a")
    assert caught.value.kind == "unreachable"
    assert len(slept) == 2
    assert "hush-secret" not in str(caught.value)
    with pytest.raises(StorageError) as caught:
        store.put_file("a", lambda: io.BytesIO(b"x"))
    assert caught.value.kind == "unreachable"
