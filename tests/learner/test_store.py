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
from updraft_learner.store import ObjectStore, StorageError, Store


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def connect(endpoint: str, bucket: str = "updraft", **options: Any) -> Store:
    return Store(bucket, S3Credentials(endpoint, "us-east-1", "key", "hush-secret"), **options)


@pytest.fixture(params=["s3", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return FolderStore(tmp_path / "store")
    s3 = connect(request.getfixturevalue("endpoint"))
    s3._client.create_bucket(Bucket="updraft")
    for item in s3.list(""):
        s3.delete(item.key)
    return s3


def test_objects_come_back_as_they_were(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    store.put_bytes("a/one", b"1")
    store.put_file("a/two", tmp_path / "file")
    store.put_file("b/three", lambda: io.BytesIO(b"333"))
    assert [(item.key, item.size) for item in store.list("a/")] == [("a/one", 1), ("a/two", 100_000)]
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


def test_large_files_go_up_in_parts(endpoint: str, tmp_path: Path) -> None:
    store = connect(endpoint, "large")
    store._client.create_bucket(Bucket="large")
    with (tmp_path / "file").open("wb") as file:
        file.truncate(40 << 20)
    store.put_file("file", tmp_path / "file")
    assert [(item.key, item.size) for item in store.list("")] == [("file", 40 << 20)]


def test_a_part_that_fails_is_sent_again_and_a_hopeless_upload_is_cleaned_up(endpoint: str) -> None:
    store = connect(endpoint, "parts", attempts=2, sleep=lambda seconds: None)
    store._client.create_bucket(Bucket="parts")
    content = bytes(range(256)) * (20 << 12)
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
    assert store._client.list_multipart_uploads(Bucket="parts").get("Uploads", []) == []


def test_an_upload_that_was_broken_off_goes_on_with_the_part_at_which_it_was(endpoint: str) -> None:
    store = connect(endpoint, "resumed", attempts=1, sleep=lambda seconds: None, resume_uploads=True)
    store._client.create_bucket(Bucket="resumed")
    content = bytearray(bytes(range(256)) * (50 << 12))  # 50 MiB: four parts
    original, away, parts = store._client.upload_part, [3], []

    def upload_part(**request: Any) -> Any:
        if request["PartNumber"] in away:
            raise ConnectionResetError
        parts.append(request["PartNumber"])
        return original(**request)

    store._client.upload_part = upload_part
    for _ in range(2):
        with pytest.raises(StorageError):
            store.put_file("file", lambda: io.BytesIO(content))
    away.clear()
    store.put_file("file", lambda: io.BytesIO(content))
    assert parts == [1, 2, 3, 4]
    assert store.open("file").read() == content
    assert store._client.list_multipart_uploads(Bucket="resumed").get("Uploads", []) == []

    # What has changed meanwhile is sent anew, and what was longer is cut.
    away.append(4)
    with pytest.raises(StorageError):
        store.put_file("file", lambda: io.BytesIO(content))
    away.clear()
    parts.clear()
    content[20 << 20] ^= 1
    del content[40 << 20 :]
    store.put_file("file", lambda: io.BytesIO(content))
    assert parts == [2, 3]
    assert store.open("file").read() == content


def test_of_uploads_that_nobody_goes_on_with_the_oldest_is_cleaned_up(endpoint: str) -> None:
    store = connect(endpoint, "forgotten", attempts=1, sleep=lambda seconds: None, resume_uploads=True)
    store._client.create_bucket(Bucket="forgotten")

    def upload_part(**request: Any) -> Any:
        raise ConnectionResetError

    store._client.upload_part = upload_part
    for number in range(6):
        with pytest.raises(StorageError):
            store.put_file(f"file-{number}", lambda: io.BytesIO(bytes(17 << 20)))
    left = store._client.list_multipart_uploads(Bucket="forgotten")["Uploads"]
    assert sorted(upload["Key"] for upload in left) == [f"file-{number}" for number in (2, 3, 4, 5)]


def test_a_stream_that_breaks_goes_on_where_it_was(endpoint: str) -> None:
    store = connect(endpoint, "stream")
    store._client.create_bucket(Bucket="stream")
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


def test_a_missing_bucket_is_named(endpoint: str) -> None:
    with pytest.raises(StorageError, match=r"bucket 'nowhere' at http://.*the bucket does not exist") as caught:
        connect(endpoint, "nowhere").put_bytes("a", b"")
    assert caught.value.kind == "missing bucket"
    with pytest.raises(StorageError) as caught:
        connect(endpoint, "nowhere").put_file("a", lambda: io.BytesIO(b""))
    assert caught.value.kind == "missing bucket"


def test_a_server_that_is_away_is_asked_a_few_times(tmp_path: Path) -> None:
    slept: list[float] = []
    store = connect("http://127.0.0.1:9", attempts=3, sleep=slept.append)
    with pytest.raises(StorageError, match="cannot be reached") as caught:
        store.get_bytes("a")
    assert caught.value.kind == "unreachable"
    assert len(slept) == 2
    assert "hush-secret" not in str(caught.value)
    with pytest.raises(StorageError) as caught:
        store.put_file("a", lambda: io.BytesIO(b"x"))
    assert caught.value.kind == "unreachable"
