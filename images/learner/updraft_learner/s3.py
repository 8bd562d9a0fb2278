"""A small S3 client that signs requests with the standard library, limited to what the pod needs.

botocore takes half a second before its first request, and each launch of a learner would wait for it twice. So the pod
uses this client where possible; `store.open_store` decides. Its methods have the names, arguments and results of
botocore's, so that `store.S3Store` can use either. It does not retry; callers do. Signature version 4, path style;
several threads may use it.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote_plus, urlsplit

from updraft_learner.storage_errors import S3Error, S3Unreachable

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from updraft_learner.pod import S3Credentials

CONNECT_SECONDS = 5.0
READ_SECONDS = 60.0  # without receiving a byte
IDLE_CONNECTIONS = 8
ERROR_BYTES = 1 << 16

Document = dict[str, Any]


class S3Client:
    """A client of one S3 server.

    Args:
        credentials: Both keys; without an endpoint, AWS's endpoint of the region is used.
        read_seconds: How long the server may send nothing.
        clock: Returns seconds since 1970; each signature contains the time.
    """

    def __init__(
        self,
        credentials: S3Credentials,
        *,
        connect_seconds: float = CONNECT_SECONDS,
        read_seconds: float = READ_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not credentials.access_key or not credentials.secret_key:
            raise ValueError("the S3 credentials have no access_key and secret_key")
        self._key, self._secret = credentials.access_key, credentials.secret_key
        self._region = credentials.region or "us-east-1"
        parts = urlsplit(credentials.endpoint or f"https://s3.{self._region}.amazonaws.com")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("the S3 endpoint in the credentials is no http or https address")
        self._https, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._base = parts.path.rstrip("/")
        name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self._host_header = name if parts.port in (None, 443 if self._https else 80) else f"{name}:{parts.port}"
        self._connect_seconds, self._read_seconds, self._clock = connect_seconds, read_seconds, clock
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._context: Any = None

    def put_object(self, *, Bucket: str, Key: str, Body: bytes) -> Document:
        return {"ETag": self._send("PUT", Bucket, Key, body=Body).etag}

    def get_object(self, *, Bucket: str, Key: str, Range: str | None = None) -> Document:
        body = self._send("GET", Bucket, Key, headers={"Range": Range} if Range else {})
        return {
            "Body": body,
            "ContentLength": body.length,
            "ETag": body.etag,
            "LastModified": body.modified,
            "ContentRange": body.content_range,
        }

    def head_object(self, *, Bucket: str, Key: str) -> Document:
        """Return the object's size. Raises S3Error, with an empty code: the answer to HEAD has no content."""
        return {"ContentLength": self._send("HEAD", Bucket, Key).announced}

    def delete_object(self, *, Bucket: str, Key: str) -> Document:
        self._send("DELETE", Bucket, Key)
        return {}

    def list_objects_v2(
        self, *, Bucket: str, Prefix: str, ContinuationToken: str | None = None, StartAfter: str | None = None
    ) -> Document:
        query = {"list-type": "2", "prefix": Prefix, "encoding-type": "url"}
        if StartAfter is not None:
            query["start-after"] = StartAfter
        if ContinuationToken is not None:
            query["continuation-token"] = ContinuationToken
        document = _xml(self._send("GET", Bucket, query=query))
        page: Document = {
            "Contents": [
                {"Key": _key(document, item), "Size": int(_text(item, "Size"))}
                for item in _children(document, "Contents")
            ],
            "IsTruncated": _text(document, "IsTruncated") == "true",
        }
        if page["IsTruncated"]:
            page["NextContinuationToken"] = _text(document, "NextContinuationToken")
        return page

    def create_multipart_upload(self, *, Bucket: str, Key: str) -> Document:
        return {"UploadId": _text(_xml(self._send("POST", Bucket, Key, query={"uploads": ""})), "UploadId")}

    def upload_part(self, *, Bucket: str, Key: str, UploadId: str, PartNumber: int, Body: bytes) -> Document:
        query = {"partNumber": str(PartNumber), "uploadId": UploadId}
        return {"ETag": self._send("PUT", Bucket, Key, query=query, body=Body).etag}

    def complete_multipart_upload(self, *, Bucket: str, Key: str, UploadId: str, MultipartUpload: Document) -> Document:
        from xml.sax.saxutils import escape

        parts = "".join(
            f"<Part><PartNumber>{part['PartNumber']}</PartNumber><ETag>{escape(part['ETag'])}</ETag></Part>"
            for part in MultipartUpload["Parts"]
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        answer = self._send("POST", Bucket, Key, query={"uploadId": UploadId}, body=body).read()
        # A server may detect its failure after it has answered 200.
        if b"<Error>" in answer:
            raise S3Error(_code(answer), 500)
        return {}

    def abort_multipart_upload(self, *, Bucket: str, Key: str, UploadId: str) -> Document:
        self._send("DELETE", Bucket, Key, query={"uploadId": UploadId})
        return {}

    def list_multipart_uploads(
        self, *, Bucket: str, Prefix: str, KeyMarker: str | None = None, UploadIdMarker: str | None = None
    ) -> Document:
        query = {"uploads": "", "prefix": Prefix, "encoding-type": "url"}
        if KeyMarker is not None:
            query |= {"key-marker": KeyMarker, "upload-id-marker": UploadIdMarker or ""}
        document = _xml(self._send("GET", Bucket, query=query))
        return {
            "Uploads": [
                {"Key": _key(document, item), "UploadId": _text(item, "UploadId")}
                for item in _children(document, "Upload")
            ],
            "IsTruncated": _text(document, "IsTruncated") == "true",
            "NextKeyMarker": _key(document, document, "NextKeyMarker"),
            "NextUploadIdMarker": _text(document, "NextUploadIdMarker"),
        }

    def _send(
        self,
        method: str,
        bucket: str,
        key: str = "",
        *,
        query: Mapping[str, str] | None = None,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        moved: bool = False,
    ) -> Body:
        """Make one request; the answer's body must be read or closed if it was a GET or a POST.

        Raises:
            S3Error: the server refused.
            S3Unreachable: no answer.
        """
        region = self._region
        response, connection = self._exchange(method, bucket, key, query or {}, body, headers or {})
        answer = Body(self, connection, response)
        if response.status < 300:
            if method in ("PUT", "DELETE", "HEAD"):
                answer.drain()
            return answer
        text = answer.drain()
        home = response.getheader("x-amz-bucket-region")
        if home and home != region and not moved and response.status in (301, 307, 400):
            self._region = home
            if self._host == f"s3.{region}.amazonaws.com":
                self._host = self._host_header = f"s3.{home}.amazonaws.com"
                self._close_idle()
            return self._send(method, bucket, key, query=query, body=body, headers=headers, moved=True)
        raise S3Error(_code(text), response.status)

    def _exchange(
        self, method: str, bucket: str, key: str, query: Mapping[str, str], body: bytes, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPResponse, http.client.HTTPConnection]:
        path = quote(f"{self._base}/{bucket}/{key}" if key else f"{self._base}/{bucket}", safe="/")
        words = "&".join(f"{quote(name, safe='')}={quote(query[name], safe='')}" for name in sorted(query))
        target = f"{path}?{words}" if words else path
        while True:
            connection, used_before = self._connection()
            try:
                signed = self._sign(method, path, words, body)
                try:
                    connection.request(method, target, body or None, {**signed, **headers})
                except (BrokenPipeError, ConnectionResetError):
                    # A server that refuses early closes the connection during the upload; its answer may have arrived.
                    return connection.getresponse(), connection
                return connection.getresponse(), connection
            except (OSError, http.client.HTTPException) as exc:
                connection.close()
                # The server may have closed an idle connection, which is no sign of a failure: try a new one.
                if used_before and not isinstance(exc, TimeoutError):
                    continue
                raise S3Unreachable(type(exc).__name__) from exc

    def _connection(self) -> tuple[http.client.HTTPConnection, bool]:
        """Return a connection, and whether it was used before."""
        while True:
            with self._lock:
                if not self._idle:
                    break
                connection = self._idle.pop()
            if _is_quiet(connection):
                return connection, True
            connection.close()
        return self._connect(), False

    def _connect(self) -> http.client.HTTPConnection:
        if self._https:
            if self._context is None:
                import ssl

                self._context = ssl.create_default_context(cafile=os.environ.get("AWS_CA_BUNDLE") or None)
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                self._host, self._port, timeout=self._connect_seconds, context=self._context
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self._connect_seconds)
        try:
            connection.connect()
        except OSError as exc:
            connection.close()
            raise S3Unreachable(type(exc).__name__) from exc
        # Disable Nagle's delay between headers and body.
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sock.settimeout(self._read_seconds)
        return connection

    def keep(self, connection: http.client.HTTPConnection) -> None:
        """Take back a connection whose answer was read to its end."""
        with self._lock:
            if len(self._idle) < IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.close()

    def _close_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _sign(self, method: str, path: str, query: str, body: bytes) -> dict[str, str]:
        """Return the headers of a signed request (AWS Signature Version 4, in the form that S3 requires)."""
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._clock()))
        # TLS protects the content; without TLS, the signature does.
        digest = "UNSIGNED-PAYLOAD" if self._https and body else hashlib.sha256(body).hexdigest()
        scope = f"{stamp[:8]}/{self._region}/s3/aws4_request"
        names = "host;x-amz-content-sha256;x-amz-date"
        canonical = "\n".join(
            [
                *(method, path, query),
                *(f"host:{self._host_header}", f"x-amz-content-sha256:{digest}", f"x-amz-date:{stamp}", ""),
                *(names, digest),
            ]
        )
        text = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
        key = f"AWS4{self._secret}".encode()
        for word in scope.split("/"):
            key = hmac.digest(key, word.encode(), "sha256")
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        return {
            "Host": self._host_header,
            "x-amz-content-sha256": digest,
            "x-amz-date": stamp,
            "Authorization": f"AWS4-HMAC-SHA256 Credential={self._key}/{scope}, SignedHeaders={names}, "
            f"Signature={signature}",
        }


class Body:
    """The content of an answer. The connection is reused once the content was read to its end."""

    def __init__(
        self, client: S3Client, connection: http.client.HTTPConnection, response: http.client.HTTPResponse
    ) -> None:
        self._client, self._connection, self._response = client, connection, response
        self.length = self._left = response.length  # None: chunked, or until the connection is closed
        self._done = False
        self.announced = int(
            response.getheader("Content-Length") or 0
        )  # also of an answer to HEAD, which has no content
        self.etag = response.getheader("ETag") or ""
        self.content_range = response.getheader("Content-Range")
        self._modified = response.getheader("Last-Modified")

    @property
    def modified(self) -> datetime | None:
        """Return when the object was last changed; None if the server does not say so."""
        from email.utils import parsedate_to_datetime

        try:
            return parsedate_to_datetime(self._modified) if self._modified else None
        except ValueError:
            return None

    def read(self, size: int | None = None) -> bytes:
        """Return at most `size` bytes, all by default; empty at the end.

        Raises:
            S3Unreachable: the connection broke before the end.
        """
        if self._done:
            return b""
        try:
            data = self._response.read() if size is None else self._response.read(size)
        except (OSError, http.client.HTTPException) as exc:
            self.close()
            raise S3Unreachable(type(exc).__name__) from exc
        if self._left is not None:
            self._left -= len(data)
            # http.client takes an early end of the connection for the end of the content.
            if self._left and not data and size != 0:
                self.close()
                raise S3Unreachable("IncompleteRead")
        if self._response.isclosed():
            self._finish()
        return data

    def drain(self) -> bytes:
        """Return the beginning of the content; the rest is dropped."""
        data = self.read(ERROR_BYTES)
        with suppress(S3Unreachable):
            while not self._done and (more := self.read(ERROR_BYTES)):
                data = data if len(data) >= ERROR_BYTES else data + more
        self.close()
        return data

    def close(self) -> None:
        if not self._done:
            self._done = True
            self._connection.close()

    def _finish(self) -> None:
        if self._done:
            return
        self._done = True
        if self._response.will_close or (self._left or 0) > 0:
            self._connection.close()
        else:
            self._client.keep(self._connection)


def _is_quiet(connection: http.client.HTTPConnection) -> bool:
    """Return whether nothing has come over an idle connection, not even its end."""
    try:
        return connection.sock is not None and not select.select([connection.sock], [], [], 0)[0]
    except (OSError, ValueError):
        return False


def _code(text: bytes) -> str:
    found = re.search(rb"<Code>([A-Za-z0-9]{1,60})</Code>", text)
    return found[1].decode() if found else ""


def _xml(body: Body) -> Element:
    from xml.etree import ElementTree

    text = body.read()
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as exc:
        raise S3Unreachable("the answer is no XML") from exc


def _children(parent: Element, name: str) -> list[Element]:
    return [child for child in parent if child.tag.rpartition("}")[2] == name]


def _key(document: Element, item: Element, name: str = "Key") -> str:
    """Return the key of an item. XML cannot hold every character of a key: if asked, a server encodes them and says
    so."""
    text = _text(item, name)
    return unquote_plus(text) if _text(document, "EncodingType") == "url" else text


def _text(parent: Element, name: str) -> str:
    return next((child.text or "" for child in _children(parent, name)), "")
