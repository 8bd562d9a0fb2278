"""Copy buckets into the content store, and lay out the input of the pod's program, before that program runs.

Bytes are copied and hashed; nothing is unpacked and no table is read. Called by `updraft_learner.stage`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO, TextIO

from updraft_learner.below import make_folder, write_text_below
from updraft_learner.contract import Keys, PodConfig
from updraft_learner.pod import PodPaths, read_credentials
from updraft_learner.prepare import blobs, memory
from updraft_learner.prepare.buckets import Listed, SourceBucket, access, list_source
from updraft_learner.prepare.documents import (
    REQUEST_LIMIT_BYTES,
    Copied,
    PrepareRequest,
    PrepareWork,
    SourceRequest,
    outcome,
)
from updraft_learner.prepare.errors import SourceError, bucket_errors, check_limit
from updraft_learner.prepare.select import needed_paths
from updraft_learner.store import ObjectStore, StorageError
from updraft_learner.trees import Tree, TreeFile, materialise, megabytes

PROGRESS_SECONDS = 5.0


def copy_sources(config: PodConfig, paths: PodPaths, store: ObjectStore, out: TextIO) -> None:
    """Copy what the request names into the content store, lay out archives and tables, and write down what was done.

    Raises SourceError after it has reported the same to the platform; StorageError.
    """
    keys = Keys(config.prefix)
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        print(f"stage: {line}", file=out, flush=True)

    try:
        text = store.get_bytes(keys.prepare_request(config.job_id, config.attempt), REQUEST_LIMIT_BYTES)
        if text is None:
            raise SourceError("refused", "what is to be prepared is not in the object store; submit the job again")
        request = PrepareRequest.from_json(text)
        make_folder(paths.root, paths.below(paths.trees))
        copied = {s.name: _Copy(request, s, keys, paths, store, say).run() for s in request.sources}
    except SourceError as exc:
        store.put_bytes(keys.prepared(config.job_id, config.attempt), outcome(error=exc.to_json()))
        raise
    work = PrepareWork(request, copied, tuple(said)).to_json()
    write_text_below(paths.root, paths.below(paths.work_file), work)
    paths.kept_work_file.write_text(work, encoding="utf-8")


class _Copy:
    """The copy of one source."""

    def __init__(
        self,
        request: PrepareRequest,
        source: SourceRequest,
        keys: Keys,
        paths: PodPaths,
        store: ObjectStore,
        say: Callable[[str], None],
    ) -> None:
        self._request, self._source = request, source
        self._keys, self._paths, self._store, self._say = keys, paths, store, say

    def run(self) -> Copied:
        source = self._source
        if source.kind == "git":
            return Copied()
        if source.kind == "s3":
            tree, provenance = self._bucket()
        else:
            tree, provenance = blobs.read_tree(self._store, self._keys, source.source, source.tree), {}
        if source.unpack and len(tree.files) == 1:  # not a prefix that happens to end in .zip
            self._lay(tree, f"{source.name}.archive", [tree.files[0].path])
            archive = {**provenance, "archive_sha256": tree.files[0].sha256}
            return Copied(tree.sha256, tree.files[0].path, archive)
        if source.suite is not None and tree.sha256 not in source.judged:
            try:
                wanted = needed_paths(tree, source.format)
            except SourceError:  # the program will report it as the result for this data
                wanted = []
            self._lay(tree, source.name, wanted)
            document = self._paths.below(self._paths.data / f"{source.name}.json")
            write_text_below(self._paths.root, document, tree.to_json().decode())
        return Copied(tree.sha256, None, provenance)

    def _bucket(self) -> tuple[Tree, dict[str, object]]:
        source = self._source
        credentials = read_credentials()
        secret = None if source.secret is None else credentials.sources.get(source.secret, {})
        bucket = SourceBucket(source.bucket, access(secret, source.secret, credentials.s3))
        with bucket_errors(source.source, source.secret):
            objects = list_source(bucket, source.key, source.source, source.limit_bytes, self._request.limit_files)
        listing = memory.Listing(self._store, self._keys, source.source, bucket.endpoint)
        known = listing.unchanged(objects)
        fresh = {path: item for path, item in objects.items() if path not in known}
        self._say(
            f"{source.source}: {len(objects)} objects, {megabytes(sum(o.size for o in objects.values()))}; "
            f"{len(fresh)} to fetch, {len(known)} unchanged"
        )
        digests = {**known, **self._fetch(bucket, fresh)}
        tree = Tree(tuple(TreeFile(path, *digests[path]) for path in objects))
        check_limit(source.source, tree.size_bytes, source.limit_bytes)
        blobs.put_tree(self._store, self._keys, tree)
        listing.keep(objects, digests)
        return tree, {"endpoint": bucket.endpoint, "fetched": len(fresh), "unchanged": len(known)}

    def _fetch(self, bucket: SourceBucket, objects: Mapping[str, Listed]) -> dict[str, tuple[str, int]]:
        """Copy each object's content into the content store; return its digest and size."""
        source, lock = self._source, threading.Lock()
        total_bytes = sum(item.size for item in objects.values())
        done_files = done_bytes = read_bytes = 0
        last = time.monotonic()

        def count(size: int) -> None:  # objects may be larger than listed
            nonlocal read_bytes
            with lock:
                read_bytes += size
                check_limit(source.source, read_bytes, source.limit_bytes)

        def fetch(item: Listed) -> tuple[str, int]:
            nonlocal done_files, done_bytes, last
            with bucket_errors(source.source, source.secret):
                stream = self._open(bucket, item.key)
            with stream:
                named = _SourceStream(stream, source.source, source.secret, count)
                stored = blobs.add_stream(self._store, self._keys, named, source.limit_bytes)
            with lock:
                done_files += 1
                done_bytes += stored[1]
                if time.monotonic() - last >= PROGRESS_SECONDS:
                    last = time.monotonic()
                    done = f"{done_files}/{len(objects)} objects, {megabytes(done_bytes)} of {megabytes(total_bytes)}"
                    self._say(f"{source.source}: {done}")
            return stored

        with ThreadPoolExecutor(blobs.THREADS, thread_name_prefix="copy") as pool:
            futures = {path: pool.submit(fetch, item) for path, item in objects.items()}
            try:
                return {path: future.result() for path, future in futures.items()}
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _open(self, bucket: SourceBucket, key: str) -> BinaryIO:
        try:
            return bucket.open(key)
        except StorageError as exc:
            if exc.kind != "missing":
                raise
            gone = f"{self._source.source}: {key!r} was deleted while it was staged; try again"
            raise SourceError("data", gone) from exc

    def _lay(self, tree: Tree, folder: str, wanted: Iterable[str]) -> None:
        named = set(wanted)
        part = Tree(tuple(file for file in tree.files if file.path in named))
        target: Path = self._paths.data / folder
        materialise(part, target, lambda file: self._store.open(self._keys.blob(file.sha256)), anchor=self._paths.root)


class _SourceStream:
    """A stream from the user's bucket. Its errors are reported as the bucket's, not as the platform's store's. `count`
    gets the number of bytes read."""

    def __init__(self, stream: BinaryIO, source: str, secret: str | None, count: Callable[[int], None]) -> None:
        self._stream, self._source, self._secret, self._count = stream, source, secret, count

    def read(self, size: int = -1) -> bytes:
        with bucket_errors(self._source, self._secret):
            part = self._stream.read(size)
        self._count(len(part))
        return part
