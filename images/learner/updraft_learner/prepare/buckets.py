"""List a bucket that a user names as a source, with a version that shows whether an object has changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from updraft_learner.pod import S3Credentials
from updraft_learner.prepare.errors import SourceError
from updraft_learner.store import S3Store
from updraft_learner.trees import TreeError, megabytes, safe_path

MOST_PAGES = 10_000  # of a listing, with a thousand keys each
_FIELDS = ("endpoint", "region", "access_key", "secret_key")


@dataclass(frozen=True)
class Listed:
    """One object of a listing. `version` stays equal only while the content does."""

    key: str
    size: int
    version: str


class SourceBucket(S3Store):
    def listing(self, prefix: str) -> Iterator[Listed]:
        """Yield the objects whose key begins with `prefix`, in order of their keys, without folder placeholders."""
        token: dict[str, str] = {}
        for _ in range(MOST_PAGES):
            page = self._try(
                f"listing {prefix!r}" if prefix else "listing",
                lambda token=token: self._client.list_objects_v2(Bucket=self.bucket, Prefix=prefix, **token),  # type: ignore[misc]
            )
            for item in page.get("Contents", []):
                key, size = str(item["Key"]), int(item["Size"])
                if not key.endswith("/"):
                    yield Listed(key, size, _version(str(item.get("ETag", "")).strip('"'), item["LastModified"]))
            if not page.get("IsTruncated"):
                return
            if token.get("ContinuationToken") == page["NextContinuationToken"]:
                break
            token = {"ContinuationToken": page["NextContinuationToken"]}
        raise SourceError("data", f"bucket {self.bucket!r} at {self.endpoint}: its listing has no end")


def _version(etag: str, modified: datetime) -> str:
    # A plain MD5 depends on the content alone. The server may choose any other ETag freely, so the time must agree too.
    if len(etag) == 32 and all(char in "0123456789abcdef" for char in etag.lower()):
        return etag.lower()
    return f"{etag}@{modified.isoformat()}"


def is_version(listed: str, etag: str, modified: datetime | None) -> bool:
    """Return whether an answer with this ETag and time is of the object that was listed with version `listed`.

    The time in a header has whole seconds, so that two changes within a second are not told apart by it.
    """
    known, _, time = listed.partition("@")
    if known.lower() != etag.strip('"').lower():
        return False
    return not time or modified is None or datetime.fromisoformat(time).replace(microsecond=0) == modified


def list_source(bucket: SourceBucket, key: str, source: str, limit_bytes: int, limit_files: int) -> dict[str, Listed]:
    """Return the objects of `s3://bucket/key`, that object or else everything below `key/`, by the path that they get
    in the tree.

    Stops as soon as a limit is passed. Raises SourceError for what cannot become a tree, StorageError.
    """
    prefix = key if key.endswith("/") or not key else f"{key}/"
    found: dict[str, Listed] = {}
    total_bytes = 0
    for item in bucket.listing(key):
        if item.key == key:
            found = {key.rpartition("/")[2]: item}
            total_bytes = item.size
            break
        if not item.key.startswith(prefix):  # for instance `digits-old` beside `digits`
            continue
        if item.size < 0:
            raise SourceError("data", f"{source}: the bucket says that {item.key!r} has {item.size} bytes")
        total_bytes += item.size
        if total_bytes > limit_bytes:
            break
        if len(found) >= limit_files:
            raise SourceError("limit", f"{source}: has more than {limit_files} objects; pack them into fewer files")
        found[_path(source, item.key[len(prefix) :])] = item
    if total_bytes > limit_bytes:
        raise SourceError(
            "limit",
            f"{source}: has {megabytes(total_bytes)} or more, more than the limit of {megabytes(limit_bytes)}; "
            "use less data or ask for a higher limit",
        )
    if not found:
        raise SourceError(
            "data",
            f"{source}: bucket {bucket.bucket!r} at {bucket.endpoint} has no objects there; upload the data or correct "
            "the prefix",
        )
    if not any(item.size for item in found.values()):
        raise SourceError("data", f"{source}: all of its {len(found)} objects are empty; upload the data again")
    return found


def _path(source: str, relative: str) -> str:
    try:
        return safe_path(relative)
    except TreeError as exc:
        raise SourceError("data", f"{source}: an object cannot become a file: {exc}; rename it") from exc


def access(credentials: Mapping[str, str] | None, secret_name: str | None, platform: S3Credentials) -> S3Credentials:
    """Return the platform's own access, or that of a secret {access_key, secret_key, endpoint?, region?}.

    A secret without an endpoint is for the platform's own object store. Raises SourceError for a secret that cannot be
    one of a bucket; its values are in no message.
    """
    if credentials is None:
        return platform
    name = f"secret {secret_name!r}" if secret_name else "the secret"
    absent = [key for key in ("access_key", "secret_key") if not credentials.get(key)]
    if absent:
        raise SourceError(
            "data", f"{name} has no {' and no '.join(absent)}; a bucket's secret needs access_key and secret_key"
        )
    unknown = sorted(set(credentials) - set(_FIELDS))
    if unknown:
        raise SourceError("data", f"{name} has an unknown field {unknown[0]!r}; allowed are {', '.join(_FIELDS)}")
    endpoint = credentials.get("endpoint") or platform.endpoint
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise SourceError("data", f"{name}: its endpoint is no http:// or https:// address")
    return S3Credentials(
        endpoint=endpoint,
        region=credentials.get("region") or platform.region,
        access_key=credentials["access_key"].strip(),
        secret_key=credentials["secret_key"].strip(),
    )
