"""How long a training step waits for a checkpoint, against a save that does everything before it returns.

`bench/programs/checkpoint_stall.py` runs in the PyTorch learner's environment; here is the S3 server it uploads to.
"""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.machine import REPOSITORY
from benchmarks.options import Options
from benchmarks.results import Budget, Comparison, Measured, Value
from benchmarks.stack import BenchmarkError, learner_python
from updraft.stack.layout import bin_folder

NAME, TITLE = "checkpoint_stall", "Stall of a training by a checkpoint"
BUDGET = Budget(at="most", value=0.05)
PROGRAM = REPOSITORY / "bench" / "programs" / "checkpoint_stall.py"
MEGABYTES = 210


def measure(options: Options) -> Measured:
    rounds = options.pairs(9, 2)
    with tempfile.TemporaryDirectory(prefix="updraft-bench-", dir=_disk()) as folder, s3_server(Path(folder)) as url:
        done = subprocess.run(
            [str(learner_python()), str(PROGRAM), "--rounds", str(rounds), "--megabytes", str(MEGABYTES)]
            + ["--upload-to", f"{url}/bench", "--folder", folder],
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "HOME": folder, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
    if done.returncode != 0:
        raise BenchmarkError(f"the checkpoint program failed:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    parts = {part: tuple(one[part] for one in found["synchronous_parts"]) for part in found["synchronous_parts"][0]}
    pairs = tuple(zip(found["background"], found["synchronous"], strict=True))
    lost = tuple(zip(found["background_lost"], found["synchronous"], strict=True))
    return Measured(
        settings={"rounds": rounds, "megabytes": round(found["bytes"] / 1e6, 1), "parameters": found["parameters"]},
        comparisons=(
            Comparison(
                name="Checkpoint stall",
                unit="s",
                a="Checkpointer.save",
                b="synchronous save",
                pairs=pairs,
                budget=BUDGET,
            ),
            Comparison(
                name="Stall and slower steps while it is written",
                unit="s",
                a="training time lost to Checkpointer.save",
                b="synchronous save",
                pairs=lost,
            ),
        ),
        values=(
            Value(name="First save, which makes the buffers", unit="s", samples=(found["first"],)),
            Value(name="Background write", unit="s", samples=tuple(found["write"])),
            *(Value(name=f"Synchronous save: {part}", unit="s", samples=s) for part, s in parts.items()),
        ),
        notes=(
            "The state is a model's parameters. The training goes on with steps of matrix products on one thread.",
            "A stall is the time in `due()` and `save()`. The synchronous save writes with torch.save, flushes the "
            "file to the disk, reads it for its SHA-256 and uploads it to an S3 server on the same machine.",
            "The second comparison adds what the steps lose while the background thread writes: the time of the steps "
            "beyond as many at the usual pace.",
        ),
    )


def _disk() -> Path:
    """A folder on the checkout's disk: /tmp may be memory."""
    folder = REPOSITORY / ".updraft"
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """rclone's S3 server on a free loopback port, open to whoever reaches it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    root = folder / "s3"
    (root / "bench").mkdir(parents=True)
    command = [str(bin_folder() / "rclone"), "serve", "s3", str(root), "--addr", f"127.0.0.1:{port}"]
    command += ["--vfs-cache-mode", "off", "--no-modtime", "--config", str(folder / "rclone.conf")]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if server.poll() is not None:
                raise BenchmarkError("rclone ended at once")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=10)
