"""Runs elastic trainings of real processes, and audits what they did."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from updraft_learner.elastic.link import request

HANG_SECONDS = 6.0
SETTLE_SECONDS = 3.0
LEARNERS = Path(__file__).with_name("elastic_learner.py")

_forks: list[subprocess.Popen[str]] = []


def forks() -> subprocess.Popen[str]:
    """Return the process that forks the learners of all runs, so that PyTorch is imported once."""
    if not _forks or _forks[-1].poll() is not None:
        _forks.append(
            subprocess.Popen(
                [sys.executable, str(LEARNERS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
            )
        )
        atexit.register(_forks[-1].kill)
    return _forks[-1]


class Run:
    """One job: its coordinator, and learners that tests start, stop and kill. Use it as a context."""

    def __init__(
        self,
        folder: Path,
        *,
        first: int,
        samples: int = 203,
        batch: int = 16,
        epochs: int = 60,
        pace: float = 0.03,
        in_shards: bool = False,
        host: str = "127.0.0.1",
        checkpoints: Path | None = None,
        alive: bool = False,
        **options: Any,
    ) -> None:
        self.folder, self._first, self._options = folder, first, options
        self.samples, self.batch, self.epochs = samples, batch, epochs
        with socket.create_server((host, 0)) as free:
            self.port = int(free.getsockname()[1])
        self.address = f"{host}:{self.port}"
        self._given = {
            "samples": samples,
            "batch": batch,
            "epochs": epochs,
            "pace": pace,
            "hang": HANG_SECONDS,
            "address": self.address,
            "options": options,
            "in_shards": in_shards,
            "checkpoints": str(checkpoints) if checkpoints else "",
            "alive": alive,
        }
        self._watchers: list[subprocess.Popen[bytes]] = []
        self.pids: dict[str, int] = {}
        self.coordinator: subprocess.Popen[bytes] | None = None
        self._errors = (folder / "errors.txt").open("ab")

    def __enter__(self) -> Run:
        self.start_coordinator()
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.pids:
            self.signal(name, signal.SIGKILL)
        for process in (self.coordinator, *self._watchers):
            if process is not None:
                process.kill()
                process.wait()
        self._errors.close()

    def start_coordinator(self) -> None:
        host, _, port = self.address.rpartition(":")
        self.coordinator = subprocess.Popen(
            [sys.executable, "-m", "updraft_learner.elastic.coordinator", "--host", host, "--port", port]
            + ["--state", str(self.folder / "state.json"), "--first", str(self._first)]
            + ["--hang-seconds", str(HANG_SECONDS), "--settle-seconds", str(SETTLE_SECONDS)],
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
        )

    def kill_coordinator(self) -> None:
        assert self.coordinator is not None
        self.coordinator.kill()
        self.coordinator.wait()

    def start(self, *names: str, namespace: str | None = None) -> None:
        """Start learners. `namespace`: the file of their network; None: that of this process."""
        for name in names:
            server = forks()
            assert server.stdin
            assert server.stdout
            given = {**self._given, "folder": str(self.folder), "name": name, "namespace": namespace}
            server.stdin.write(f"{json.dumps(given)}\n")
            self.pids[name] = int(server.stdout.readline())
            if self._given["alive"]:  # what a sidecar does
                command = [sys.executable, "-m", "updraft_learner.elastic.alive", str(self.folder / f"{name}.alive")]
                self._watchers.append(subprocess.Popen(command, stderr=self._errors))

    def signal(self, name: str, number: int) -> None:
        if self.alive(name):
            os.kill(self.pids[name], number)

    def alive(self, name: str) -> bool:
        try:
            return LEARNERS.name in Path(f"/proc/{self.pids[name]}/cmdline").read_text()
        except OSError:
            return False

    def status(self) -> dict[str, Any]:
        deadline = time.monotonic() + 10.0
        while True:
            try:
                return request(self.address, {"type": "status"})
            except OSError:  # it is starting
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def lines(self, name: str) -> list[dict[str, Any]]:
        try:
            text = (self.folder / f"{name}.jsonl").read_text()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def last(self, name: str) -> dict[str, Any]:
        return (self.lines(name) or [{}])[-1]

    def wait(self, what: str, look: Callable[[], Any], seconds: float = 60.0) -> float:
        """Wait until `look` is true; return for how long."""
        began = time.monotonic()
        while not look():
            if time.monotonic() - began > seconds:
                ends = {name: self.last(name) for name in self.pids}
                errors = (self.folder / "errors.txt").read_text(errors="replace")[-3000:]
                raise AssertionError(f"not in {seconds} s: {what}; {ends}; {self.status()}; {errors}")
            time.sleep(0.02)
        return time.monotonic() - began

    def wait_for_group(self, *names: str, steps: int = 2, seconds: float = 60.0) -> float:
        """Wait until exactly these train together and have gone some steps further."""

        def further() -> bool:
            lines = [self.last(name) for name in names]
            return (
                all(line.get("learners") == len(names) for line in lines)
                and len({line["generation"] for line in lines}) == 1
            )

        waited = self.wait(f"{names} train together", further, seconds)
        goal = max(self.last(name)["step"] for name in names) + steps
        for name in names:
            waited += self.wait(f"{name} goes on", lambda name=name: self._at(name) >= goal)  # type: ignore[misc]
        return waited

    def _at(self, name: str) -> float:
        line = self.last(name)
        return float("inf") if "outcome" in line else float(line.get("step", 0))

    def outcomes(self, seconds: float = 60.0) -> dict[str, str]:
        """Let all learners that are alive end, without delay; return how each did."""
        (self.folder / "fast").touch()
        self.wait("all end", lambda: not any(self.alive(name) for name in self.pids), seconds)
        return {name: self.last(name).get("outcome", "killed") for name in self.pids}

    def audit(self) -> int:
        """Check that each sample is used exactly once per epoch in the chain of committed steps, and that those who
        finished hold the same state bit for bit. Return the number of generations in the chain."""
        ends = [end for name in self.pids if (end := self.last(name)).get("outcome") == "finished"]
        assert ends, "nobody finished"
        assert len({end["digest"] for end in ends}) == 1, ends
        assert len({end["rank"] for end in ends}) == len(ends), ends  # one of them writes the result
        parts_of_step = self._options.get("virtual_ranks", 0)
        per_epoch = -(-self.samples // self.batch)
        in_shards = self._given["in_shards"]
        grows = "grow" in self._options or in_shards
        steps = ends[0]["steps"] if grows else per_epoch * self.epochs
        assert {end["steps"] for end in ends} == {steps}
        lines: dict[int, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
        for path in self.folder.glob("*.jsonl"):
            for line in self.lines(path.stem):
                if "ids" in line:
                    lines[line["generation"]][line["step"]].append(line)
        # A generation goes on where the state of the one before ended; what that did beyond it is rolled back.
        generations = sorted(lines)
        begins = [min(lines[generation]) for generation in generations]
        assert begins[0] == 1
        used: dict[int, Counter[int]] = defaultdict(Counter)
        for generation, begin, end in zip(generations, begins, [*begins[1:], steps + 1], strict=True):
            for step in range(begin, end):
                parts = lines[generation][step]
                assert parts, (generation, step)
                learners = {part["learners"] for part in parts}
                epoch = parts[0]["epoch"] if grows else (step - 1) // per_epoch
                size = min(self.batch, self.samples - (step - 1) % per_epoch * self.batch)
                if grows:
                    size = sum(len(part["ids"]) for part in parts)
                assert len(learners) == 1, (generation, step)
                if not in_shards:  # its parts may be smaller, and end one after the other
                    assert len(parts) == min(size, parts_of_step or next(iter(learners))), (generation, step)
                for part in parts:
                    assert part["epoch"] == epoch
                    used[epoch].update(part["ids"])
        once = Counter(range(self.samples))
        assert sorted(used) == list(range(self.epochs))
        assert all(used[epoch] == once for epoch in used)
        return len(generations)
