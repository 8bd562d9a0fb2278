"""Define the errors of the object store: one exception for all clients, with a kind for code and a message for people.

`store` uses `wrap`; all other code imports `StorageError` from `store`.
"""

from __future__ import annotations

import sys
from typing import Literal

Kind = Literal["missing bucket", "missing", "denied", "unreachable", "refused", "too large"]

_KINDS: dict[str, Kind] = {
    "NoSuchBucket": "missing bucket",
    "NoSuchKey": "missing",
    "NoSuchUpload": "missing",
    "InvalidPart": "missing",  # a part of an upload
    "404": "missing",
    "NotFound": "missing",
    "AccessDenied": "denied",
    "InvalidAccessKeyId": "denied",
    "SignatureDoesNotMatch": "denied",
    "AuthorizationHeaderMalformed": "denied",
    "RequestTimeTooSkewed": "denied",
    "ExpiredToken": "denied",
    "401": "denied",
    "403": "denied",
    "SlowDown": "unreachable",
    "RequestTimeout": "unreachable",
    "InternalError": "unreachable",
    "ServiceUnavailable": "unreachable",
}


class StorageError(Exception):
    """The object store did not do what was asked. `kind` is the cause; the message says what to check."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind: Kind = kind


class S3Error(Exception):
    """A server refused a request of `s3.S3Client`. `code` is S3's error code, empty if the answer had none."""

    def __init__(self, code: str, status: int) -> None:
        super().__init__(code or f"status {status}")
        self.code, self.status = code, status


class S3Unreachable(ConnectionError):
    """`s3.S3Client` got no usable answer; it is unknown whether the request had an effect."""


def wrap(exc: Exception, action: str, *, bucket: str, endpoint: str) -> StorageError | None:
    """Return the StorageError for an exception of the client library; None when it is not one of those."""
    if isinstance(exc, StorageError):
        return exc
    where = f"bucket {bucket!r} at {endpoint}"
    if isinstance(exc, S3Error):
        return _refusal(exc.code, exc.status, action, where)
    if isinstance(exc, (ConnectionError, TimeoutError)):
        detail = str(exc) if isinstance(exc, S3Unreachable) else type(exc).__name__
        return StorageError("unreachable", message("unreachable", action, where, detail))
    if "botocore" not in sys.modules:
        return None
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, IncompleteReadError, NoCredentialsError
    from botocore.exceptions import ConnectionError as BotoConnectionError

    if isinstance(exc, ClientError):
        code = str(exc.response.get("Error", {}).get("Code", ""))
        status = int(exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        return _refusal(code, status, action, where)
    if isinstance(exc, NoCredentialsError):
        return StorageError("denied", message("denied", action, where, "no credentials"))
    broken = (BotoConnectionError, HTTPClientError, IncompleteReadError)
    if isinstance(exc, broken) or type(exc).__module__.startswith("urllib3"):
        return StorageError("unreachable", message("unreachable", action, where, type(exc).__name__))
    if isinstance(exc, BotoCoreError):
        return StorageError("refused", message("refused", action, where, type(exc).__name__))
    return None


def too_large(key: str, size_bytes: int, limit_bytes: int) -> StorageError:
    return StorageError("too large", f"reading {key}: it has {size_bytes} bytes; no more than {limit_bytes} are read")


def _refusal(code: str, status: int, action: str, where: str) -> StorageError:
    kind = _KINDS.get(code)
    if kind is None:
        later = status == 429 or (status >= 500 and status != 501)
        kind = "unreachable" if later else _KINDS.get(str(status), "refused")
    return StorageError(kind, message(kind, action, where, code or str(status)))


def message(kind: Kind, action: str, where: str, detail: str) -> str:
    text = {
        "missing bucket": "the bucket does not exist; create it or correct its name",
        "missing": "there is no such object",
        "denied": "access is denied; check the access key, its secret and its rights on this bucket",
        "unreachable": "the object store cannot be reached; check that it runs and the address is right",
        "refused": "the object store refused the request",
        "too large": "the object is too large",
    }[kind]
    return f"{where}: {action}: {text} ({detail})"
