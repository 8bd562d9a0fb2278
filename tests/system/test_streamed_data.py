"""Data that is streamed, and data that the learners of a node share, on the real stack."""

from __future__ import annotations

import io
import json
import tarfile
import time
from pathlib import Path
from typing import Any

import pages
import pytest
import yaml
from system_helpers import Stack, kill_after_a_checkpoint, pretty

from updraft.exceptions import UpdraftError

pytestmark = [pytest.mark.system, pytest.mark.turn(0), pytest.mark.timeout(900)]

SHARDS, SAMPLES = 6, 200
# It reads all samples, and goes on after a kill with the shards that are left.
TRAIN = """
import json, os, pathlib, time
from updraft_learner import data

folder = pathlib.Path(os.environ["CHECKPOINT_DIR"])
latest = folder / "latest" / "state.json"
state = json.loads(latest.read_text()) if latest.exists() else {"done": 0, "sum": 0, "count": 0}
print("begins at", state["done"], flush=True)
shards = data.split(data.paths("train", "*.tar"), epoch=0, seed=3)
for number, shard in enumerate(shards[state["done"]:], start=state["done"]):
    for sample in data.samples([shard]):
        state["sum"] += int(sample["cls"])
        state["count"] += 1
    state["done"] = number + 1
    place = folder / f"step-{number}"
    place.mkdir(exist_ok=True)
    (place / "state.json").write_text(json.dumps(state))
    (place / "COMPLETE").touch()
    time.sleep(3)
files = [str(p) for p in pathlib.Path(os.environ["DATA_DIR"]).rglob("*")]
pathlib.Path(os.environ["RESULT_DIR"], "sum.json").write_text(json.dumps({**state, "files": files}))
"""
WAITS = """
import os, pathlib, time
from updraft_learner import data
with data.open("big.bin") as stream:
    stream.read(10)
print("read the beginning", flush=True)
while not pathlib.Path(os.environ["GATE"]).exists():
    time.sleep(0.2)
with data.open("later.bin") as stream:
    stream.read()
"""
LISTS = 'find -L "$DATA_DIR" -type f | sort; cat "$DATA_DIR/set/a.txt"; test -w "$DATA_DIR/set/a.txt" && echo writable'


def job(name: str, command: str, data: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "framework": {"name": "sklearn"},
        "command": command,
        "resources": {"learners": 1, "cpus": 0.5, "memory": "512MiB"},
        "data": data,
        **fields,
    }


def shard(first: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for number in range(first, first + SAMPLES):
            for extension, content in (("cls", b"%d" % number), ("bin", bytes(2000))):
                info = tarfile.TarInfo(f"{number:06}.{extension}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.parametrize("secret", [False, True], ids=["open bucket", "with a secret"])
def test_a_training_reads_all_samples_and_goes_on_after_a_kill(
    stack: Stack, code: Path, tmp_path: Path, secret: bool
) -> None:
    folder = f"streamed-{int(secret)}"
    for number in range(SHARDS):
        stack.put_object("datasets", f"{folder}/{number:02}.tar", shard(number * SAMPLES))
    (code / "train.py").write_text(TRAIN)
    data: dict[str, Any] = {"source": f"s3://datasets/{folder}/", "as": "train", "mode": "stream"}
    if secret:
        stack.client.set_secret("stream-bucket", stack.s3_keys())
        data["secret"] = "stream-bucket"
    more = {"results": {"to": "s3://datasets/trained/", "secret": "stream-bucket"}} if secret else {}
    made = stack.submit(job("streamed", "python train.py", [data], code=".", **more), base=code)
    kill_after_a_checkpoint(stack, made)
    detail = stack.end(made)
    assert detail.state == "COMPLETED", pretty(detail)
    (start,) = [line for line in stack.log(made).splitlines() if line.startswith("begins at")]
    assert start != "begins at 0"
    (found,) = stack.client.download(made, "results", tmp_path / "results")
    result = json.loads(found.read_text())
    assert (result["done"], result["count"]) == (SHARDS, SHARDS * SAMPLES)
    assert result["sum"] == sum(range(SHARDS * SAMPLES))
    assert result["files"] == []  # nothing was copied
    written = stack.store("datasets").get_bytes(f"trained/{made}/sum.json")
    assert written == (found.read_bytes() if secret else None)


def test_an_object_that_changes_ends_the_job(stack: Stack, code: Path, tmp_path: Path) -> None:
    stack.put_object("datasets", "changing/big.bin", bytes(100))
    stack.put_object("datasets", "changing/later.bin", bytes(1000))
    (code / "train.py").write_text(WAITS)
    data = [{"source": "s3://datasets/changing/", "mode": "stream"}]
    gate = tmp_path / "gate"
    more = {"code": ".", "budget": {"app_attempts": 3}, "env": {"GATE": str(gate)}}
    made = stack.submit(job("changing", "python train.py", data, **more), base=code)
    stack.reach(made, "PROCESSING")
    deadline = time.monotonic() + 180
    while "read the beginning" not in stack.log(made):
        assert time.monotonic() < deadline, pretty(stack.client.job(made))
        time.sleep(0.5)
    stack.put_object("datasets", "changing/later.bin", bytes(999))
    gate.touch()
    detail = stack.end(made)
    assert detail.state == "FAILED", pretty(detail)
    assert "object 'changing/later.bin' was changed after the job was staged; submit the job again" in detail.reason
    assert len([learner for learner in detail.learners if learner.role == "train"]) == 1  # not tried again


def test_the_second_job_of_a_node_copies_nothing(stack: Stack) -> None:
    stack.put_object("datasets", "shared/a.txt", b"shared by all\n")
    stack.put_object("datasets", "shared/deep/b.txt", b"b\n")
    data = [{"source": "s3://datasets/shared/", "as": "set", "mode": "mount"}]
    first = stack.end(stack.submit(job("first-of-node", LISTS, data)))
    second = stack.end(stack.submit(job("second-of-node", LISTS, data)))
    for detail in (first, second):
        assert detail.state == "COMPLETED", pretty(detail)
        lines = stack.log(detail.id).splitlines()
        assert [line for line in lines if line.endswith("/set/deep/b.txt")]
        assert "shared by all" in lines


def test_the_pages_program_runs_with_the_pages_manifest(stack: Stack, code: Path) -> None:
    blocks = pages.blocks("docs/howto/data.md")
    manifest = yaml.safe_load(next(block.text for block in blocks if block.language == "yaml"))
    program = next(block.text for block in blocks if block.language == "python")
    for number in range(2):
        stack.put_object("datasets", f"shards/{number:02}.tar", shard(number * SAMPLES))
    stack.put_object("datasets", "labels/names.txt", b"0 zero\n")
    (code / "train.py").write_text(program + "print('labels', data.open('labels/names.txt').read())\n")
    detail = stack.end(stack.submit(manifest, base=code))
    assert detail.state == "COMPLETED", pretty(detail)
    log = stack.log(detail.id)
    assert "train/01.tar" in log
    assert "labels b'0 zero" in log


def test_wrong_modes_are_refused_by_name(stack: Stack) -> None:
    suite = {"expectations": [{"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": 1}}]}
    wrong = [
        ({"source": "s3://datasets/x/", "mode": "stream", "expectations": suite}, "streamed data is not read before"),
        ({"source": "pvc://claim/x", "mode": "copy"}, "'copy' is not possible for a claim"),
        (
            {"source": "s3://datasets/x/", "mode": "lazy"},
            "'lazy' is not allowed here; write one of copy, stream, mount",
        ),
    ]
    for data, words in wrong:
        with pytest.raises(UpdraftError, match=words):
            stack.submit(job("wrong", "true", [data]))
