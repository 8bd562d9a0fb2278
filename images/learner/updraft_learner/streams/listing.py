"""Define the document that names the objects of a streamed data set. Its digest is the fingerprint of the data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from updraft_learner.prepare.buckets import Listed
from updraft_learner.trees import TreeError, safe_path


class ListingError(ValueError):
    """The text is not a listing."""


@dataclass(frozen=True)
class ObjectListing:
    """The objects of `s3://bucket/prefix` by the path that the program uses, as they were when the job was staged."""

    objects: Mapping[str, Listed]

    @property
    def size_bytes(self) -> int:
        return sum(item.size for item in self.objects.values())

    def to_json(self) -> bytes:
        """Return the canonical document: equal objects have an equal document."""
        rows = [[path, item.key, item.size, item.version] for path, item in sorted(self.objects.items())]
        return json.dumps({"objects": rows}, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: bytes, sha256: str) -> ObjectListing:
        """Parse a document. Raises ListingError if it is not one, or does not have this digest."""
        if hashlib.sha256(text).hexdigest() != sha256:
            raise ListingError("does not match its digest")
        try:
            rows = json.loads(text)["objects"]
            return cls({safe_path(path): Listed(str(key), int(size), str(seen)) for path, key, size, seen in rows})
        except (ValueError, KeyError, TypeError, TreeError) as exc:
            raise ListingError(f"cannot be read ({type(exc).__name__})") from exc


def digest_of(document: bytes) -> str:
    """Return the digest under which a listing is stored."""
    return hashlib.sha256(document).hexdigest()
