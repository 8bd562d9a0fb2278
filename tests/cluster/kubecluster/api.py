"""Plain requests to the cluster's HTTPS servers, with the administrator's certificate, and one question to its DNS.

For probes and the few objects that a cluster begins with; tests use the Kubernetes client. Called by `parts` and
`running`.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import struct
from typing import Any
from urllib.parse import urlsplit

from kubecluster.certificates import ADMIN
from kubecluster.layout import ClusterError, Layout

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
TIMEOUT_SECONDS = 10.0
ANSWERED = 0x8000


def request(
    layout: Layout, url: str, method: str = "GET", body: Any = None, content_type: str = JSON
) -> tuple[int, bytes]:
    """Status and body. Raises OSError where nobody answers."""
    parts = urlsplit(url)
    context = ssl.create_default_context(cafile=str(layout.pki / "ca.crt"))
    context.load_cert_chain(layout.pki / f"{ADMIN}.crt", layout.pki / f"{ADMIN}.key")
    connection = http.client.HTTPSConnection(parts.netloc, context=context, timeout=TIMEOUT_SECONDS)
    try:
        sent = None if body is None else json.dumps(body)
        connection.request(method, f"{parts.path}?{parts.query}", sent, {"Content-Type": content_type})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def answers(layout: Layout, url: str) -> bool:
    try:
        return request(layout, url)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def read(layout: Layout, url: str) -> dict[str, Any] | None:
    """The object, or None where there is none."""
    status, body = request(layout, url)
    if status == 404:
        return None
    return _object(url, "GET", status, body)


def create(layout: Layout, url: str, body: dict[str, Any]) -> None:
    """One that exists is left as it is."""
    status, answer = request(layout, url, "POST", body)
    if status != 409:
        _object(url, "POST", status, answer)


def patch(layout: Layout, url: str, body: dict[str, Any]) -> dict[str, Any]:
    return _object(url, "PATCH", *request(layout, url, "PATCH", body, MERGE_PATCH))


def _object(url: str, method: str, status: int, body: bytes) -> dict[str, Any]:
    if status not in (200, 201):
        raise ClusterError(f"{method} {url} answered {status}: {body.decode(errors='replace')[:300]}")
    found = json.loads(body)
    assert isinstance(found, dict)
    return found


def resolve(server: str, name: str) -> str | None:
    """The IPv4 address that a DNS server knows for a name (RFC 1035), None where it knows none or says nothing."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"
    question = struct.pack(">HHHHHH", 1, 0x0100, 1, 0, 0, 0) + labels + struct.pack(">HH", 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        channel.settimeout(1.0)
        try:
            channel.sendto(question, (server, 53))
            answer = channel.recv(512)
        except OSError:
            return None
    _, flags, _, count, _, _ = struct.unpack(">HHHHHH", answer[:12])
    if not flags & ANSWERED or flags & 0x000F or not count:
        return None
    return socket.inet_ntoa(answer[-4:]) if count == 1 else None
