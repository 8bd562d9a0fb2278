"""Package indexes for tests: one of tiny wheels, and a mirror of PyPI for pods that reach only this machine."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import re
import tarfile
import threading
import time
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase

PYPI = "https://pypi.org/simple/"
PYPI_FILES = "https://files.pythonhosted.org/"
LINK_CHUNK_BYTES = 64 << 10


def wheel(name: str, version: str, requires: Sequence[str] = ()) -> tuple[str, bytes]:
    """Return the file name and content of a wheel with one module and one console script, `<name>-run`."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f"VERSION = '{version}'\n\n\ndef main():\n    print('{name}', VERSION)\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {each}\n" for each in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name}-run = {name}:main\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return f"{name}-{version}-py3-none-any.whl", content.getvalue()


def source_only(name: str, version: str) -> tuple[str, bytes]:
    """Return the file name and content of a source distribution."""
    content = io.BytesIO()
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        entry = tarfile.TarInfo(f"{name}-{version}/PKG-INFO")
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    return f"{name}-{version}.tar.gz", content.getvalue()


@contextmanager
def package_index(
    *files: tuple[str, bytes],
    log_in: tuple[str, str] | None = None,
    asked: threading.Event | None = None,
    answers: threading.Event | None = None,
    address: str = "127.0.0.1",
) -> Iterator[str]:
    """Serve a simple index of the files; give its address. With `log_in`, others are refused.

    `asked` is set by the first request. Nothing is answered before `answers` is set.
    """
    wanted = None if log_in is None else "Basic " + base64.b64encode(":".join(log_in).encode()).decode()
    content = dict(files)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if asked is not None:
                asked.set()
            if answers is not None:
                answers.wait(300)
            if wanted is not None and self.headers.get("Authorization") != wanted:
                return self._answer(401, b"")
            kind, _, name = self.path.strip("/").partition("/")
            if kind == "files" and name in content:
                return self._answer(200, content[name])
            found = [each for each in content if each.split("-")[0] == name]
            if kind != "simple" or not found:
                return self._answer(404, b"")
            links = "".join(
                f'<a href="/files/{html.escape(each)}#sha256={hashlib.sha256(content[each]).hexdigest()}">{each}</a>\n'
                for each in found
            )
            return self._answer(200, f"<!DOCTYPE html><html><body>{links}</body></html>".encode())

        do_HEAD = do_GET

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            if status == 401:
                self.send_header("WWW-Authenticate", "Basic")
            self.send_header("Content-Type", "text/html" if self.path.startswith("/simple") else "application/zip")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with _served(Handler, address) as url:
        yield url


class Link:
    """A network link that several answers share."""

    def __init__(self, bytes_per_second: float | None) -> None:
        self._rate, self._lock, self._free_at = bytes_per_second, threading.Lock(), 0.0

    def send(self, out: BufferedIOBase, body: bytes) -> None:
        for start in range(0, len(body), LINK_CHUNK_BYTES):
            chunk = body[start : start + LINK_CHUNK_BYTES]
            if self._rate is not None:
                with self._lock:
                    now = time.monotonic()
                    self._free_at = max(self._free_at, now) + len(chunk) / self._rate
                    wait = self._free_at - now
                time.sleep(wait)
            out.write(chunk)


@contextmanager
def package_mirror(address: str, bytes_per_second: float | None = None) -> Iterator[str]:
    """Serve the packages of PyPI at this address; give the index's URL.

    `bytes_per_second`: what the link to the index carries; None: as much as the machine.
    """

    @cache
    def fetched(url: str) -> tuple[str, bytes]:
        with urllib.request.urlopen(url, timeout=300) as answer:
            return answer.headers["Content-Type"], answer.read()

    link = Link(bytes_per_second)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if (named := re.fullmatch(r"/simple/([a-z0-9._-]+)/?", self.path)) is not None:
                kind, body = fetched(f"{PYPI}{named[1]}/")
                # Metadata beside a file is not passed on, so that each answer is a page or a file.
                body = re.sub(rb' data-[a-z-]+-metadata="[^"]*"', b"", body)
                body = body.replace(PYPI_FILES.encode(), b"/files/")
            elif self.path.startswith("/files/packages/"):
                kind, body = fetched(PYPI_FILES + self.path.removeprefix("/files/"))
            else:
                return self.send_error(404)
            part = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
            self.send_response(200 if part is None else 206)
            if part is not None:  # uv reads the metadata at the end of a wheel
                size = len(body)
                first = int(part[1]) if part[1] else size - int(part[2])
                last = min(int(part[2]), size - 1) if part[1] and part[2] else size - 1
                body = body[first : last + 1]
                self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                link.send(self.wfile, body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    with _served(Handler, address) as url:
        yield url


@contextmanager
def _served(handler: type[BaseHTTPRequestHandler], address: str) -> Iterator[str]:
    server = ThreadingHTTPServer((address, 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://{address}:{server.server_port}/simple"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
