"""A checkpoint of 3 GB is stored, and a killed training goes on from it.

`make test-large` runs this, because it needs 12 GB of disk.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from system_helpers import PREPARED, Stack, kill_after_a_checkpoint, pretty

pytestmark = [pytest.mark.system, pytest.mark.large, pytest.mark.timeout(1500)]
DISK_BYTES = 12_000_000_000

PROGRAM = """
import hashlib, os, pathlib, random, sys

folder = pathlib.Path(os.environ["CHECKPOINT_DIR"])
latest = folder / "latest" / "state.bin"

def parts():
    block = bytearray(random.Random(1).randbytes(8_000_000))
    for number in range(375):
        block[:4] = number.to_bytes(4, "big")
        yield bytes(block)

if latest.exists():
    digest, content = hashlib.sha256(), latest.open("rb")
    while part := content.read(8_000_000):
        digest.update(part)
    expected = hashlib.sha256()
    for part in parts():
        expected.update(part)
    print("restored", latest.stat().st_size, digest.digest() == expected.digest(), flush=True)
    sys.exit(0)
place = folder / "step-1"
place.mkdir()
with open(place / "state.bin", "wb") as file:
    for part in parts():
        file.write(part)
(place / "COMPLETE").touch()
print("saved", flush=True)
import time
time.sleep(900)
"""


def test_a_checkpoint_of_three_gigabytes_is_stored_and_restored(stack: Stack, code: Path) -> None:
    free = shutil.disk_usage(PREPARED).free
    if free < DISK_BYTES:
        pytest.skip(f"needs {DISK_BYTES / 1e9:.0f} GB of disk, and {free / 1e9:.1f} GB are free")
    (code / "train.py").write_text(PROGRAM)
    resources = {"learners": 1, "cpus": 0.5, "memory": "512MiB"}
    job = {"name": "large", "framework": {"name": "sklearn"}, "code": ".", "command": "python -u train.py"}
    job_id = stack.submit({**job, "resources": resources}, base=code)
    kill_after_a_checkpoint(stack, job_id)
    detail = stack.end(job_id)
    assert detail.state == "COMPLETED", pretty(detail)
    assert "restored 3000000000 True" in stack.log(job_id)
    (checkpoint, *_) = stack.client.checkpoints(job_id).checkpoints
    assert checkpoint.size_bytes >= 3_000_000_000
