"""Read the job's data in the same way, whether it was copied, lies on the node, or is streamed (`data.mode`).

    from updraft_learner import data

    for file in data.files("training"):
        with data.open(file.path) as stream:
            ...

    for sample in data.samples(data.split(data.paths("training", "*.tar"), epoch=epoch)):
        image, label = sample["png"], sample["cls"]

`python -m updraft_learner.data cat PATH` writes a file to the standard output, for programs that read from a pipe.
Standard library only.
"""

from __future__ import annotations

import builtins
import fnmatch
import http.client
import io
import json
import os
import random
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from updraft_learner import contract, runtime

__all__ = ["DataChangedError", "DataError", "DataFile", "files", "headers", "open", "paths", "samples", "split", "url"]

T = TypeVar("T")
BUFFER_BYTES = 1 << 20
SKIP_BYTES = 1 << 20  # a seek forward by this much reads on, which is faster than another request
READ_SECONDS = 900.0  # the sidecar itself waits up to ten minutes for the object store
TRIES = 5


class DataError(OSError):
    """The job's data cannot be read; the message says why, and what to do."""


class DataChangedError(DataError):
    """An object was changed or deleted after the job was staged. Trying again does not help."""


@dataclass(frozen=True)
class DataFile:
    """A file of the job's data.

    Args:
        path: Below DATA_DIR, with forward slashes.
        size: In bytes.
        streamed: Whether it is read over the endpoint; otherwise it is a file below DATA_DIR.
    """

    path: str
    size: int
    streamed: bool


def files(folder: str = "") -> list[DataFile]:
    """Return the files below a folder of DATA_DIR, in order of their paths; all files by default.

    Raises DataError if the folder is not there.
    """
    top = _below_data_dir(folder)
    found = {file.path: file for file in (*_local(top), *_streamed(top))}
    if not found and top:
        raise DataError(f"{folder!r}: the job has no data there; it has {_folders()}")
    return [found[path] for path in sorted(found)]


def paths(folder: str = "", pattern: str = "*") -> list[str]:
    """Return the paths below a folder whose last part matches a pattern of the shell, such as `*.tar`."""
    return [file.path for file in files(folder) if fnmatch.fnmatchcase(file.path.rpartition("/")[2], pattern)]


def open(path: str) -> BinaryIO:
    """Open a file for reading. The stream can seek, and is for one thread.

    Raises FileNotFoundError; DataChangedError and DataError, also while the stream is read.
    """
    path = _below_data_dir(path)
    local = _data_dir() / path
    if local.is_file():
        return builtins.open(local, "rb")
    return io.BufferedReader(_Stream(path), BUFFER_BYTES)


def url(path: str) -> str:
    """Return the address of a streamed file, for a library that reads over HTTP; it has to send `headers()`."""
    return f"{_base()}/{quote(_below_data_dir(path))}"


def headers() -> dict[str, str]:
    """Return the headers that requests for `url` need. They hold a secret of the job: write them nowhere."""
    token = os.environ.get(contract.ENDPOINT_TOKEN_ENV, "")
    return {"Authorization": f"Bearer {token}"} if token else {}


def split(
    items: Sequence[T],
    *,
    epoch: int = 0,
    seed: int = 0,
    shuffle: bool = True,
    rank: int | None = None,
    world: int | None = None,
) -> list[T]:
    """Return this process's share of the items, such as shards, in an order that differs from epoch to epoch.

    All processes together get each item exactly once. Within a worker of torch's DataLoader, the worker's part of the
    share.

    Args:
        epoch: Number of the pass over the data.
        seed: The same in all processes.
        rank, world: This process and how many there are; without them, RANK and WORLD_SIZE.
    """
    ordered = list(items)
    if shuffle:
        random.Random(f"{seed} {epoch}").shuffle(ordered)
    first = runtime.rank() if rank is None else rank
    step = runtime.world_size() if world is None else world
    worker, workers = _loader_worker()
    return ordered[first::step][worker::workers]


def samples(paths: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the samples of WebDataset archives: files of a tar that follow each other and have the same name up to the
    first dot (https://github.com/webdataset/webdataset#the-webdataset-format).

    A sample maps extensions to bytes, and has its name in `__key__` and its archive in `__path__`.
    """
    for path in paths:
        with open(path) as stream, tarfile.open(fileobj=stream, mode="r|*") as archive:
            yield from _grouped(path, archive)


def _grouped(path: str, archive: tarfile.TarFile) -> Iterator[dict[str, Any]]:
    sample: dict[str, Any] = {}
    for member in archive:
        content = archive.extractfile(member) if member.isfile() else None
        if content is None:
            continue
        folder, slash, name = member.name.rpartition("/")
        base, _, extension = name.partition(".")
        key = f"{folder}{slash}{base}"
        if sample and sample["__key__"] != key:
            yield sample
            sample = {}
        sample |= {"__key__": key, "__path__": path, extension: content.read()}
    if sample:
        yield sample


def _loader_worker() -> tuple[int, int]:
    loader = sys.modules.get("torch.utils.data")
    found = loader.get_worker_info() if loader is not None else None
    return (0, 1) if found is None else (found.id, found.num_workers)


# --- files below DATA_DIR ------------------------------------------------------------------------------


def _data_dir() -> Path:
    return Path(os.environ.get("DATA_DIR", contract.DATA_DIR))


def _below_data_dir(path: str) -> str:
    """Return a path below DATA_DIR, which may be written with it: `train/0.tar`, or `/updraft/data/train/0.tar`."""
    if path.startswith("/"):
        path = os.path.relpath(path, _data_dir())
    return "" if path == "." else path.rstrip("/")


def _local(top: str) -> Iterator[DataFile]:
    base = _data_dir()
    start = base / top
    if start.is_file():
        yield DataFile(top, start.stat().st_size, streamed=False)
        return
    for folder, _, names in os.walk(start, followlinks=True):  # data on the node is a link
        for name in names:
            file = Path(folder, name)
            with suppress(OSError):
                yield DataFile(file.relative_to(base).as_posix(), file.stat().st_size, streamed=False)


def _folders() -> str:
    names = sorted({file.path.partition("/")[0] for file in files()})
    return ", ".join(names[:20]) or "no data"


# --- streamed files ------------------------------------------------------------------------------------


def _base() -> str:
    found = os.environ.get(contract.DATA_URL_ENV)
    if not found:
        raise DataError(f"{contract.DATA_URL_ENV} is not set: this program was not started by Updraft")
    return found


def _streamed(top: str) -> Iterator[DataFile]:
    if not os.environ.get(contract.DATA_URL_ENV):
        return
    after: str | None = ""
    while after is not None:
        page = json.loads(_text("?" + urlencode({"after": after})))
        for item in page["files"]:
            path = str(item["path"])
            if not top or path == top or path.startswith(f"{top}/"):
                yield DataFile(path, int(item["size"]), streamed=True)
        after = page["next"]


def _text(query: str) -> bytes:
    connection, response = _request("GET", query, {})
    with closing(connection):
        return response.read()


def _request(
    method: str, target: str, extra: Mapping[str, str]
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """Make a request for what follows the address of the data. Raises DataError and its like."""
    parts = urlsplit(_base())
    for left in reversed(range(TRIES)):
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=READ_SECONDS)
        try:
            connection.request(method, f"{parts.path}{target}", headers={**headers(), **extra})
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as exc:
            connection.close()
            if not left:
                raise DataError(f"the sidecar's endpoint does not answer ({type(exc).__name__})") from exc
        else:
            if response.status < 300:
                return connection, response
            body = response.read()
            connection.close()
            if method == "HEAD" and response.status < 500:  # the reason is in the answer to a GET
                return _request("GET", target, extra)
            if response.status < 500 or not left:
                raise _refusal(response.status, body)
        time.sleep(0.2 * 2 ** (TRIES - left))
    raise AssertionError("at least one try is made")


def _refusal(status: int, body: bytes) -> OSError:
    try:
        text = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        text = f"the sidecar's endpoint answered with status {status}"
    if status == 404:
        return FileNotFoundError(text)
    return DataChangedError(text) if status == 409 else DataError(text)


class _Stream(io.RawIOBase):
    """A streamed file. It keeps one response open and reads on from it; a seek elsewhere makes a new request."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._target = f"/{quote(path)}"
        connection, response = _request("HEAD", self._target, {})
        with closing(connection):
            self._size = int(response.headers["Content-Length"])
        self._at = 0  # where the next read begins
        self._connection: http.client.HTTPConnection | None = None
        self._response: http.client.HTTPResponse | None = None
        self._response_at = 0
        self._owner = os.getpid()

    @property
    def name(self) -> str:
        return self._path

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"{self._path}: cannot seek to {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        wanted = min(len(view), self._size - self._at)
        if wanted <= 0:
            return 0
        for left in reversed(range(TRIES)):
            response = self._reach()
            try:
                count = response.readinto(view[:wanted])
            except (OSError, http.client.HTTPException):
                count = 0
            if count:
                self._at += count
                self._response_at += count
                return count
            self._drop()  # it ended early: the next request says why
            if not left:
                break
        raise DataError(f"{self._path}: reading broke off at byte {self._at} of {self._size}, {TRIES} times")

    def close(self) -> None:
        self._drop()
        super().close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self._path, self._at)

    def _reach(self) -> http.client.HTTPResponse:
        """Return a response whose next byte is the one at `_at`."""
        if self._owner != os.getpid():  # a fork: the connection belongs to the parent
            self._connection = self._response = None
            self._owner = os.getpid()
        ahead = self._at - self._response_at
        if self._response is not None and 0 <= ahead <= SKIP_BYTES:
            with suppress(OSError, http.client.HTTPException):
                if len(self._response.read(ahead) if ahead else b"") == ahead:
                    self._response_at = self._at
                    return self._response
        self._drop()
        self._connection, self._response = _request("GET", self._target, {"Range": f"bytes={self._at}-"})
        self._response_at = self._at
        return self._response

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._response = None


def _reopened(path: str, at: int) -> _Stream:
    stream = _Stream(path)
    stream.seek(at)
    return stream


def _main(words: Sequence[str]) -> int:
    """Write files to the standard output, or list them."""
    try:
        if len(words) >= 2 and words[0] == "cat":
            for path in words[1:]:
                with open(path) as stream:
                    while chunk := stream.read(BUFFER_BYTES):
                        sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
            return 0
        if words and words[0] == "list" and len(words) <= 2:
            for file in files(words[1] if len(words) == 2 else ""):
                print(file.size, file.path)
            return 0
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as exc:
        print(f"updraft_learner.data: {exc}", file=sys.stderr)
        return 1
    print("usage: python -m updraft_learner.data cat PATH... | list [FOLDER]", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
