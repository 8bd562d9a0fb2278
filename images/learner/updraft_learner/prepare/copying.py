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
from updraft_learner.streams.listing import ObjectListing, digest_of
from updraft_learner.trees import Tree, TreeFile, materialise, megabytes

PROGRESS_SECONDS = 5.0
KEEP_SECONDS = 15.0


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
        if source.stream:
            return self._listing()
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

    def _list(self) -> tuple[SourceBucket, dict[str, Listed]]:
        source = self._source
        credentials = read_credentials()
        secret = None if source.secret is None else credentials.sources.get(source.secret, {})
        bucket = SourceBucket(source.bucket, access(secret, source.secret, credentials.s3))
        with bucket_errors(source.source, source.secret):
            return bucket, list_source(bucket, source.key, source.source, source.limit_bytes, self._request.limit_files)

    def _listing(self) -> Copied:
        """Store the list of the objects, which learners read by themselves."""
        bucket, objects = self._list()
        listing = ObjectListing(objects)
        document = listing.to_json()
        digest = digest_of(document)
        self._store.put_bytes(self._keys.listing(digest), document)
        self._say(f"{self._source.source}: {len(objects)} objects, {megabytes(listing.size_bytes)}; to be streamed")
        return Copied(digest, None, {"endpoint": bucket.endpoint})

    def _bucket(self) -> tuple[Tree, dict[str, object]]:
        source = self._source
        bucket, objects = self._list()
        listing = memory.Listing(self._store, self._keys, source.source, bucket.endpoint)
        known = listing.unchanged(objects)
        fresh = {path: item for path, item in objects.items() if path not in known}
        self._say(
            f"{source.source}: {len(objects)} objects, {megabytes(sum(o.size for o in objects.values()))}; "
            f"{len(fresh)} to fetch, {len(known)} unchanged"
        )
        digests = self._fetch(bucket, objects, known, listing)
        tree = Tree(tuple(TreeFile(path, *digests[path]) for path in objects))
        check_limit(source.source, tree.size_bytes, source.limit_bytes)
        blobs.put_tree(self._store, self._keys, tree)
        listing.keep(objects, digests)
        return tree, {"endpoint": bucket.endpoint, "fetched": len(fresh), "unchanged": len(known)}

    def _fetch(
        self,
        bucket: SourceBucket,
        objects: Mapping[str, Listed],
        known: Mapping[str, tuple[str, int]],
        listing: memory.Listing,
    ) -> dict[str, tuple[str, int]]:
        """Copy the content of each object that is not known into the content store; return all digests and sizes.

        What is copied is remembered while the copy goes on, so that the next pod continues after a pod that was lost.
        """
        source, lock = self._source, threading.Lock()
        digests = dict(known)
        fresh = {path: item for path, item in objects.items() if path not in known}
        total_bytes = sum(item.size for item in fresh.values())
        read_bytes = 0
        said = kept = time.monotonic()

        def count(size: int) -> None:  # objects may be larger than listed
            nonlocal read_bytes, said
            with lock:
                read_bytes += size
                check_limit(source.source, read_bytes, source.limit_bytes)
                if time.monotonic() - said >= PROGRESS_SECONDS:
                    said = time.monotonic()
                    files = f"{len(digests) - len(known)}/{len(fresh)} objects"
                    self._say(f"{source.source}: {files}, {megabytes(read_bytes)} of {megabytes(total_bytes)}")

        def fetch(path: str, item: Listed) -> None:
            nonlocal kept
            with bucket_errors(source.source, source.secret):
                stream = self._open(bucket, item.key)
            with stream:
                named = _SourceStream(stream, source.source, source.secret, count)
                stored = blobs.add_stream(self._store, self._keys, named, source.limit_bytes)
            with lock:
                digests[path] = stored
                due = time.monotonic() - kept >= KEEP_SECONDS
                if due:
                    kept = time.monotonic()
                    so_far = dict(digests)
            if due:
                listing.keep(objects, so_far)

        with ThreadPoolExecutor(blobs.THREADS, thread_name_prefix="copy") as pool:
            futures = [pool.submit(fetch, path, item) for path, item in fresh.items()]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return digests

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
