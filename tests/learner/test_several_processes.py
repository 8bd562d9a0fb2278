"""The example of FSDP, started by the launcher as two learners with two processes each, with real PyTorch."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs the PyTorch learner environment")

from updraft_learner import checkpoint_format as fmt
from updraft_learner.launcher_file import launcher_file

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]
JOBS = Path(__file__).parents[2] / "jobs"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def learner(root: Path, rank: int, port: int, launcher: str) -> subprocess.Popen[str]:
    """Start the launcher, or torchrun without an option, as the pod of a learner does, with folders of its own."""
    for name in ("result", "checkpoints", "io"):
        (root / name).mkdir(parents=True)
    (root / "io" / "params.json").write_text(json.dumps({"epochs": 2}))
    file = root / "launcher.pyz"
    file.write_bytes(launcher_file())
    program = ["train.py", "--data", "digits/digits.csv"]
    command = {
        "launcher": [
            "-I",
            "-S",
            str(file),
            "--processes=2",
            "--stop-seconds=20",
            shlex.join([sys.executable, *program]),
        ],
        "torchrun": ["-m", "torch.distributed.run", *program],
    }[launcher]
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ} | {
        "DATA_DIR": str(JOBS / "data"),
        "RESULT_DIR": str(root / "result"),
        "CHECKPOINT_DIR": str(root / "checkpoints"),
        "JOB_STATE_DIR": str(root / "io"),
        "UPDRAFT_METRICS_FILE": str(root / "io" / "metrics.jsonl"),
        "UPDRAFT_PARAMS_FILE": str(root / "io" / "params.json"),
        "UPDRAFT_ATTEMPT": "1",
        "LEARNER_ID": str(rank + 1),
        "NUM_LEARNERS": "2",
        "NODE_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PET_NNODES": "2",
        "PET_NODE_RANK": str(rank),
        "PET_NPROC_PER_NODE": "2",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(port),
        "GPU_COUNT": "0",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=JOBS / "digits-fsdp",
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("launcher", ["launcher", "torchrun"])
def test_fsdp_on_two_learners_with_two_processes_each(launcher: str, tmp_path: Path) -> None:
    port = free_port()
    started = [learner(tmp_path / str(rank), rank, port, launcher) for rank in range(2)]
    try:
        logs = [process.communicate(timeout=240)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], "\n".join(logs)
    for rank in range(4):
        prefix = f"[rank{rank}]: " if launcher == "launcher" else ""
        assert f"{prefix}rank {rank} of 4 holds " in logs[rank // 2]

    # Rank 0 alone has metrics; each learner has a part of one checkpoint, with the shards of its own two processes.
    lines = [json.loads(line) for line in (tmp_path / "0" / "io" / "metrics.jsonl").read_text().splitlines()]
    assert len([line for line in lines if "metrics" in line]) == 2
    assert not (tmp_path / "1" / "io" / "metrics.jsonl").exists()
    saved = [fmt.complete_checkpoints(tmp_path / str(rank) / "checkpoints") for rank in range(2)]
    assert saved[0][-1].name == saved[1][-1].name
    shards = [sorted(file.name for file in found[-1].glob("*.distcp")) for found in saved]
    assert shards == [["__0_0.distcp", "__1_0.distcp"], ["__2_0.distcp", "__3_0.distcp"]]
