"""Programs that behave badly: what they print, leave behind and store costs nothing but themselves. The table in
docs/howto/write-a-program.md says what becomes of each."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from system_helpers import Stack, pretty

from updraft.client.client import Client

pytestmark = [pytest.mark.system, pytest.mark.turn(2), pytest.mark.timeout(900)]

NAMES = ["a b", "two\nlines", "50%?#&=+.bin", "back\\slash", "ünï/中文", "-rf", ".hidden", "a:b*", " ", "%2e%2e"]
RESULTS = f"""
import os, pathlib
folder = pathlib.Path(os.environ["RESULT_DIR"])
for name in {NAMES!r}:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(name)
open(os.fsencode(folder) + b"/caf\\xe9-\\xff", "w").write("not UTF-8")
for number in range(2000):
    (folder / f"part-{{number:05d}}").write_text(str(number))
"""
LOUD = """
import subprocess, sys, time
for n in range(200_000):
    print("step", n)
sys.stdout.flush()
for n in range(3001):
    sys.stdout.write(f"\\r{n / 30:5.1f}% of an epoch")
    sys.stdout.flush()
sys.stdout.buffer.write(b"\\n" + bytes(range(256)) * 4000 + b"\\n")
sys.stdout.flush()
print("the last words")
"""
DAEMON = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
print("daemon", child.pid, flush=True)
"""
METRICS = """
import json, os, time
with open(os.environ["UPDRAFT_METRICS_FILE"], "a") as file:
    for step in range(100_000):
        file.write(json.dumps({"t": time.time(), "step": step, "metrics": {"loss": 1 / (step + 1)}}) + "\\n")
"""
DEAF = """
import os, pathlib, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print("deaf", os.getpid(), flush=True)
while True:
    time.sleep(1)
"""


def job(name: str, **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "framework": {"name": "sklearn"},
        "code": ".",
        "command": "python -u train.py" if name != "loud" else "python train.py",
        "resources": {"learners": 1, "cpus": 0.5, "memory": "512MiB"},
        **fields,
    }


def submit(stack: Stack, folder: Path, name: str, program: str, **fields: Any) -> str:
    (folder / "train.py").write_text(program)
    return stack.submit(job(name, **fields), base=folder)


def first_line(client: Client, job_id: str, begins: str) -> str:
    """The first line of the log that begins so; its own patience is bounded by the test's."""
    while True:
        for line in client.logs(job_id):
            if line.line.startswith(begins):
                return str(line.line)
        assert not client.job(job_id).ended
        time.sleep(0.5)


def test_files_of_any_name_are_stored_and_downloaded(stack: Stack, code: Path, tmp_path: Path) -> None:
    detail = stack.end(job_id := submit(stack, code, "names", RESULTS))
    assert detail.state == "COMPLETED", pretty(detail)
    ran = stack.run("download", job_id, "results", "-o", str(tmp_path / "out"), "--json", timeout_seconds=300)
    assert ran.returncode == 0, ran.stderr
    (learner,) = (tmp_path / "out").iterdir()
    assert {name: (learner / name).read_text() for name in NAMES} == {name: name for name in NAMES}
    assert [(learner / f"part-{n:05d}").read_text() for n in range(2000)] == [str(n) for n in range(2000)]
    (other,) = [path for path in os.listdir(learner) if path.startswith("caf")]
    assert (learner / other).read_text() == "not UTF-8"


def test_a_loud_program_ends_with_its_last_words(stack: Stack, code: Path) -> None:
    detail = stack.end(job_id := submit(stack, code, "loud", LOUD))
    assert detail.state == "COMPLETED", pretty(detail)
    lines = [line.line for line in stack.client.logs(job_id)]
    assert lines[-1] == "the last words"
    assert len(lines) < 205_000


def test_a_daemon_that_is_left_behind_ends_with_its_pod(stack: Stack, code: Path) -> None:
    detail = stack.end(job_id := submit(stack, code, "daemon", DAEMON))
    assert detail.state == "COMPLETED", pretty(detail)
    pid = int(stack.log(job_id).split()[-1])
    assert not psutil.pid_exists(pid)


def test_a_program_deaf_to_signals_is_cancelled(stack: Stack, code: Path) -> None:
    job_id = submit(stack, code, "deaf", DEAF)
    stack.reach(job_id, "PROCESSING")
    pid = int(first_line(stack.client, job_id, "deaf").split()[-1])
    ran = stack.run("cancel", job_id, "--wait", "--json", timeout_seconds=240)
    assert (ran.returncode, json.loads(ran.stdout)["id"]) == (0, job_id), ran.stderr
    assert stack.client.job(job_id).state == "CANCELLED"
    assert not psutil.pid_exists(pid)


def test_a_hundred_thousand_points_are_kept_and_the_pages_stay_small(stack: Stack, code: Path) -> None:
    detail = stack.end(job_id := submit(stack, code, "points", METRICS))
    assert detail.state == "COMPLETED", pretty(detail)
    metrics = stack.client.metrics(job_id, "loss")
    assert metrics.last["loss"] == pytest.approx(1e-5)
    assert metrics.history["loss"][-1].step == 99_999
    began = time.monotonic()
    page = stack.job_page(job_id)
    print(f"page: {len(page):,} characters, {time.monotonic() - began:.1f} s, {len(metrics.history['loss'])} points")
    assert len(page) < 1_000_000


def test_a_code_folder_of_a_gigabyte_is_refused_before_it_is_read(stack: Stack, code: Path) -> None:
    with (code / "weights.bin").open("wb") as file:
        file.truncate(10**9)
    (code / "train.py").write_text("")
    (code / "manifest.yaml").write_text(json.dumps(job("large")))
    began = time.monotonic()
    ran = stack.run("submit", str(code / "manifest.yaml"))
    assert ran.returncode == 2
    assert "weights.bin (1000.0 MB)" in ran.stderr
    assert "the limit is" in ran.stderr
    assert time.monotonic() - began < 60
    shutil.rmtree(code)
