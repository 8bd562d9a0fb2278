"""Objects below an s3:// address into the content store; those that have not changed since the last time stay there."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from updraft.exceptions import DataError, LimitError, RefusedError
from updraft.manifest.sources import Source
from updraft.settings import Settings
from updraft.storage.bucket import Listed, SourceBucket, access
from updraft.storage.content import ContentStore
from updraft.storage.errors import platform_errors, source_errors
from updraft.storage.platform import platform_credentials
from updraft.storage.staged import Staged, check_limit
from updraft_learner.contract import TREE_LIMIT_BYTES
from updraft_learner.store import StorageError
from updraft_learner.trees import Tree, TreeError, TreeFile, megabytes, safe_path

THREADS = 8
PROGRESS_SECONDS = 5.0


def stage_bucket(
    source: str,
    parsed: Source,
    content: ContentStore,
    *,
    limit_bytes: int,
    limit_files: int,
    settings: Settings,
    credentials: Mapping[str, str] | None,
    secret_name: str | None,
    say: Callable[[str], None],
) -> Staged:
    """`s3://bucket/key` is that object, or else everything below `key/`. See `stage_source` for what is raised."""
    if credentials is None:
        _check_open(source, parsed, f"{content.keys.prefix}/", settings)
    allowed = access(credentials, secret_name, platform_credentials(settings))
    bucket = SourceBucket(parsed.bucket, allowed)
    with source_errors(source, secret_name):
        objects = _list(bucket, parsed.key, source, limit_bytes, limit_files)
    if not objects:
        raise DataError(
            f"{source}: bucket {parsed.bucket!r} at {bucket.endpoint} has no objects there; upload the data or correct "
            "the prefix"
        )
    if not any(item.size for item in objects.values()):
        raise DataError(f"{source}: all of its {len(objects)} objects are empty; upload the data again")
    memory = _Memory(content, source, bucket.endpoint)
    known = memory.unchanged(objects)
    fresh = {path: item for path, item in objects.items() if path not in known}
    say(
        f"{len(objects)} objects, {megabytes(sum(o.size for o in objects.values()))}; "
        f"{len(fresh)} to fetch, {len(known)} unchanged"
    )
    with source_errors(source, secret_name):
        fetched = _fetch(bucket, fresh, content, source, limit_bytes, say)
    digests = {**known, **fetched}
    tree = Tree(tuple(TreeFile(path, *digests[path]) for path in objects))
    check_limit(source, tree.size_bytes, limit_bytes)
    content.put_tree(tree)
    memory.keep(objects, digests)
    provenance = {"source": source, "endpoint": bucket.endpoint, "fetched": len(fresh), "unchanged": len(known)}
    return Staged(tree.sha256, len(tree.files), tree.size_bytes, provenance)


def _check_open(source: str, parsed: Source, own: str, settings: Settings) -> None:
    """What the platform's key reaches is not what a manifest may read by it. Raises RefusedError."""
    # Names of buckets have no upper case, but a server on a file system that ignores case takes one for the other.
    if parsed.bucket.lower() == settings.bucket.lower():
        if not parsed.key.startswith(own):
            raise RefusedError(
                f"{source}: bucket {parsed.bucket!r} is the platform's own, of which this tenant may read s3://"
                f"{parsed.bucket}/{own} only; use another bucket, or name a secret"
            )
    elif parsed.bucket not in settings.source_buckets:
        known = ", ".join(settings.source_buckets) or "no bucket"
        raise RefusedError(
            f"{source}: bucket {parsed.bucket!r} is not open to manifests; without a secret they may read {known}. "
            "Name a secret with its access_key and secret_key, or have it added to UPDRAFT_SOURCE_BUCKETS"
        )


def _list(bucket: SourceBucket, key: str, source: str, limit_bytes: int, limit_files: int) -> dict[str, Listed]:
    """Objects by the path that they get in the tree. Stops as soon as a limit is passed."""
    prefix = key if key.endswith("/") or not key else f"{key}/"
    found: dict[str, Listed] = {}
    total_bytes = 0
    for item in bucket.listing(key):
        if item.key == key:
            found = {key.rpartition("/")[2]: item}
            total_bytes = item.size
            break
        if not item.key.startswith(prefix):  # `digits-old` beside `digits`
            continue
        total_bytes += item.size
        if total_bytes > limit_bytes:
            break
        if len(found) >= limit_files:
            raise LimitError(f"{source}: has more than {limit_files} objects; pack them into fewer files")
        found[_path(source, item.key[len(prefix) :])] = item
    if total_bytes > limit_bytes:
        raise LimitError(
            f"{source}: has {megabytes(total_bytes)} or more, more than the limit of {megabytes(limit_bytes)}; "
            "use less data or ask for a higher limit"
        )
    return found


def _path(source: str, relative: str) -> str:
    try:
        return safe_path(relative)
    except TreeError as exc:
        raise DataError(f"{source}: an object cannot become a file: {exc}; rename it") from exc


def _fetch(
    bucket: SourceBucket,
    objects: Mapping[str, Listed],
    content: ContentStore,
    source: str,
    limit_bytes: int,
    say: Callable[[str], None],
) -> dict[str, tuple[str, int]]:
    """Digest and size of each object's content, which is in the content store afterwards."""
    total_bytes = sum(item.size for item in objects.values())
    done_files = done_bytes = 0
    last = time.monotonic()
    lock = threading.Lock()

    def fetch(item: Listed) -> tuple[str, int]:
        nonlocal done_files, done_bytes, last
        try:
            with bucket.open(item.key) as stream:
                stored = content.add_stream(stream, limit_bytes=limit_bytes)
        except StorageError as exc:
            if exc.kind != "missing":
                raise
            raise DataError(f"{source}: {item.key!r} was deleted while it was staged; try again") from exc
        with lock:
            done_files += 1
            done_bytes += stored[1]
            if time.monotonic() - last >= PROGRESS_SECONDS:
                last = time.monotonic()
                say(f"{done_files}/{len(objects)} objects, {megabytes(done_bytes)} of {megabytes(total_bytes)}")
        return stored

    with ThreadPoolExecutor(THREADS, thread_name_prefix="stage") as pool:
        futures = {path: pool.submit(fetch, item) for path, item in objects.items()}
        try:
            return {path: future.result() for path, future in futures.items()}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class _Memory:
    """The last listing of a source with the digests that its objects had."""

    def __init__(self, content: ContentStore, source: str, endpoint: str) -> None:
        self._content = content
        name = hashlib.sha256(json.dumps([endpoint, source]).encode()).hexdigest()
        self._key = content.keys.source(name)

    def unchanged(self, objects: Mapping[str, Listed]) -> dict[str, tuple[str, int]]:
        """Digest and size of what is as it was, and still in the content store."""
        try:
            with platform_errors():
                text = self._content.store.get_bytes(self._key, TREE_LIMIT_BYTES)
        except LimitError:
            return {}
        try:
            last: dict[str, dict[str, str | int]] = json.loads(text or b'{"objects": {}}')["objects"]
            same = {
                path: (str(entry["sha256"]), int(entry["size"]))
                for path, item in objects.items()
                if (entry := last.get(path)) is not None
                and (entry["version"], entry["size"]) == (item.version, item.size)
            }
        except (ValueError, KeyError, TypeError, AttributeError):
            return {}  # only a cache
        absent = self._content.missing_of({digest for digest, _ in same.values()})
        return {path: entry for path, entry in same.items() if entry[0] not in absent}

    def keep(self, objects: Mapping[str, Listed], digests: Mapping[str, tuple[str, int]]) -> None:
        """Objects that changed between listing and reading are left out: they are read again the next time."""
        entries = {
            path: {"version": item.version, "size": item.size, "sha256": digests[path][0]}
            for path, item in objects.items()
            if digests[path][1] == item.size
        }
        with platform_errors():
            self._content.store.put_bytes(self._key, json.dumps({"objects": entries}, sort_keys=True).encode())
