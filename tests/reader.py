"""A user who types the commands of a page at the root of a clone, after `make demo`. Used by system/test_pages.py.

- One line after the other, in a shell. Each has to leave with 0.
- JOB is the job that the block itself submits. In a block without `submit` it is a job that trains, if the block halts,
  resumes or cancels, and else the job of `make demo`, once that has ended.
- A line that follows a job (`--follow`, `-f`) goes on beside the lines after it, as in a second terminal, until the
  block ends or reads what an ended job has stored (`download`).
- A line whose comment begins with "asks" is answered at a terminal.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import termios
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pages import Block

SECONDS = 900  # for one line; long, since others may use the machine
UPDRAFT = ".venv/bin/updraft"
STEERS = re.compile(r"updraft (halt|resume|cancel)\b")
FOLLOWS = re.compile(r"\s(--follow|-f)\b")
KEPT = ("UPDRAFT_TORCH_INDEX",)  # of the platform's variables: what a user of such a machine has set, too
FOREIGN = ("UPDRAFT_", "MAKE", "UV_PROJECT", "VIRTUAL_ENV", "AIRFLOW", "PYTHONPATH")
# A program that can be halted and takes next to nothing while it runs.
TRAINING = """\
step=0
[ ! -e "$CHECKPOINT_DIR/latest" ] || step=$(cat "$CHECKPOINT_DIR/latest/step")
while [ ! -e "$UPDRAFT_STOP_FILE" ]; do
    step=$((step + 1))
    folder=$(printf 'step-%010d' "$step")
    mkdir "$CHECKPOINT_DIR/.tmp-$folder"
    echo "$step" >"$CHECKPOINT_DIR/.tmp-$folder/step"
    mv "$CHECKPOINT_DIR/.tmp-$folder" "$CHECKPOINT_DIR/$folder"
    touch "$CHECKPOINT_DIR/$folder/COMPLETE"
    echo "step $step"
    sleep 2
done
exit 75
"""
MANIFEST = {
    "name": "training",
    "framework": {"name": "shell"},
    "code": ".",
    "command": "sh train.sh",
    "params": {"learning_rate": 0.0002},
    "resources": {"learners": 1, "cpus": 0.25, "memory": "256MiB"},
    "checkpoints": {"every": "2s", "keep": {"latest": 3}},
}


class Shell:
    """Starts commands at the root of a clone, without what the tests have set in the environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        kept = {k: v for k, v in os.environ.items() if k in KEPT or not k.startswith(FOREIGN)}
        self.environment = {**kept, "NO_COLOR": "1"}

    def start(self, line: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", line],
            cwd=self.folder,
            env=self.environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def type(self, line: str) -> str:
        """What the line printed. It has to leave with 0."""
        return ended(line, self.start(line))

    def answer(self, line: str, word: str) -> None:
        """Type a line that asks for a word, and the word; it must not be shown."""
        ours, theirs = pty.openpty()
        try:
            asking = self.start(line, stdin=theirs)
            assert asking.stdout is not None
            # What is typed before the terminal stops showing it is thrown away by whoever asks.
            deadline = time.monotonic() + SECONDS
            while termios.tcgetattr(theirs)[3] & termios.ECHO:
                assert asking.poll() is None, asking.stdout.read()
                assert time.monotonic() < deadline, f"{line} asks nothing"
                time.sleep(0.02)
            os.write(ours, f"{word}\n".encode())
            said = ended(line, asking)
            shown = os.read(ours, 4096) if select.select([ours], [], [], 0)[0] else b""
            assert word not in said + shown.decode()
        finally:
            os.close(ours)
            os.close(theirs)

    def documents(self, command: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.type(f"{UPDRAFT} {command} --json"))
        return found


class Demo:
    """`make demo` in a terminal of its own."""

    def __init__(self, shell: Shell) -> None:
        self.lines: list[str] = []
        self.job = ""
        self._submitted = threading.Event()
        self._process = shell.start("make demo")
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))
            if not self.job and (found := re.match(r"(demo-\S+) submitted$", line)):
                self.job = found[1]
                self._submitted.set()
        self._submitted.set()

    def wait_until_submitted(self) -> None:
        assert self._submitted.wait(SECONDS), self.lines
        assert self.job, "\n".join(self.lines)

    def wait(self) -> None:
        self._reading.join(SECONDS)
        assert self._process.wait(SECONDS) == 0, "\n".join(self.lines)


@dataclass
class Reader:
    """Reads one page."""

    shell: Shell
    demo: Demo
    training: str = ""

    def type_block(self, block: Block) -> None:
        job = self._job_of(block)
        followed: list[tuple[str, subprocess.Popen[str]]] = []
        for written in block.commands:
            line = re.sub(r"\bJOB\b", job, written) if job else written
            command = line.partition("#")[0]
            assert not re.search(r"\bJOB\b", command), f"{written}: no job was submitted before"
            if "updraft download" in command:
                finish(followed)
            if re.search(r"#\s*asks\b", line):
                self.shell.answer(line, "correct-horse")
            elif FOLLOWS.search(command):
                beside = self.shell.start(line)
                followed.append((line, beside))
                job = submitted(line, beside) if "updraft submit" in command else job
            else:
                said = self.shell.type(line)
                job = said.split()[0] if "updraft submit" in command else job
        finish(followed)

    def leave(self) -> None:
        if self.training and not self.shell.documents(f"show {self.training}")["ended"]:
            self.shell.type(f"{UPDRAFT} cancel {self.training}")

    def _job_of(self, block: Block) -> str:
        if "updraft submit" in block.text:
            return ""
        if STEERS.search(block.text):
            return self._job_that_trains()
        if re.search(r"\bJOB\b", block.text):
            self.demo.wait()
        return self.demo.job

    def _job_that_trains(self) -> str:
        """One that has a checkpoint; the same one again until a block has ended it."""
        if not self.training or self.shell.documents(f"show {self.training}")["ended"]:
            folder = self.shell.folder / f"training-{threading.get_ident()}"
            folder.mkdir(exist_ok=True)
            (folder / "train.sh").write_text(TRAINING)
            (folder / "manifest.yaml").write_text(json.dumps(MANIFEST))
            self.training = self.shell.type(f"{UPDRAFT} submit {folder.name}/manifest.yaml").split()[0]
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            shown = self.shell.documents(f"show {self.training}")
            assert not shown["ended"], shown
            # Before its first task it has no checkpoints to ask for.
            if shown["state"] == "PROCESSING" and self.shell.documents(f"checkpoints {self.training}")["checkpoints"]:
                return self.training
            time.sleep(1)
        raise AssertionError(f"{self.training} has saved nothing in {SECONDS} s")


def submitted(line: str, process: subprocess.Popen[str]) -> str:
    """The id that `submit` prints at once; what it prints later stays to be read."""
    assert process.stdout is not None
    said = ""
    for text in process.stdout:
        said += text
        if found := re.match(r"(\S+) submitted$", text):
            return found[1]
    raise AssertionError(f"{line}: named no job\n{said}")


def ended(line: str, process: subprocess.Popen[str]) -> str:
    try:
        said = process.communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"{line}: still runs after {SECONDS} s\n{process.communicate()[0]}") from None
    assert process.returncode == 0, f"{line}: left with {process.returncode}\n{said}"
    return said


def finish(followed: list[tuple[str, subprocess.Popen[str]]]) -> None:
    while followed:
        ended(*followed.pop(0))
