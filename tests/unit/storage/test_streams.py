"""Streamed data, read by a program's own means through a real sidecar from a real S3 server."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import random
import subprocess
import sys
import tarfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from learner.sidecar_fakes import FakeMlflow, end_threads, make_paths
from prepare_pod import prepared

from updraft.settings import Settings
from updraft.storage.content import ContentStore
from updraft.storage.sources import look
from updraft.storage.staged import Staged
from updraft_learner import contract, data
from updraft_learner.contract import DataMount, PodConfig
from updraft_learner.pod import MlflowCredentials, PodCredentials
from updraft_learner.prepare.buckets import Listed
from updraft_learner.prepare.documents import PrepareRequest, SourceRequest
from updraft_learner.sidecar.app import Sidecar
from updraft_learner.store import StorageError
from updraft_learner.streams.blocks import BlockCache
from updraft_learner.streams.opening import cache_of, read_files
from updraft_learner.streams.reader import DataStreams, StreamFile
from updraft_learner.streams.remote import RangeReader, RemoteSource, StreamError
from updraft_learner.streams.room import CacheFolder

from .conftest import S3Server

TOKEN = "token-of-the-launch"
MIB = 1 << 20


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.fixture
def mlflow() -> Iterator[FakeMlflow]:
    server = FakeMlflow()
    yield server
    server.close()


class Learner:
    """A sidecar, and the program's environment."""

    def __init__(self, root: Path, s3: S3Server, settings: Settings, mlflow: FakeMlflow, *mounts: DataMount) -> None:
        self.paths = make_paths(root)
        self.config = PodConfig(
            job_id="job", tenant="default", role="train", attempt=1, learner=1, learners=1, bucket=settings.bucket,
            prefix="default", mlflow_run_id="run", mlflow_experiment_id="1", data=mounts, cache_bytes=64 * MIB,
            listen="127.0.0.1:0", system_metrics_seconds=0,
        )  # fmt: skip
        store = s3.store(settings.bucket)
        credentials = PodCredentials(s3.credentials, MlflowCredentials("http://127.0.0.1:1"), TOKEN)
        files = read_files(self.config, store, credentials)
        self.sidecar = Sidecar(self.config, self.paths, store, mlflow.client(), TOKEN, streamed=files)
        self.sidecar.endpoint.start()
        self.url = f"http://127.0.0.1:{self.sidecar.endpoint.port}{contract.DATA_PATH}"
        self.environment = {
            contract.DATA_URL_ENV: self.url,
            contract.ENDPOINT_TOKEN_ENV: TOKEN,
            "DATA_DIR": str(self.paths.data),
        }

    def close(self) -> None:
        end_threads(self.sidecar)
        self.sidecar.endpoint.stop()
        assert self.sidecar.streams is not None
        self.sidecar.streams.stop()


Start = Callable[..., Learner]


@pytest.fixture
def start(
    tmp_path: Path, s3: S3Server, settings: Settings, mlflow: FakeMlflow, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Start]:
    made: list[Learner] = []

    def begin(*mounts: DataMount) -> Learner:
        made.append(Learner(tmp_path / f"pod-{len(made)}", s3, settings, mlflow, *mounts))
        for name, value in made[-1].environment.items():
            monkeypatch.setenv(name, value)
        return made[-1]

    yield begin
    for learner in made:
        learner.close()


def listed(bucket: str, content: ContentStore, settings: Settings, prefix: str = "", mount: str = ".") -> DataMount:
    source = f"s3://{bucket}/{prefix}"
    found = look(source, content, name="data-0", limit_bytes=1 << 40, settings=settings, stream=True)
    assert isinstance(found, Staged)
    return DataMount(found.tree_sha256, mount, "stream", source, bucket)


def test_a_program_reads_what_is_in_the_bucket(
    start: Start, datasets: Callable[..., str], content: ContentStore, settings: Settings
) -> None:
    big = noise(9 * MIB + 17)
    bucket = datasets({"set/big.bin": big, "set/deep/small.txt": b"hello", "set/empty": b"", "other/x": b"x"})
    start(listed(bucket, content, settings, "set/", "training"))
    assert [(file.path, file.size, file.streamed) for file in data.files()] == [
        ("training/big.bin", len(big), True),
        ("training/deep/small.txt", 5, True),
        ("training/empty", 0, True),
    ]
    assert data.paths("training", "*.txt") == ["training/deep/small.txt"]
    with data.open("training/big.bin") as stream:
        assert stream.read() == big
    with data.open("training/empty") as stream:
        assert stream.read() == b""
    with data.open("training/big.bin") as stream:  # at random places, forward and back
        chooser = random.Random(1)
        for _ in range(50):
            at, size = chooser.randrange(len(big) + 10), chooser.randrange(1, 3 * MIB)
            stream.seek(at)
            assert stream.read(size) == big[at : at + size]
        stream.seek(-5, os.SEEK_END)
        assert stream.read() == big[-5:]
    assert data.files(f"{os.environ['DATA_DIR']}/training/deep") == data.files("training/deep/")
    with data.open(f"{os.environ['DATA_DIR']}/training/deep/small.txt") as stream:
        assert stream.read() == b"hello"
    with pytest.raises(FileNotFoundError, match="no streamed file of this job"):
        data.open("training/none")
    with pytest.raises(data.DataError, match="it has training"):
        data.files("evaluation")


def test_nothing_is_fetched_twice_and_the_cache_stays_below_its_limit(
    tmp_path: Path, s3: S3Server, datasets: Callable[..., str]
) -> None:
    content = noise(3 * MIB)
    bucket = datasets({"x": content})
    streams = make_streams(tmp_path / "c", s3, bucket, limit=16 * MIB, block=256 << 10)
    file = streams.find("x")
    assert file is not None
    for _ in range(3):
        assert read(streams, file) == content
    assert (streams.sent_bytes, streams.fetched_bytes) == (9 * MIB, 3 * MIB)
    # Another learner of the node has the same blocks.
    other = make_streams(tmp_path / "c", s3, bucket, limit=16 * MIB, block=256 << 10)
    assert read(other, other.find("x")) == content
    assert other.fetched_bytes == 0
    # A cache of a third of the data keeps it between passes in the same order.
    small = make_streams(tmp_path / "small", s3, bucket, limit=MIB, block=64 << 10)
    read(small, small.find("x"))
    first = small.fetched_bytes
    for _ in range(5):
        assert read(small, small.find("x")) == content
        assert used(tmp_path / "small") <= 1.5 * MIB
    hits = 1 - (small.fetched_bytes - first) / (5 * len(content))
    assert hits > 0.15


def test_damaged_and_half_written_blocks_are_fetched_again(
    tmp_path: Path, s3: S3Server, datasets: Callable[..., str]
) -> None:
    content = noise(MIB)
    bucket = datasets({"x": content})
    first = make_streams(tmp_path / "c", s3, bucket, block=256 << 10)
    assert read(first, first.find("x")) == content
    blocks = [path for path in (tmp_path / "c" / "blocks").rglob("*") if path.is_file()]
    assert len(blocks) == 4
    blocks[0].write_bytes(b"\0" * blocks[0].stat().st_size)
    with blocks[1].open("r+b") as file:
        file.truncate(100)
    again = make_streams(tmp_path / "c", s3, bucket, block=256 << 10)
    assert read(again, again.find("x")) == content
    assert again.fetched_bytes == MIB // 2


def test_a_cache_without_room_is_done_without(tmp_path: Path, s3: S3Server, datasets: Callable[..., str]) -> None:
    content = noise(MIB)
    bucket = datasets({"x": content})
    streams = make_streams(tmp_path / "c", s3, bucket, limit=1000, block=256 << 10)
    assert read(streams, streams.find("x"), 5, 700_000) == content[5:700_000]
    assert used(tmp_path / "c") == 0


@pytest.mark.parametrize("change", ["content", "longer", "shorter", "deleted"])
def test_an_object_that_changes_is_not_read(
    change: str,
    start: Start,
    s3: S3Server,
    datasets: Callable[..., str],
    content: ContentStore,
    settings: Settings,
) -> None:
    bucket = datasets({"x": noise(9 * MIB), "y": b"stays"})
    learner = start(listed(bucket, content, settings))
    with data.open("x") as stream:
        assert stream.read() == noise(9 * MIB)
    store = s3.store(bucket)
    if change == "deleted":
        store.delete("x")
    else:
        store.put_bytes("x", {"content": noise(9 * MIB, 7), "longer": noise(10 * MIB), "shorter": b"s"}[change])
    with data.open("x") as stream:  # the blocks that the node has are still those of the job's data
        assert stream.read(10) == noise(9 * MIB)[:10]
    cache_of(learner.config, learner.paths).give_up(1 << 40)
    stream = data.open("x")
    with pytest.raises(data.DataChangedError, match="after the job was staged; submit the job again"):
        stream.readlines()
    assert any("x" in text and "submit the job again" in text for text in learner.sidecar.warnings.texts())
    with data.open("y") as other:
        assert other.read() == b"stays"


def test_a_bucket_at_another_address_is_listed_by_a_pod(
    s3: S3Server, datasets: Callable[..., str], content: ContentStore, settings: Settings
) -> None:
    bucket = datasets({"set/x": b"text", "set/y.zip": b"not unpacked"})
    secret = {
        "endpoint": s3.endpoint.replace("127.0.0.1", "localhost"),
        "access_key": s3.access_key,
        "secret_key": s3.secret_key,
    }
    asked = look(
        f"s3://{bucket}/set/", content, name="data-0", limit_bytes=1 << 40, settings=settings, stream=True,
        credentials=secret, secret_name="mine",
    )  # fmt: skip
    assert isinstance(asked, SourceRequest)
    assert (asked.stream, asked.unpack) == (True, False)
    made = prepared(PrepareRequest((asked,)), content, settings, secret, "mine")
    assert made.error is None
    listing = content.get_listing(made.sources["data-0"].tree)
    assert {path: item.size for path, item in listing.objects.items()} == {"x": 4, "y.zip": 12}
    assert [item.key for item in content.store.list("default/blobs/")] == []


def test_uploaded_folders_are_streamed_from_the_content_store(
    start: Start, content: ContentStore, settings: Settings, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "a.bin").write_bytes(noise(MIB))
    found = look(str(folder), content, name="data-0", limit_bytes=1 << 40, settings=settings, stream=True)
    assert isinstance(found, Staged)
    start(DataMount(found.tree_sha256, "mine", "stream", "mine"))
    with data.open("mine/a.bin") as stream:
        assert stream.read() == noise(MIB)


def test_copied_files_are_read_in_the_same_way(start: Start, datasets, content, settings) -> None:  # type: ignore[no-untyped-def]
    bucket = datasets({"x": b"streamed"})
    learner = start(listed(bucket, content, settings, mount="far"))
    (learner.paths.data / "near").mkdir(parents=True)
    (learner.paths.data / "near" / "x").write_bytes(b"copied")
    assert [(file.path, file.streamed) for file in data.files()] == [("far/x", True), ("near/x", False)]
    for path, expected in (("near/x", b"copied"), ("far/x", b"streamed")):
        with data.open(path) as stream:
            assert stream.read() == expected


def shard(first: int) -> bytes:
    """Ten samples of WebDataset."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for number in range(first, first + 10):
            for extension, text in (("img.png", b"p%d" % number), ("cls", b"%d" % (number % 3))):
                info = tarfile.TarInfo(f"train/{number:03}.{extension}")
                info.size = len(text)
                archive.addfile(info, io.BytesIO(text))
    return out.getvalue()


def test_samples_of_archives_and_their_shares(start: Start, datasets, content, settings) -> None:  # type: ignore[no-untyped-def]
    bucket = datasets({f"s/{n:02}.tar": shard(10 * n) for n in range(7)})
    start(listed(bucket, content, settings, "s/"))
    shards = data.paths(pattern="*.tar")
    found = [sample["__key__"] for rank in range(3) for sample in data.samples(data.split(shards, rank=rank, world=3))]
    assert sorted(found) == [f"train/{number:03}" for number in range(70)]
    (first, *_) = data.samples(shards[:1])
    assert first == {"__key__": "train/000", "__path__": "00.tar", "img.png": b"p0", "cls": b"0"}
    orders = {tuple(data.split(shards, epoch=epoch)) for epoch in range(5)}
    assert len(orders) == 5
    assert data.split(shards, epoch=3, rank=0, world=1) == data.split(shards, epoch=3, rank=0, world=1)


@pytest.mark.parametrize("workers", [1, 3])
def test_processes_and_their_loaders_workers_get_each_item_once(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    items, found = list(range(50)), []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        for worker in range(workers):
            info = SimpleNamespace(id=worker, num_workers=workers)
            monkeypatch.setitem(
                sys.modules, "torch.utils.data", SimpleNamespace(get_worker_info=lambda info=info: info)
            )
            found += data.split(items, epoch=4)
    assert sorted(found) == items
    assert found != items


def test_the_library_webdataset_reads_streams_as_the_page_says(start: Start, datasets, content, settings) -> None:  # type: ignore[no-untyped-def]
    import pages

    webdataset = pytest.importorskip("webdataset")
    bucket = datasets({f"s/{n:02}.tar": shard(10 * n) for n in range(3)})
    start(listed(bucket, content, settings, "s/", "train"))
    (snippet,) = [b.text for b in pages.blocks("docs/howto/data.md") if "import webdataset" in b.text]
    names: dict[str, Any] = {}
    try:
        exec(snippet, names)
        assert sorted(sample["__key__"] for sample in names["shards"]) == [f"train/{n:03}" for n in range(30)]
    finally:
        webdataset.gopen_schemes.pop("updraft", None)


def test_other_processes_read_too(start: Start, datasets, content, settings) -> None:  # type: ignore[no-untyped-def]
    big = noise(6 * MIB)
    bucket = datasets({"x": big})
    learner = start(listed(bucket, content, settings))
    package = Path(data.__file__).parents[1]
    environment = {**learner.environment, "PYTHONPATH": str(package), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-m", "updraft_learner.data"]
    ended = subprocess.run([*command, "cat", "x", "x"], env=environment, capture_output=True, check=True, timeout=60)
    assert ended.stdout == big + big
    listing = subprocess.run([*command, "list"], env=environment, capture_output=True, check=True, timeout=60)
    assert listing.stdout.decode() == f"{len(big)} x\n"
    wrong = subprocess.run([*command, "cat", "none"], env=environment, capture_output=True, timeout=60)
    assert wrong.returncode == 1
    assert "no streamed file" in wrong.stderr.decode()
    piped = subprocess.run(
        f"{sys.executable} -m updraft_learner.data cat x | head -c 5", shell=True, env=environment,
        capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    assert (piped.stdout, piped.stderr) == (big[:5], b"")
    with data.open("x") as stream:
        stream.seek(4 * MIB)
        child = os.fork()  # as a data loader's workers do
        if child == 0:
            os._exit(0 if stream.read(100) == big[4 * MIB : 4 * MIB + 100] else 1)
        assert stream.read(100) == big[4 * MIB : 4 * MIB + 100]
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        again = pickle.loads(pickle.dumps(stream.raw))  # type: ignore[attr-defined]
        assert again.read(1) == big[again.tell() - 1 : again.tell()]


def request(url: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    sent = {"Authorization": f"Bearer {TOKEN}", **{name.replace("_", "-"): value for name, value in headers.items()}}
    asked = urllib.request.Request(url, method=method, headers=sent)
    try:
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as exc:
        return exc.code, dict(exc.headers), exc.read()


def test_the_endpoint_speaks_http(start: Start, datasets, content, settings) -> None:  # type: ignore[no-untyped-def]
    text = noise(1000)
    bucket = datasets({"a b/ü.bin": text, "empty": b""})
    learner = start(listed(bucket, content, settings))
    url = data.url("a b/ü.bin")
    status, headers, body = request(url)
    assert (status, body, headers["Accept-Ranges"], headers["Content-Length"]) == (200, text, "bytes", "1000")
    assert request(url, "HEAD")[1:] == (headers | {"Date": request(url, "HEAD")[1]["Date"]}, b"")
    for wanted, part in (("bytes=10-19", text[10:20]), ("bytes=990-", text[990:]), ("bytes=-7", text[-7:])):
        status, headers, body = request(url, Range=wanted)
        assert (status, body) == (206, part)
        assert headers["Content-Range"].endswith("/1000")
    assert request(url, Range="bytes=10-2000")[2] == text[10:]
    assert request(url, Range="bytes=1-2,5-6")[0] == 200
    assert request(url, Range="bytes=1000-")[0] == 416
    assert request(url, Range="bytes=9-5")[0] == 416
    assert request(data.url("empty"))[::2] == (200, b"")
    assert request(url, "PUT")[0] == 403
    assert request(url, "DELETE")[0] == 403
    assert request(f"{learner.url}/../../etc/passwd")[0] in (400, 404)
    assert request(url, Authorization="Bearer other")[0] == 401
    assert json.loads(request(f"{learner.url}?limit=1")[2]) == {
        "files": [{"path": "a b/ü.bin", "size": 1000}],
        "next": "a b/ü.bin",
    }
    assert json.loads(request(f"{learner.url}?limit=1&after=zzz")[2]) == {"files": [], "next": None}
    assert request(f"{learner.url}?limit=many")[0] == 400


class Away:
    """A store that does not answer for some time, and whose connections break."""

    endpoint, bucket = "http://away", "b"

    def __init__(self, content: bytes, failures: int, breaks_after: int) -> None:
        self.content, self.failures, self.breaks_after, self.asked = content, failures, breaks_after, 0

    def open_range(self, key: str, offset: int, size: int):  # type: ignore[no-untyped-def]
        from updraft_learner.store import OpenedRange

        self.asked += 1
        if self.failures:
            self.failures -= 1
            raise StorageError("unreachable", "the object store cannot be reached")
        body = io.BytesIO(self.content[offset : offset + min(size, self.breaks_after)])
        return OpenedRange(Breaking(body), '"v"', None, len(self.content))


class Breaking:
    def __init__(self, body: io.BytesIO) -> None:
        self._body = body

    def read(self, size: int) -> bytes:
        part = self._body.read(size)
        if not part:
            raise ConnectionResetError
        return part

    def close(self) -> None: ...


def test_an_outage_is_waited_for_and_a_broken_connection_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("updraft_learner.streams.remote.BACKOFF.__class__.jittered_seconds", lambda *_: 0.001)
    content = noise(10_000)
    store, got, warned = Away(content, failures=3, breaks_after=1_000), io.BytesIO(), []
    reader = RangeReader(lambda topic, text: warned.append(text), threading.Event())
    reader.copy(RemoteSource(store, "s3://b/x"), Listed("x", 10_000, "v"), 0, 10_000, got.write)  # type: ignore[arg-type]
    assert got.getvalue() == content
    assert store.asked >= 13


def test_an_outage_that_does_not_end_is_an_error_with_a_reason() -> None:
    clock = iter(range(0, 100_000, 100))
    reader = RangeReader(lambda *_: None, threading.Event(), clock=lambda: next(clock))
    store = Away(b"x", failures=10**9, breaks_after=1)
    with pytest.raises(StreamError, match="cannot be reached; waited for 600 s") as caught:
        reader.copy(RemoteSource(store, "s3://b/x"), Listed("x", 1, "v"), 0, 1, print)  # type: ignore[arg-type]
    assert caught.value.kind == "unavailable"


def test_the_end_of_the_learner_ends_all_waiting() -> None:
    stop = threading.Event()
    reader = RangeReader(lambda *_: None, stop)
    store = Away(b"x", failures=10**9, breaks_after=1)
    threading.Timer(0.2, stop.set).start()
    began = time.monotonic()
    with pytest.raises(StreamError, match="the learner ends"):
        reader.copy(RemoteSource(store, "s3://b/x"), Listed("x", 1, "v"), 0, 1, print)  # type: ignore[arg-type]
    assert time.monotonic() - began < 20


def test_many_readers_at_once_fetch_each_block_once(tmp_path: Path, s3: S3Server, datasets: Callable[..., str]) -> None:
    content = noise(4 * MIB)
    bucket = datasets({"x": content})
    streams = make_streams(tmp_path / "c", s3, bucket, block=128 << 10)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: hashlib.sha256(read(streams, streams.find("x"))).hexdigest(), range(16)))
    assert set(found) == {hashlib.sha256(content).hexdigest()}
    assert streams.fetched_bytes == len(content)


def test_a_refused_secret_is_named(tmp_path: Path, s3: S3Server, datasets: Callable[..., str]) -> None:
    bucket = datasets({"x": b"text"})
    from updraft_learner.store import open_store

    wrong = open_store(bucket, replace(s3.credentials, secret_key="wrong"), attempts=1)
    reader = RangeReader(lambda *_: None, threading.Event())
    with pytest.raises(StreamError, match="secret 'mine' was used") as caught:
        reader.copy(RemoteSource(wrong, "s3://b", secret="mine"), Listed("x", 4, "v"), 0, 4, print)
    assert caught.value.kind == "denied"
    assert "wrong" not in str(caught.value)


def make_streams(folder: Path, s3: S3Server, bucket: str, *, limit: int = 64 * MIB, block: int) -> DataStreams:
    from updraft_learner.prepare.buckets import SourceBucket, list_source
    from updraft_learner.store import open_store

    objects = list_source(SourceBucket(bucket, s3.credentials), "", f"s3://{bucket}", 1 << 40, 100)
    remote = RemoteSource(open_store(bucket, s3.credentials, attempts=1), f"s3://{bucket}")
    files = {path: StreamFile(remote, item) for path, item in objects.items()}
    reader = RangeReader(lambda *_: None, threading.Event())
    return DataStreams(files, BlockCache(CacheFolder(folder, limit)), reader, block_bytes=block)


class Collected:
    def __init__(self) -> None:
        self.content = io.BytesIO()

    def send(self, part: bytes) -> None:
        self.content.write(part)

    def send_file(self, file, offset: int, size: int) -> None:  # type: ignore[no-untyped-def]
        file.seek(offset)
        part = file.read(size)
        assert len(part) == size
        self.content.write(part)


def read(streams: DataStreams, file: StreamFile | None, start: int = 0, stop: int | None = None) -> bytes:
    assert file is not None
    out = Collected()
    streams.send(file, start, file.size if stop is None else stop, out)
    return out.content.getvalue()


def used(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "blocks").rglob("*") if path.is_file())
