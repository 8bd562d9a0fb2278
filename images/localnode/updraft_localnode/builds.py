"""Build the environment of an image when a pod asks for it: once, in a process of its own, for all pods that wait.

The builder is a command that takes the image's name, prints its progress (`40 %` in a line counts) and exits with 0
when the environment is ready. Called by `kubelet`; a thread watches each build.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

LIMIT_SECONDS = 1800.0
RETRY_SECONDS = 60.0
TOLD_LINES = 5
_PERCENT = re.compile(r"\b(\d{1,3}) %")


@dataclass
class _Build:
    """One run of the builder. `problem` and `ended` are set when it has ended."""

    percent: int | None = None
    problem: str | None = None
    ended: float | None = None
    lines: list[str] = field(default_factory=list)


class Builds:
    """The builds of one node; thread-safe."""

    def __init__(
        self,
        builder: str,
        *,
        limit_seconds: float = LIMIT_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._command = tuple(shlex.split(builder))
        self._limit_seconds, self._retry_seconds, self._clock = limit_seconds, retry_seconds, clock
        self._builds: dict[str, _Build] = {}
        self._lock = threading.Lock()

    @property
    def possible(self) -> bool:
        return bool(self._command)

    def ask(self, image: str) -> tuple[str, bool]:
        """Return the message to pods that wait for `image`, and whether it is being built. Starts the build if none
        runs; after a failure only when `retry_seconds` have passed."""
        with self._lock:
            build = self._builds.get(image)
            if build is None or (build.ended is not None and self._clock() - build.ended >= self._retry_seconds):
                build = self._builds[image] = _Build()
                threading.Thread(target=self._run, args=(image, build), name=f"build {image}", daemon=True).start()
        name = image.rpartition("/")[2].partition(":")[0]
        if build.ended is None:
            return f"building environment {name}" + ("" if build.percent is None else f": {build.percent} %"), True
        return f"building environment {name} failed: {build.problem or 'it is not there although it was built'}", False

    def _run(self, image: str, build: _Build) -> None:
        try:
            build.problem = self._build(image, build)
        except OSError as exc:
            build.problem = f"{self._command[0]} cannot be run ({exc.strerror})"
        finally:
            build.ended = self._clock()

    def _build(self, image: str, build: _Build) -> str | None:
        """Return why it failed; None if it did not."""
        with subprocess.Popen(
            [*self._command, image],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            late = threading.Timer(self._limit_seconds, process.terminate)
            late.start()
            try:
                assert process.stdout is not None
                for line in process.stdout:
                    build.lines = [*build.lines, line.strip()][-TOLD_LINES:]
                    if found := _PERCENT.search(line):
                        build.percent = min(int(found[1]), 100)
            finally:
                late.cancel()
        if process.returncode == 0:
            return None
        if late.finished.is_set() and process.returncode < 0:
            return f"it was not ready after {self._limit_seconds:g} s"
        return " ".join(line for line in build.lines if line) or f"the builder ended with {process.returncode}"
