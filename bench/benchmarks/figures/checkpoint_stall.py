"""How long a training step waits for a checkpoint, against a save that does everything before it returns.

`bench/programs/checkpoint_stall.py` runs in the PyTorch learner's environment; here is the S3 server it uploads to.
"""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
    return measured(
        rounds, {name: run_program(rounds, more) for name, more in {"": (), "optimizer": ("--optimizer",)}.items()}
    )


def run_program(rounds: int, more: Sequence[str]) -> dict[str, Any]:
    """Return what the program prints at its end."""
    with tempfile.TemporaryDirectory(prefix="updraft-bench-", dir=_disk()) as folder, s3_server(Path(folder)) as url:
        done = subprocess.run(
            [str(learner_python()), str(PROGRAM), "--rounds", str(rounds), "--megabytes", str(MEGABYTES)]
            + ["--upload-to", f"{url}/bench", "--folder", folder, *more],
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "HOME": folder, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
    if done.returncode != 0:
        raise BenchmarkError(f"the checkpoint program failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(rounds: int, programs: Mapping[str, dict[str, Any]]) -> Measured:
    """Compute the figure. `programs`: what each program printed, by what its state holds besides parameters."""
    comparisons: list[Comparison] = []
    values: list[Value] = []
    for name, found in programs.items():
        with_it = f", with {name} state" if name else ""
        sides = {"b": "synchronous save", "unit": "s", "budget": BUDGET}
        comparisons += [
            Comparison(
                name=f"Checkpoint stall{with_it}",
                a="Checkpointer.save",
                pairs=tuple(zip(found["background"], found["synchronous"], strict=True)),
                **sides,
            ),
            Comparison(
                name=f"Stall and slower steps while it is written{with_it}",
                a="training time lost to Checkpointer.save",
                pairs=tuple(zip(found["background_lost"], found["synchronous"], strict=True)),
                **sides,
            ),
        ]
        values += [
            Value(name=f"First save, which makes the buffers{with_it}", unit="s", samples=(found["first"],)),
            Value(name=f"Background write{with_it}", unit="s", samples=tuple(found["write"])),
        ]
        for part in found["synchronous_parts"][0]:
            samples = tuple(one[part] for one in found["synchronous_parts"])
            values.append(Value(name=f"Synchronous save{with_it}: {part}", unit="s", samples=samples))
    sizes = {f"megabytes{f'_{name}' if name else ''}": round(f["bytes"] / 1e6, 1) for name, f in programs.items()}
    return Measured(
        settings={"rounds": rounds, **sizes},
        comparisons=tuple(comparisons),
        values=tuple(values),
        notes=(
            "The state is a model's parameters, and with optimizer state AdamW's too, of about the same size in all. "
            "The training goes on on one thread: with steps of matrix products, and with optimizer state with whole "
            "steps of AdamW.",
            "A stall is the time in `due()` and `save()`. The synchronous save writes with torch.save, flushes the "
            "file to the disk, reads it for its SHA-256 and uploads it to an S3 server on the same machine.",
            "The other comparison adds what the steps lose while the background thread writes: the time of the steps "
            "beyond as many at the pace measured right before and right after.",
        ),
    )


def _disk() -> Path:
    """Return a folder on the checkout's disk: /tmp may be memory."""
    folder = REPOSITORY / ".updraft"
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def s3_server(folder: Path, *more: str, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Start rclone's S3 server over `folder`/s3 on a free loopback port.

    Args:
        more: Options of rclone.
        environment: Of rclone, such as its keys; without it there are no credentials.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    root = folder / "s3"
    (root / "bench").mkdir(parents=True, exist_ok=True)
    command = [str(bin_folder() / "rclone"), "serve", "s3", str(root), "--addr", f"127.0.0.1:{port}"]
    command += ["--vfs-cache-mode", "off", "--no-modtime", "--config", str(folder / "rclone.conf"), *more]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
