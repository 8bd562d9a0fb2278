"""Runs the `git` binary in one folder, and ends it when what it fetches passes a limit. Called by `git`."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from updraft_learner.prepare.errors import SourceError
from updraft_learner.trees import megabytes

TIMEOUT_SECONDS = 600
LOOK_SECONDS = 0.2
PROGRESS_SECONDS = 5.0
OVERHEAD_BYTES = 1_000_000  # names, commits, headers: what a pack holds beside the content of files

_SAFE = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "submodule.recurse=false")
# Packs stay packs, whose size is known while they come; nothing goes on in the background.
_QUIET = ("-c", "fetch.unpackLimit=1", "-c", "gc.auto=0", "-c", "maintenance.auto=false")
_AWAY = (
    "could not resolve host",
    "connection refused",
    "connection reset",
    "couldn't connect",
    "failed to connect",
    "timed out",
    "early eof",
    "the requested url returned error: 5",
)
_DENIED = (
    "authentication failed",
    "access denied",
    "could not read password",
    "could not read username",
    "the requested url returned error: 401",
    "the requested url returned error: 403",
)


class TooLarge(Exception):
    """What was fetched passed the limit; git was ended."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.size_bytes = size_bytes


class Git:
    """`Git(...)("fetch", ...)` runs one command; a fetch is watched. Raises TooLarge or SourceError."""

    def __init__(
        self,
        url: str,
        folder: Path,
        environment: Mapping[str, str],
        secret_name: str | None,
        limit_bytes: int,
        say: Callable[[str], None],
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._url, self._environment, self._secret_name = url, dict(environment), secret_name
        self._limit_bytes, self._say = limit_bytes, say

    def __call__(self, *arguments: str, watched: bool = True) -> str:
        code, output, errors = self._run(arguments, watched)
        if code != 0:
            raise self._error(errors)
        return output.strip()

    def succeeds(self, *arguments: str) -> bool:
        """False when the server has not what was asked for. Raises for any other failure."""
        code, _, errors = self._run(arguments, watched=True)
        if code == 0:
            return True
        text = errors.lower()
        if any(sign in text for sign in (*_AWAY, *_DENIED)) or ("repository" in text and "not" in text):
            raise self._error(errors)
        return False

    def output(self, *arguments: str) -> str | None:
        code, output, _ = self._run(arguments, watched=False)
        return output.strip() if code == 0 else None

    def _run(self, arguments: tuple[str, ...], watched: bool) -> tuple[int, str, str]:
        if arguments[0] == "fetch":
            arguments = ("fetch", "--quiet", "--no-recurse-submodules", *arguments[1:])
        try:
            process = subprocess.Popen(
                ["git", *_SAFE, *_QUIET, *arguments],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # its helpers end with it
            )
        except FileNotFoundError as exc:
            raise SourceError(
                "unavailable",
                "code: the program `git` is not in the image that prepares code (UPDRAFT_DATA_IMAGE); add it",
            ) from exc
        try:
            output, errors = self._wait(process, watched)
        except BaseException:
            if process.returncode is None:  # not reaped, so the number is still its own
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
            raise
        if watched:
            self._check_size()
        return process.returncode, output, errors

    def _wait(self, process: subprocess.Popen[str], watched: bool) -> tuple[str, str]:
        began = told = time.monotonic()
        while True:
            try:
                return process.communicate(timeout=LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                now = time.monotonic()
            if now - began > TIMEOUT_SECONDS:
                raise SourceError(
                    "unavailable", f"code: {self._url} took longer than {TIMEOUT_SECONDS} seconds; try again"
                )
            size_bytes = self._check_size() if watched else 0
            if now - told >= PROGRESS_SECONDS:
                told = now
                self._say(f"{megabytes(size_bytes)} fetched" if watched else "laying the files out")

    def _check_size(self) -> int:
        found = pack_bytes(self.folder)
        if found > self._limit_bytes + OVERHEAD_BYTES:
            raise TooLarge(found)
        return found

    def _error(self, stderr: str) -> SourceError:
        line = next((part for part in reversed(stderr.strip().splitlines()) if part.strip()), "git failed")[:300]
        text = stderr.lower()
        if any(sign in text for sign in _DENIED):
            used = (
                f"secret {self._secret_name!r} was used" if self._secret_name else "no secret was named in code_secret"
            )
            return SourceError(
                "data", f"code: {self._url}: access is denied, or the repository does not exist; {used} ({line})"
            )
        if any(sign in text for sign in _AWAY):
            return SourceError("unavailable", f"code: {self._url} cannot be reached ({line}); try again")
        return SourceError("data", f"code: {self._url} cannot be fetched ({line})")


def pack_bytes(folder: Path) -> int:
    """Size of what was fetched into a repository, also while it comes."""
    total = 0
    for path in (folder / ".git" / "objects" / "pack").glob("*pack*"):
        if path.suffix == ".pack" or path.name.startswith("tmp_pack"):
            with suppress(FileNotFoundError):  # renamed when it is complete
                total += path.stat().st_size
    return total
