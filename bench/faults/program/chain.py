"""A training whose result proves what happened: its state is a hash chain over its steps.

The digest after step N is right only if each step had effect exactly once, in order, whatever was killed and resumed in
between. Each process also writes what it does, with the time, to a file of its own below LAB_WITNESS, which the
platform does not know of. With several learners all compute the same chain and meet at each step, as data-parallel
training does. Standard library only, so that it starts at once. `cnn.py` and `linear.py` train real models beside the
same chain, with what is here.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

JOB = os.environ["TRAINING_ID"]
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ATTEMPT = int(os.environ["UPDRAFT_ATTEMPT"])
CHECKPOINTS, RESULT = Path(os.environ["CHECKPOINT_DIR"]), Path(os.environ["RESULT_DIR"])
STOP_FILE, METRICS_FILE = Path(os.environ["UPDRAFT_STOP_FILE"]), Path(os.environ["UPDRAFT_METRICS_FILE"])
PREEMPTED, PURPOSE = 75, 3
PEER_SECONDS = 120.0
BLOCK_BYTES = 16 << 20
WEIGHT_BYTES = 200_000

stopped = False


class Witness:
    """What this process did, line by line, outside of everything that the platform keeps."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = (folder / f"train-{RANK + 1}-{ATTEMPT}-{os.getpid()}.jsonl").open("a", buffering=1)
        self.tell(event="start")

    def tell(self, **facts: Any) -> None:
        self._file.write(json.dumps({"t": time.time(), **facts}) + "\n")


class Peers:
    """All learners begin a step together; rank 0 says whether to stop."""

    def __init__(self) -> None:
        self._links: list[socket.socket] = []
        if WORLD == 1:
            return
        address = (socket.gethostbyname(os.environ["MASTER_ADDR"]), int(os.environ["MASTER_PORT"]))
        if RANK == 0:
            with socket.create_server(address) as server:
                server.settimeout(PEER_SECONDS)
                self._links = [server.accept()[0] for _ in range(WORLD - 1)]
        else:
            self._links = [_connect(address)]
        for link in self._links:
            link.settimeout(PEER_SECONDS)

    def meet(self, stop: bool) -> bool:
        """Return whether all of them stop now."""
        if RANK == 0:
            asked = [_receive(link) for link in self._links]
            stop = stop or b"1" in asked
            for link in self._links:
                link.sendall(b"1" if stop else b"0")
            return stop
        for link in self._links:
            link.sendall(b"1" if stop else b"0")
        return any(_receive(link) == b"1" for link in self._links) or (WORLD == 1 and stop)


def main() -> None:
    params, witness = begin()
    steps, step_seconds = int(params["steps"]), float(params["step_seconds"])
    step, digest, lineage = goes_on(witness, *restore(witness), steps)
    peers = Peers()
    saved_at, saved_step = time.monotonic(), step
    while step < steps:
        leave = peers.meet(stopped or STOP_FILE.exists())
        due = time.monotonic() - saved_at >= float(params["checkpoint_seconds"])
        if (leave or due) and step > saved_step:
            save(step, digest, lineage, witness)
            saved_at, saved_step = time.monotonic(), step
        if leave:
            witness.tell(event="exit", code=PREEMPTED, step=step)
            print(f"asked to stop: leaves after step {step}", flush=True)
            sys.exit(PREEMPTED)
        time.sleep(step_seconds)
        step += 1
        digest = made_step(step, digest, lineage, witness)
        append_metrics(step, steps)
        fail_on_purpose(step, params, witness)
    save(step, digest, lineage, witness)
    finish(step, digest, lineage, witness)


def begin() -> tuple[dict[str, Any], Witness]:
    """Return the job's parameters, and the witness of this process, which from now on hears signals."""
    params = json.loads(Path(os.environ["UPDRAFT_PARAMS_FILE"]).read_text())
    witness = Witness(Path(os.environ["LAB_WITNESS"]) / JOB)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGUSR1, _eat_memory)
    return params, witness


def goes_on(
    witness: Witness, step: int, digest: str, lineage: list[list[int]], steps: int
) -> tuple[int, str, list[list[int]]]:
    """Note where this process goes on from; the lineage gets an entry of this attempt's own."""
    witness.tell(event="restored", step=step)
    print(f"attempt {ATTEMPT}, learner {RANK + 1} of {WORLD}: goes on after step {step} of {steps}", flush=True)
    if not lineage or lineage[-1][0] != ATTEMPT:
        lineage = [*lineage, [ATTEMPT, step, step]]
    return step, digest, lineage


def made_step(step: int, digest: str, lineage: list[list[int]], witness: Witness) -> str:
    """Note one more step; returns the digest after it."""
    digest = hashlib.sha256(f"{digest}:{step}".encode()).hexdigest()
    lineage[-1][2] = step
    witness.tell(step=step)
    print(f"step {step} {digest[:12]}", flush=True)
    return digest


def fail_on_purpose(step: int, params: dict[str, Any], witness: Witness) -> None:
    if step == params.get("fail_at") and (params.get("fails") == "always" or ATTEMPT == 1):
        witness.tell(event="exit", code=PURPOSE, step=step)
        print("fails on purpose", flush=True)
        sys.exit(PURPOSE)


def finish(step: int, digest: str, lineage: list[list[int]], witness: Witness) -> None:
    result = {"job": JOB, "steps": step, "digest": digest, "lineage": lineage, "attempt": ATTEMPT}
    write(RESULT / "result.json", json.dumps(result))
    witness.tell(event="exit", code=0, step=step)
    print(f"done {digest}", flush=True)


def restore(witness: Witness) -> tuple[int, str, list[list[int]]]:
    """Step, digest and lineage (attempt, from, to) of the checkpoint that `latest` points to."""
    folder = CHECKPOINTS / "latest"
    if not folder.exists():
        return 0, hashlib.sha256(JOB.encode()).hexdigest(), []
    try:
        raw = json.loads((folder / "state.json").read_text())
        whole = (folder / "weights.bin").read_bytes() == weights(raw["digest"])
    except (OSError, ValueError, KeyError):
        whole = False
    if not whole:
        witness.tell(event="damaged")
        sys.exit("the checkpoint that was laid here is damaged")
    return int(raw["step"]), str(raw["digest"]), [list(map(int, part)) for part in raw["lineage"]]


def save(
    step: int,
    digest: str,
    lineage: list[list[int]],
    witness: Witness,
    write_more: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Write a folder aside on rank 0, rename it, mark it complete and point `latest` to it."""
    if RANK != 0:
        return
    name = f"step-{step:010d}"
    aside, target = CHECKPOINTS / f".tmp-{name}-{os.getpid()}", CHECKPOINTS / name
    if (target / "COMPLETE").exists():
        return
    shutil.rmtree(target, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        (aside / "state.json").write_text(json.dumps({"step": step, "digest": digest, "lineage": lineage}))
        (aside / "weights.bin").write_bytes(weights(digest))
        write_more(aside)
        aside.rename(target)
        (target / "COMPLETE").touch()
    except OSError as exc:  # a full disk: the training goes on, the next checkpoint may do
        shutil.rmtree(aside, ignore_errors=True)
        witness.tell(event="not saved", step=step)
        print(f"checkpoint of step {step} was not written: {exc.strerror}", flush=True)
        return
    link = CHECKPOINTS / f".tmp-latest-{os.getpid()}"
    link.unlink(missing_ok=True)
    link.symlink_to(name)
    os.replace(link, CHECKPOINTS / "latest")
    witness.tell(event="saved", step=step)


def weights(digest: str) -> bytes:
    """Return bytes to send and to damage."""
    return hashlib.shake_128(digest.encode()).digest(WEIGHT_BYTES)


def append_metrics(step: int, steps: int) -> None:
    points = {"chain": step, "loss": 1.0 / step}
    lines: list[dict[str, Any]] = [{"step": step, "metrics": points}, {"progress": {"step": step, "total": steps}}]
    text = "".join(json.dumps({"t": time.time(), **line}) + "\n" for line in lines)
    try:
        descriptor = os.open(METRICS_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
    except OSError as exc:
        print(f"metrics of step {step} were not written: {exc.strerror}", flush=True)


def write(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # learners of a test share the folder
    aside.write_text(text)
    os.replace(aside, path)


def _connect(address: tuple[str, int]) -> socket.socket:
    deadline = time.monotonic() + PEER_SECONDS
    while True:
        try:
            return socket.create_connection(address, timeout=5)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _receive(link: socket.socket) -> bytes:
    data = link.recv(1)
    if not data:
        raise ConnectionResetError("Connection closed by peer")
    return data


def _stop(_number: int, _frame: object) -> None:
    global stopped
    stopped = True


def _eat_memory(_number: int, _frame: object) -> None:
    """Take memory until the limit of the container is reached; the lab asks for it."""
    held = []
    while True:
        held.append(bytearray(os.urandom(1024) * (BLOCK_BYTES // 1024)))
        time.sleep(0.02)


if __name__ == "__main__":
    main()
