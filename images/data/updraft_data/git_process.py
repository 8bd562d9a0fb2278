"""Run the `git` binary in one folder, and end it if what it fetches exceeds a limit. Called by `git`."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from updraft_learner.prepare.errors import SourceError
from updraft_learner.trees import megabytes

TIMEOUT_SECONDS = 600
LOOK_SECONDS = 0.2
CHUNK_BYTES = 64 * 1024
KEPT_BYTES = 64 * 1024  # the end of git's output; a server decides what git prints
ENTRY_BYTES = 8 * 1024  # the longest entry of a listing: a path, with git's facts about it
PROGRESS_SECONDS = 5.0
OVERHEAD_BYTES = 1_000_000  # names, commits, headers: what a pack contains besides the content of files

_SAFE = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "submodule.recurse=false")
# Packs are not unpacked, so their size is known during the fetch; git does nothing in the background.
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
    """The fetched data exceeded the limit; git was ended."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.size_bytes = size_bytes


class Git:
    """Git in one folder. `Git(...)("fetch", ...)` runs one command and watches a fetch. Raises TooLarge or
    SourceError."""

    def __init__(
        self,
        url: str,
        folder: Path,
        environment: Mapping[str, str],
        secret_name: str | None,
        limit_bytes: int,
        say: Callable[[str], None],
        progress_seconds: float = PROGRESS_SECONDS,
    ) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._url, self._environment, self._secret_name = url, dict(environment), secret_name
        self._limit_bytes, self._say, self._progress_seconds = limit_bytes, say, progress_seconds

    def __call__(self, *arguments: str, watched: bool = True) -> str:
        code, output, errors = self._run(arguments, watched)
        if code != 0:
            raise self._error(errors)
        return output.strip()

    def succeeds(self, *arguments: str) -> bool:
        """Run git; return False when the server does not have what was asked for. Raises for any other failure."""
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

    def entries(self, *arguments: str) -> Generator[str, None, None]:
        """Yield the entries of a listing with `-z` while git prints them; none is kept.

        Close the iterator to end git early. Raises SourceError for a failure, and for an entry of more than
        ENTRY_BYTES.
        """
        errors = bytearray()
        with self._process(arguments) as process:
            rest = b""
            for chunk in self._chunks(process, errors, watched=False):
                *whole, rest = (rest + chunk).split(b"\0")
                for entry in (*whole, rest):
                    if len(entry) > ENTRY_BYTES:
                        raise SourceError(
                            "limit", f"code: {self._url} has a path of more than {ENTRY_BYTES} bytes; use shorter ones"
                        )
                yield from (entry.decode(errors="replace") for entry in whole)
            if process.returncode != 0:
                raise self._error(errors.decode(errors="replace"))

    def _run(self, arguments: tuple[str, ...], watched: bool) -> tuple[int, str, str]:
        if arguments[0] == "fetch":
            arguments = ("fetch", "--quiet", "--no-recurse-submodules", *arguments[1:])
        output, errors = bytearray(), bytearray()
        with self._process(arguments) as process:
            for chunk in self._chunks(process, errors, watched):
                _keep_the_end(output, chunk)
        if watched:
            self._check_size()
        return process.returncode, output.decode(errors="replace"), errors.decode(errors="replace")

    @contextmanager
    def _process(self, arguments: tuple[str, ...]) -> Iterator[subprocess.Popen[bytes]]:
        """Start git; it is ended with its helpers when the block is left before it ends."""
        try:
            process = subprocess.Popen(
                ["git", *_SAFE, *_QUIET, *arguments],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # so that its helpers can be ended with it
            )
        except FileNotFoundError as exc:
            raise SourceError(
                "unavailable",
                "code: the program `git` is not in the image that prepares code (UPDRAFT_DATA_IMAGE); add it",
            ) from exc
        assert process.stdout is not None
        assert process.stderr is not None
        with process.stdout, process.stderr:
            try:
                yield process
            finally:
                if process.returncode is None:  # not reaped, so the pid is still its own
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def _chunks(self, process: subprocess.Popen[bytes], errors: bytearray, watched: bool) -> Iterator[bytes]:
        """Yield what it writes to its output, and collect the end of what it writes to its errors, until it ends."""
        began = told = looked = time.monotonic()
        with selectors.DefaultSelector() as selector:
            for pipe in (process.stdout, process.stderr):
                assert pipe is not None
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map() or process.poll() is None:
                if selector.get_map():
                    ready = [key.fileobj for key, _ in selector.select(LOOK_SECONDS)]
                else:
                    ready = []
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(LOOK_SECONDS)
                for pipe in (p for p in (process.stdout, process.stderr) if p in ready):
                    assert pipe is not None
                    chunk = os.read(pipe.fileno(), CHUNK_BYTES)
                    if not chunk:
                        selector.unregister(pipe)
                    elif pipe is process.stdout:
                        yield chunk
                    else:
                        _keep_the_end(errors, chunk)
                now = time.monotonic()
                if now - began > TIMEOUT_SECONDS:
                    raise SourceError(
                        "unavailable", f"code: {self._url} took longer than {TIMEOUT_SECONDS} seconds; try again"
                    )
                if now - looked < LOOK_SECONDS:
                    continue
                looked = now
                size_bytes = self._check_size() if watched else 0
                if now - told >= self._progress_seconds:
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


def _keep_the_end(kept: bytearray, more: bytes) -> None:
    kept += more
    del kept[:-KEPT_BYTES]


def pack_bytes(folder: Path) -> int:
    """Return the size of what was fetched into a repository, also while it comes."""
    total = 0
    for path in (folder / ".git" / "objects" / "pack").glob("*pack*"):
        if path.suffix == ".pack" or path.name.startswith("tmp_pack"):
            with suppress(FileNotFoundError):  # it was renamed, because it is complete
                total += path.stat().st_size
    return total
