from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from updraft.settings import Settings
from updraft.storage import ContentStore
from updraft_learner.contract import Keys
from updraft_learner.pod import S3Credentials
from updraft_learner.store import S3Store

RCLONE = Path(sys.executable).parent / "rclone"


@dataclass(frozen=True)
class S3Server:
    """A real rclone, serving a folder: each folder in it is a bucket."""

    endpoint: str
    root: Path
    access_key: str
    secret_key: str

    @property
    def credentials(self) -> S3Credentials:
        return S3Credentials(self.endpoint, "us-east-1", self.access_key, self.secret_key)

    def store(self, bucket: str) -> S3Store:
        return S3Store(bucket, self.credentials)

    def new_bucket(self, bucket: str) -> S3Store:
        store = self.store(bucket)
        store._client.create_bucket(Bucket=bucket)
        return store


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    root = tmp_path_factory.mktemp("s3")
    access, secret, port = secrets.token_hex(8), secrets.token_hex(16), _free_port()
    auth = tmp_path_factory.mktemp("rclone") / "empty.conf"
    auth.touch()
    process = subprocess.Popen(
        [str(RCLONE), "serve", "s3", str(root), "--addr", f"127.0.0.1:{port}", "--config", str(auth),
         "--vfs-cache-mode", "off", "--no-modtime"],
        env={"RCLONE_AUTH_KEY": f'"{access},{secret}"', "HOME": str(auth.parent)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, "rclone ended"
                assert time.monotonic() < until, "rclone did not start"
                time.sleep(0.02)
        yield S3Server(f"http://127.0.0.1:{port}", root, access, secret)
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture
def settings(s3: S3Server, tmp_path: Path) -> Settings:
    credentials = tmp_path / "credentials.json"
    credentials.write_text(
        json.dumps(
            {
                "s3": {"access_key": s3.access_key, "secret_key": s3.secret_key},
                "mlflow": {"username": "u", "password": "p"},
            }
        )
    )
    bucket = f"updraft-{secrets.token_hex(4)}"
    s3.new_bucket(bucket)
    return Settings(
        ledger_url="sqlite:///unused.db",
        s3_endpoint=s3.endpoint,
        bucket=bucket,
        source_buckets=tuple(f"data-{secrets.token_hex(4)}" for _ in range(4)),
        mlflow_uri="http://127.0.0.1:1",
        credentials_file=credentials,
    )


@pytest.fixture
def content(s3: S3Server, settings: Settings) -> ContentStore:
    return ContentStore(S3Store(settings.bucket, s3.credentials), Keys("default"))


@pytest.fixture
def datasets(s3: S3Server, settings: Settings) -> Callable[..., str]:
    """Makes a bucket of these objects that manifests may read, and returns its name."""
    names = iter(settings.source_buckets)

    def make(objects: dict[str, bytes]) -> str:
        bucket = next(names)
        store = s3.new_bucket(bucket)
        for key, data in objects.items():
            store.put_bytes(key, data)
        return bucket

    return make
