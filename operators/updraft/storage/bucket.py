"""A bucket that a user names as a source: listed with what tells whether an object has changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from updraft.exceptions import DataError
from updraft_learner.pod import S3Credentials
from updraft_learner.store import Store

_FIELDS = ("endpoint", "region", "access_key", "secret_key")


@dataclass(frozen=True)
class Listed:
    """One object of a listing. `version` is equal only while the content is."""

    key: str
    size: int
    version: str


class SourceBucket(Store):
    def listing(self, prefix: str) -> Iterator[Listed]:
        """Objects whose key begins with `prefix`, in order of their keys; folder placeholders are left out."""
        token: dict[str, str] = {}
        while True:
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
            token = {"ContinuationToken": page["NextContinuationToken"]}


def _version(etag: str, modified: datetime) -> str:
    # A plain MD5 is the content's; any other ETag may be made up by the server, so the time has to agree too.
    if len(etag) == 32 and all(char in "0123456789abcdef" for char in etag.lower()):
        return etag.lower()
    return f"{etag}@{modified.isoformat()}"


def access(credentials: Mapping[str, str] | None, secret_name: str | None, platform: S3Credentials) -> S3Credentials:
    """The platform's own access, or that of a secret {access_key, secret_key, endpoint?, region?}.

    A secret without an endpoint is for the platform's own object store. Raises DataError for a secret that cannot be
    one of a bucket; its values are in no message.
    """
    if credentials is None:
        return platform
    name = f"secret {secret_name!r}" if secret_name else "the secret"
    absent = [key for key in ("access_key", "secret_key") if not credentials.get(key)]
    if absent:
        raise DataError(f"{name} has no {' and no '.join(absent)}; a bucket's secret needs access_key and secret_key")
    unknown = sorted(set(credentials) - set(_FIELDS))
    if unknown:
        raise DataError(f"{name} has an unknown field {unknown[0]!r}; allowed are {', '.join(_FIELDS)}")
    endpoint = credentials.get("endpoint") or platform.endpoint
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise DataError(f"{name}: its endpoint is no http:// or https:// address")
    return S3Credentials(
        endpoint=endpoint,
        region=credentials.get("region") or platform.region,
        access_key=credentials["access_key"].strip(),
        secret_key=credentials["secret_key"].strip(),
    )
