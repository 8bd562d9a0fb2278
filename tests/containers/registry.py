"""A company's package registry: HTTPS by an authority of its own, a password, files that only it hands out.

It answers from PyPI and keeps what it was asked for. On loopback, for builds, which use the host's network. Called by
tests.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import re
import secrets
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

INDEX, FILES = "https://pypi.org", "https://files.pythonhosted.org"


@dataclass
class Registry:
    """One that answers; `authority` is the certificate (PEM) that its clients have to trust."""

    password: str = field(repr=False)
    authority: bytes
    port: int = 0
    asked: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"https://builder:{self.password}@127.0.0.1:{self.port}/simple"

    @property
    def header(self) -> str:
        """The password as it travels."""
        return "Basic " + base64.b64encode(f"builder:{self.password}".encode()).decode()


@contextmanager
def registry(folder: Path) -> Iterator[Registry]:
    authority, own = _certificates(folder / "registry.pem")
    found = Registry(secrets.token_urlsafe(24), authority)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Authorization") != found.header:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="packages"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            found.asked.append(self.path)
            status, kind, body = _fetch(self.path)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    found.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _fetch(path: str) -> tuple[int, str, bytes]:
    """From PyPI, with links that lead back here."""
    server = INDEX if path.startswith("/simple/") else FILES
    request = urllib.request.Request(server + path, headers={"Accept": "text/html, */*;q=0.1"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            body, kind = answer.read(), answer.headers.get_content_type()
    except urllib.error.HTTPError as exc:
        return exc.code, "text/plain", b""
    if server == INDEX:
        body = re.sub(re.escape(FILES).encode(), b"", body)
    return 200, kind, body


def _certificates(file: Path) -> tuple[bytes, Path]:
    """An authority, and the file of a key with a certificate for loopback that it has signed."""
    root, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "updraft-test-authority")])
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "updraft-test-registry")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    authority = _certificate(issuer, root, root.public_key(), issuer, x509.BasicConstraints(True, None))
    own = _certificate(issuer, root, key.public_key(), subject, x509.BasicConstraints(False, None), address)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + own)
    return authority, file


def _certificate(
    issuer: x509.Name,
    signer: ec.EllipticCurvePrivateKey,
    key: ec.EllipticCurvePublicKey,
    subject: x509.Name,
    *extensions: x509.ExtensionType,
) -> bytes:
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )
    for extension in extensions:
        made = made.add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
    return made.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
