"""Read buckets that manifests name: check whether manifests may use them, and whether the store has their content."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from updraft.exceptions import DataError, RefusedError
from updraft.manifest.sources import Source, parse_source
from updraft.settings import Settings
from updraft.storage.content import ContentStore
from updraft.storage.errors import platform_errors, source_errors
from updraft.storage.platform import platform_credentials
from updraft.storage.staged import Staged
from updraft_learner.contract import Keys
from updraft_learner.prepare import memory
from updraft_learner.prepare.buckets import Listed, SourceBucket, access, list_source
from updraft_learner.prepare.documents import LIMIT_FILES, SourceRequest
from updraft_learner.prepare.errors import bucket_errors
from updraft_learner.streams.listing import ObjectListing
from updraft_learner.trees import Tree, TreeFile, megabytes


def look_at_bucket(
    parsed: Source,
    wanted: SourceRequest,
    content: ContentStore,
    *,
    settings: Settings,
    credentials: Mapping[str, str] | None,
    say: Callable[[str], None],
) -> Staged | None:
    """Return the tree of `s3://bucket/key`, if it is listed as it was when it was copied; None if a pod has to look.

    For a source that is streamed, return its list of objects.

    Only the platform's own object store is asked: another address, which a secret may name, is for the pod. Raises
    SourceError, and what `look` raises.
    """
    source = wanted.source
    if credentials is None:
        _check_open(source, parsed, f"{content.keys.prefix}/", settings)
    allowed = access(credentials, wanted.secret, platform_credentials(settings))
    if allowed.endpoint != settings.s3_endpoint:
        say(f"{source}: at {allowed.endpoint}, which a pod of the job looks at")
        return None
    bucket = SourceBucket(parsed.bucket, allowed)
    with bucket_errors(source, wanted.secret):
        objects = list_source(bucket, parsed.key, source, wanted.limit_bytes, LIMIT_FILES)
    if wanted.stream:
        listing = ObjectListing(objects)
        say(f"{len(objects)} objects, {megabytes(listing.size_bytes)}; to be streamed")
        digest = content.put_listing(listing)
        return Staged(digest, len(objects), listing.size_bytes, {"source": source, "endpoint": bucket.endpoint})
    with platform_errors():
        known = memory.Listing(content.store, content.keys, source, bucket.endpoint).unchanged(objects)
    say(
        f"{len(objects)} objects, {megabytes(sum(o.size for o in objects.values()))}; "
        f"{len(objects) - len(known)} to fetch, {len(known)} unchanged"
    )
    if len(known) < len(objects):
        return None
    tree = Tree(tuple(TreeFile(path, *known[path]) for path in objects))
    content.put_tree(tree)
    provenance = {"source": source, "endpoint": bucket.endpoint, "fetched": 0, "unchanged": len(known)}
    return Staged(tree.sha256, len(tree.files), tree.size_bytes, provenance)


def check_there(source: str, tenant: str, settings: Settings) -> None:
    """Check that manifests may read the s3:// address without a secret, and that objects are there; fetches nothing.

    Raises DataError, RefusedError or UnavailableError.
    """
    parsed = parse_source(source, git=True)
    _check_open(source, parsed, f"{Keys(tenant).prefix}/", settings)
    bucket = SourceBucket(parsed.bucket, platform_credentials(settings))
    with source_errors(), bucket_errors(source, None):
        prefix = parsed.key if parsed.key.endswith("/") or not parsed.key else f"{parsed.key}/"
        if not any(item.key == parsed.key or item.key.startswith(prefix) for item in bucket.listing(parsed.key)):
            raise DataError(
                f"{source}: bucket {parsed.bucket!r} at {bucket.endpoint} has no objects there; upload the data or "
                "correct the prefix"
            )


def list_for_schedule(
    sources: Sequence[str],
    tenant: str,
    *,
    credentials: Mapping[str, str] | None,
    secret: str | None,
    marker: str | None,
    settings: Settings,
) -> list[tuple[str, Listed]]:
    """Return the objects of the s3:// addresses, each with its address; with `marker`, only those of this name.

    Raises DataError, RefusedError or UnavailableError, which names the address.
    """
    found: list[tuple[str, Listed]] = []
    for source in sources:
        parsed = parse_source(source, git=True)
        if credentials is None:
            _check_open(source, parsed, f"{Keys(tenant).prefix}/", settings)
        with source_errors(), bucket_errors(source, secret):
            bucket = SourceBucket(parsed.bucket, access(credentials, secret, platform_credentials(settings)))
            prefix = parsed.key if parsed.key.endswith("/") or not parsed.key else f"{parsed.key}/"
            for item in bucket.listing(parsed.key):
                inside = item.key == parsed.key or item.key.startswith(prefix)
                if inside and (marker is None or item.key.rpartition("/")[2] == marker):
                    found.append((source, item))
                if len(found) > LIMIT_FILES:
                    raise DataError(f"{source}: has over {LIMIT_FILES} objects; name a marker, or a longer prefix")
    return found


def _check_open(source: str, parsed: Source, own: str, settings: Settings) -> None:
    """Raise RefusedError unless the address is open to manifests: they may not read all that the platform's key
    reaches."""
    # Bucket names have no upper case, but a server on a case-insensitive file system would also accept one.
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
