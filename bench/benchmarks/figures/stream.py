"""How fast a program reads streamed data, against a copy to the disk and against local files; and how soon a job begins
whose data another job of the node has copied."""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.figures.checkpoint_stall import s3_server
from benchmarks.machine import REPOSITORY
from benchmarks.options import Options
from benchmarks.results import Budget, Comparison, Measured, Value
from benchmarks.stack import BenchmarkError
from updraft_learner import contract

NAME, TITLE = "stream", "Streamed data"
PROGRAM = REPOSITORY / "bench" / "programs" / "stream_data.py"
FILES, FILE_MEGABYTES, QUICK_MEGABYTES = 6, 64, 8
LINK = "119M"  # bytes per second of a link of 1 Gbit/s
BUDGET = Budget(at="least", value=0.9)


class Place:
    """The data, and what reads it."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self.folder, self.bytes = folder, FILES * megabytes * 1_000_000
        self.key, self.secret, self.token = secrets.token_hex(8), secrets.token_hex(16), secrets.token_hex(16)
        objects = folder / "s3" / "bench" / "data"
        objects.mkdir(parents=True)
        lines = []
        for number in range(FILES):
            content = random.Random(number).randbytes(megabytes * 1_000_000)
            (objects / f"{number}.bin").write_bytes(content)
            lines.append(f"{number}.bin {hashlib.sha256(content).hexdigest()} {len(content)}\n")
        (folder / "digests").write_text("".join(lines))
        self.objects = objects
        self._number = 0

    def new_folder(self) -> Path:
        self._number += 1
        made = self.folder / f"place-{self._number}"
        made.mkdir()
        return made

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return {
            **kept,
            "BENCH_S3_KEY": self.key,
            "BENCH_S3_SECRET": self.secret,
            "BENCH_DIGESTS": str(self.folder / "digests"),
            "DATA_DIR": str(self.folder / "none"),
            contract.ENDPOINT_TOKEN_ENV: self.token,
        }

    def run(self, way: str, store: str, folder: Path, more: Mapping[str, str] | None = None) -> float:
        """Return the megabytes per second of one pass over all data."""
        done = subprocess.run(
            [sys.executable, str(PROGRAM), way, "--store", store, "--folder", str(folder)],
            env={**self.environment, **(more or {})},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode != 0:
            raise BenchmarkError(f"reading by {way} failed:\n{done.stderr[-2000:]}")
        return self.bytes / 1e6 / float(done.stdout)

    @contextmanager
    def endpoint(self, store: str, folder: Path, limit: int = 1 << 40) -> Iterator[tuple[dict[str, str], list[int]]]:
        """Yield the program's environment, and a list that holds the fetched bytes once the endpoint has ended."""
        fetched: list[int] = []
        server = subprocess.Popen(
            [sys.executable, str(PROGRAM), "serve", "--store", store, "--folder", str(folder), "--limit", str(limit)],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdout is not None
        assert server.stdin is not None
        try:
            address = server.stdout.readline().strip()
            if not address:
                raise BenchmarkError("the endpoint did not start")
            yield {contract.DATA_URL_ENV: address}, fetched
            server.stdin.close()
            fetched.append(int(server.stdout.readline()))
        finally:
            server.kill()
            server.wait()

    @contextmanager
    def store(self, *more: str) -> Iterator[str]:
        """Start an S3 server over the data."""
        environment = {**self.environment, "RCLONE_AUTH_KEY": f'"{self.key},{self.secret}"'}
        with s3_server(self.folder, *more, environment=environment) as address:
            yield address


def measure(options: Options) -> Measured:
    pairs = options.pairs(5, 1)
    megabytes = QUICK_MEGABYTES if options.quick else FILE_MEGABYTES
    scratch = REPOSITORY / ".updraft"
    scratch.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="updraft-bench-", dir=scratch) as folder:
        place = Place(Path(folder), megabytes)
        slow, fast = [], []
        with place.store("--bwlimit", LINK) as store:
            slow = [cold_pair(place, store) for _ in range(pairs)]
        with place.store() as store:
            fast = [cold_pair(place, store) for _ in range(pairs)]
            warm, local = warm_pairs(place, store, pairs)
            starts = [second_start(place, store) for _ in range(pairs)]
            hits = [kept(place, store) for _ in range(min(pairs, 3))]
    return Measured(
        settings={"files": FILES, "megabytes_each": megabytes, "pairs": pairs},
        comparisons=(
            Comparison(
                name="First pass over a link of 1 Gbit/s", unit="MB/s", a="streamed", b="copied to the disk",
                pairs=tuple(slow), budget=BUDGET,
            ),
            Comparison(
                name="First pass, object store on the same machine", unit="MB/s", a="streamed", b="copied to the disk",
                pairs=tuple(fast),
            ),
            Comparison(
                name="Second pass, all in the cache, against the slower link", unit="MB/s", a="streamed from the cache",
                b="copied over a link of 1 Gbit/s", pairs=tuple(zip(warm, [b for _, b in slow], strict=True)),
                budget=BUDGET,
            ),
            Comparison(
                name="Data of the second job on a node is in place", unit="s", a="mounted", b="copied to the disk",
                pairs=tuple(starts),
            ),
            Comparison(
                name="Second pass, all in the cache", unit="MB/s", a="streamed from the cache",
                b="local files in the page cache", pairs=tuple(zip(warm, local, strict=True)),
            ),
        ),
        values=(
            Value(
                name="Share of later passes that a cache of a third of the data serves",
                unit="",
                samples=tuple(hits),
            ),
        ),
        notes=(
            "One process reads all files from the beginning to the end, 1 MB at a time, with `updraft_learner.data`; "
            "the endpoint is another process, as in a pod.",
            "The copy is what `mode: copy` does before the program starts: four files at a time, verified and written "
            "to the disk. The program has to read the files after that, which is not counted.",
            "The link is rclone's own limit (`--bwlimit`); the other rows have none, and the CPU is the limit: "
            "the object store, the endpoint and the program share them.",
        ),
    )  # fmt: skip


def cold_pair(place: Place, store: str) -> tuple[float, float]:
    """Return the speeds of a stream whose cache is empty, and of a copy."""
    cache, copied = place.new_folder(), place.new_folder()
    with place.endpoint(store, cache) as (environment, _):
        streamed = place.run("stream", store, cache, environment)
    shutil.rmtree(cache)
    speed = place.run("copy", store, copied)
    shutil.rmtree(copied)
    return streamed, speed


def warm_pairs(place: Place, store: str, pairs: int) -> tuple[list[float], list[float]]:
    cache = place.new_folder()
    streamed, local = [], []
    with place.endpoint(store, cache) as (environment, _):
        place.run("stream", store, cache, environment)
        for _ in range(pairs):
            streamed.append(place.run("stream", store, cache, environment))
            local.append(place.run("local", store, place.objects))
    shutil.rmtree(cache)
    return streamed, local


def second_start(place: Place, store: str) -> tuple[float, float]:
    """Return the seconds until the data is in place: if the node has it, and if it is copied."""
    cache, copied = place.new_folder(), place.new_folder()
    place.run("mount", store, cache)
    mounted = place.run("mount", store, cache)
    speed = place.run("copy", store, copied)
    shutil.rmtree(cache)
    shutil.rmtree(copied)
    return place.bytes / 1e6 / mounted, place.bytes / 1e6 / speed


def kept(place: Place, store: str) -> float:
    """Return the share of three later passes that does not come from the object store."""
    cache = place.new_folder()
    with place.endpoint(store, cache, place.bytes // 3) as (environment, first):
        place.run("stream", store, cache, environment)
    with place.endpoint(store, cache, place.bytes // 3) as (environment, later):
        for _ in range(3):
            place.run("stream", store, cache, environment)
    shutil.rmtree(cache)
    assert first[0] >= place.bytes
    return 1 - later[0] / (3 * place.bytes)
