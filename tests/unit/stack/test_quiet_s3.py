"""What the S3 server writes after each delete is no fault of anybody, and does not reach its log."""

from __future__ import annotations

import time
from collections.abc import Iterator

import boto3
import psutil
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from updraft.stack import control, processes
from updraft.stack.config import load_secrets
from updraft.stack.layout import Home


@pytest.fixture
def leader(home: Home) -> Iterator[processes.Identity]:
    control.initialise(home)
    (part,) = (part for part in control.parts_of(home) if part.name == "s3")
    child, identity = processes.spawn(part.argv, environment=part.environment, cwd=part.cwd, log=part.log)
    yield identity
    processes.end(processes.session_members(identity), grace_seconds=5)
    child.wait(10)


def test_a_delete_beside_other_objects_leaves_no_line(home: Home, leader: processes.Identity) -> None:
    secrets = load_secrets(home)
    client = boto3.client(
        "s3",
        endpoint_url=control.addresses(home).s3,
        aws_access_key_id=secrets.s3_access_key.get_secret_value(),
        aws_secret_access_key=secrets.s3_secret_key.get_secret_value(),
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}),
    )
    deadline = time.monotonic() + 30
    while True:
        try:
            client.list_buckets()
            break
        except BotoCoreError:
            assert time.monotonic() < deadline, home.log_of("s3").read_text()
            time.sleep(0.1)
    for name in ("a/b/1", "a/b/2"):
        client.put_object(Bucket="updraft", Key=name, Body=b"x")
    client.delete_object(Bucket="updraft", Key="a/b/1")
    assert psutil.Process(leader.pid).name() == "rclone"
    members = processes.session_members(leader)
    assert {process.name() for process in members} == {"rclone", "grep"}
    processes.end([psutil.Process(leader.pid)], grace_seconds=5)
    psutil.wait_procs(members, 5)
    log = home.log_of("s3").read_text()
    assert "Starting s3 server" in log
    assert "Dir.Remove" not in log


def test_every_other_line_stays_and_the_program_leads_its_session(home: Home) -> None:
    script = "echo one; echo 'two: Dir.Remove not empty' >&2; echo 'Dir.Remove not empty here'; echo $$; "
    script += "echo no file; exit 3"
    argv = processes.without_lines(["/bin/sh", "-c", script], "Dir.Remove not empty$|no file$")
    child, identity = processes.spawn(argv, environment={"PATH": "/usr/bin:/bin"}, cwd=home.root, log=home.root / "log")
    assert child.wait(20) == 3
    deadline = time.monotonic() + 10
    while len(lines := (home.root / "log").read_text().splitlines()) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert lines == ["one", "Dir.Remove not empty here", str(identity.pid)]
