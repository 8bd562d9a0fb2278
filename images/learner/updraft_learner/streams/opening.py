"""Find the files that a job streams, from its configuration. Called when the sidecar starts."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from updraft_learner import contract
from updraft_learner.contract import DataMount, Keys, PodConfig
from updraft_learner.pod import PodCredentials, PodPaths, S3Credentials
from updraft_learner.prepare.buckets import Listed, access
from updraft_learner.prepare.errors import SourceError
from updraft_learner.store import ObjectStore, S3Store, open_store
from updraft_learner.streams.listing import ListingError, ObjectListing
from updraft_learner.streams.reader import StreamFile
from updraft_learner.streams.remote import RemoteSource
from updraft_learner.streams.room import CacheFolder
from updraft_learner.trees import Tree, TreeError

READ_SECONDS = 30.0
DISK_SHARE = 2  # a learner's own cache takes at most 1/2 of what its disk has free, a node's 1/2 of the disk


def streamed(config: PodConfig) -> tuple[DataMount, ...]:
    return tuple(mount for mount in config.data if mount.mode == "stream")


def cache_of(config: PodConfig, paths: PodPaths) -> CacheFolder:
    """Return the node's cache, or the learner's own if the node has none."""
    if paths.cache is not None:
        return CacheFolder(paths.cache, min(config.cache_bytes, shutil.disk_usage(paths.cache).total // DISK_SHARE))
    own = paths.private / "cache"
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    return CacheFolder(own, min(config.cache_bytes, shutil.disk_usage(own).free // DISK_SHARE))


def read_files(config: PodConfig, store: ObjectStore, credentials: PodCredentials) -> dict[str, StreamFile]:
    """Return the streamed files by their path below DATA_DIR.

    `store`: the platform's. Raises StorageError; SourceError for a listing or a secret that cannot be used.
    """
    files: dict[str, StreamFile] = {}
    for mount in streamed(config):
        prefix = "" if mount.mount == "." else f"{mount.mount}/"
        for path, file in _files(config, mount, store, credentials).items():
            files[prefix + path] = file
    return files


def _files(
    config: PodConfig, mount: DataMount, store: ObjectStore, credentials: PodCredentials
) -> Mapping[str, StreamFile]:
    keys = Keys(config.prefix)
    key = keys.tree(mount.tree) if mount.bucket is None else keys.listing(mount.tree)
    text = store.get_bytes(key, contract.TREE_LIMIT_BYTES)
    if text is None:
        raise SourceError("data", f"{mount.source}: its list of files is not in the store; submit the job again")
    try:
        if mount.bucket is not None:
            secret = None if mount.secret is None else credentials.sources.get(mount.secret, {})
            allowed = access(secret, mount.secret, credentials.s3)
            remote = RemoteSource(_store(mount.bucket, allowed), mount.source, secret=mount.secret)
            listing = ObjectListing.from_json(text, mount.tree)
            return {path: StreamFile(remote, item) for path, item in listing.objects.items()}
        tree = Tree.from_json(text)
        if tree.sha256 != mount.tree:
            raise ListingError("does not match its digest")
    except (ListingError, TreeError) as exc:
        raise SourceError("data", f"{mount.source}: its list of files {exc}; submit the job again") from exc
    remote = RemoteSource(_store(config.bucket, credentials.s3), mount.source, fixed=True)
    return {
        file.path: StreamFile(remote, Listed(keys.blob(file.sha256), file.size, file.sha256)) for file in tree.files
    }


def _store(bucket: str, allowed: S3Credentials) -> S3Store:
    return open_store(bucket, allowed, attempts=1, read_seconds=READ_SECONDS)
