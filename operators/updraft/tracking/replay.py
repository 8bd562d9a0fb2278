"""Send a learner's record to its MLflow run after its pod has ended: everything that the sidecar could not send in
time.

The record in the object store is the sidecar's own journal, and the sidecar's own forwarder reads it. So each point
arrives once, even if this runs twice or the sidecar had sent some points. The program decides how large the record is,
and this occupies a worker's slot: what exceeds the limits below stays in the record and is reported. Called by
`updraft.controller.replay`.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from updraft.exceptions import UnavailableError
from updraft.settings import Settings
from updraft_learner.mlflow_rest import Answer, ServerUnavailable, TrackingServer, artifact_path
from updraft_learner.pod import MlflowCredentials
from updraft_learner.record.forward import Forwarder
from updraft_learner.record.journal import Journal
from updraft_learner.record.report import Warnings
from updraft_learner.record.spool import CHILD, RUN, Spool
from updraft_learner.store import ObjectStore
from updraft_learner.trees import megabytes

CHUNK = re.compile(r"\d+\.jsonl")
ARTIFACT = re.compile(r"(\d+)\.(data|json)")
LIMIT_SECONDS = 300.0  # for all learners of a job; MLflow takes one to three million points in this time
COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class ReplayLimits:
    """The part of one learner's record that is sent to MLflow; the rest stays in the object store.

    Args:
        chunk_bytes: The newest chunks: about two million points, which are parsed twice.
        points: New points.
        history_points: Points that MLflow already has: they are held in memory, 300 MB of them.
        artifact_bytes: All artifacts; the worker's disk holds one at a time.
        facts_bytes: The document that says where an artifact belongs.
        disk_reserve_bytes: The space that stays free on the worker's disk.
        copies: The number of chunks that are copied at the same time.
    """

    chunk_bytes: int = 256 << 20
    points: int = 1_000_000
    history_points: int = 2_000_000
    artifact_bytes: int = 10 << 30
    facts_bytes: int = 64 << 10
    disk_reserve_bytes: int = 512 << 20
    copies: int = 8


LIMITS = ReplayLimits()


class Enough(Exception):
    """A limit is reached; the message says which one."""


@dataclass(frozen=True)
class Replayed:
    """The number of points and artifacts that were sent, and what could not be sent."""

    points: int
    artifacts: int
    warnings: tuple[str, ...] = ()
    left: tuple[str, ...] = ()  # one sentence for each part that stays in the object store


class TimeBudget:
    """The time for all learners of a job together."""

    def __init__(self, seconds: float = LIMIT_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._end, self._seconds = clock, clock() + seconds, seconds

    def check(self) -> None:
        if self._clock() > self._end:
            raise Enough(f"it takes longer than {self._seconds:g} s")

    def half(self) -> TimeBudget:
        """Return the first half of the remaining time."""
        return TimeBudget(max(0.0, self._end - self._clock()) / 2, self._clock)


class BoundedServer(TrackingServer):
    """A tracking server that raises Enough instead of a request once the time or the memory for answers is used up."""

    def __init__(
        self, credentials: MlflowCredentials, run_id: str, deadline: TimeBudget, limit_history_points: int
    ) -> None:
        super().__init__(credentials, run_id=run_id)
        self._deadline, self._history_points, self._limit = deadline, 0, limit_history_points

    def call(
        self, method: str, path: str, *, body: Mapping[str, Any] | None = None, query: Mapping[str, Any] | None = None
    ) -> Answer:
        self._deadline.check()
        if self._history_points > self._limit:
            raise Enough("the run has more points than can be compared with")
        answer = super().call(method, path, body=body, query=query)
        if path == "metrics/get-history":
            self._history_points += len(answer.body.get("metrics") or ())
        return answer

    def put_artifact(self, path: str, file: BinaryIO, size: int) -> Answer:
        self._deadline.check()  # only before the upload: MLflow could take an interrupted one for the whole file
        return super().put_artifact(path, file, size)


def replay(
    settings: Settings,
    store: ObjectStore,
    run_id: str,
    metrics_key: str,
    artifacts_key: str,
    deadline: TimeBudget | None = None,
    limits: ReplayLimits = LIMITS,
) -> Replayed:
    """Bring one learner's metrics, params, tags and artifacts into the run. Raises UnavailableError, StorageError."""
    credentials = settings.credentials().mlflow
    deadline = deadline or TimeBudget()
    server = BoundedServer(
        MlflowCredentials(settings.mlflow_uri, credentials.username, credentials.password.get_secret_value()),
        run_id,
        deadline,
        limits.history_points,
    )
    warnings, left = Warnings(), list[str]()
    with tempfile.TemporaryDirectory(prefix="updraft-replay-") as temporary:
        folder = Path(temporary)
        try:
            points = _points(store, metrics_key, server, warnings, folder, deadline, left, limits)
            artifacts = _artifacts(store, artifacts_key, server, warnings, folder, deadline, left, limits)
        except ServerUnavailable as exc:
            raise UnavailableError(f"MLflow at {settings.mlflow_uri}: {exc}") from exc
    return Replayed(points, artifacts, warnings.texts(), tuple(left))


def _points(
    store: ObjectStore,
    prefix: str,
    server: TrackingServer,
    warnings: Warnings,
    folder: Path,
    deadline: TimeBudget,
    left: list[str],
    limits: ReplayLimits,
) -> int:
    chunks, older = _newest(store, prefix, limits.chunk_bytes)
    if older:
        left.append(
            f"{older} older chunks of metrics at {prefix}: all together are larger than {megabytes(limits.chunk_bytes)}"
        )
    if not chunks:
        return 0
    (folder / "journal").mkdir()
    late = _fetch(store, prefix, chunks, folder / "journal", deadline.half(), limits.copies)
    if late:
        left.append(f"{late} chunks of metrics at {prefix}: fetching them takes longer than half of the time there is")
    journal = Journal(folder / "journal")
    try:
        forwarder = Forwarder(journal, server, warnings, folder / "forward.json", min_seconds=0)
        try:
            while forwarder.step():
                deadline.check()
                if forwarder.sent >= limits.points and forwarder.pending:
                    raise Enough(f"there are more than {limits.points} new points")
        except Enough as exc:
            left.append(f"{forwarder.pending} points at {prefix}: {exc}")
        return forwarder.sent
    finally:
        journal.close()


def _newest(store: ObjectStore, prefix: str, limit_bytes: int) -> tuple[list[str], int]:
    """Return the names of the newest chunks that are not too large together, in order, and the number of older ones."""
    sizes: dict[str, int] = {}
    for item in store.list(f"{prefix}/"):
        name = item.key[len(prefix) + 1 :]
        if CHUNK.fullmatch(name):
            sizes[name] = item.size
    taken: list[str] = []
    room_bytes = limit_bytes
    for name in sorted(sizes, reverse=True):
        room_bytes -= sizes[name]
        if room_bytes < 0:
            break
        taken.append(name)
    return taken[::-1], len(sizes) - len(taken)


def _fetch(
    store: ObjectStore, prefix: str, chunks: Sequence[str], folder: Path, deadline: TimeBudget, copies: int
) -> int:
    """Copy chunks, the newest first, until the deadline; returns how many are not there."""

    def fetched(name: str) -> bool:
        try:
            deadline.check()
            _copy(store, f"{prefix}/{name}", folder / name, deadline)
        except Enough:
            (folder / name).unlink(missing_ok=True)  # half a chunk would be read as a whole one
            return False
        return True

    with ThreadPoolExecutor(copies, thread_name_prefix="replay") as pool:  # thousands a day, most of them small
        return [*pool.map(fetched, reversed(chunks))].count(False)


def _artifacts(
    store: ObjectStore,
    prefix: str,
    server: TrackingServer,
    warnings: Warnings,
    folder: Path,
    deadline: TimeBudget,
    left: list[str],
    limits: ReplayLimits,
) -> int:
    """Bring the artifacts one after the other, so that the worker's disk holds one of them; return how many."""

    def root_of(owner: str) -> str:
        if owner == RUN:
            return server.artifact_root()
        if owner.startswith(CHILD):
            answer = server.get("runs/get", {"run_id": owner.removeprefix(CHILD)})
            if not answer.ok:
                raise ServerUnavailable(f"MLflow does not give run {owner}: {answer.message}", ambiguous=False)
            return artifact_path(str(answer.body["run"]["info"]["artifact_uri"]))
        answer = server.get(f"logged-models/{owner}")
        if not answer.ok:
            raise ServerUnavailable(f"MLflow does not give model {owner}: {answer.message}", ambiguous=False)
        return artifact_path(str(answer.body["model"]["info"]["artifact_uri"]))

    sizes: dict[str, dict[str, int]] = {}
    for item in store.list(f"{prefix}/"):
        if match := ARTIFACT.fullmatch(item.key[len(prefix) + 1 :]):
            sizes.setdefault(match[1], {})[match[2]] = item.size
    whole = {number: parts for number, parts in sorted(sizes.items()) if len(parts) == 2}
    count, room_bytes, too_large = 0, limits.artifact_bytes, 0
    try:
        for number, parts in whole.items():
            fits = parts["data"] <= min(room_bytes, shutil.disk_usage(folder).free - limits.disk_reserve_bytes)
            if not fits or parts["json"] > limits.facts_bytes:
                too_large += 1
                continue
            room_bytes -= parts["data"]
            spool = folder / f"spool-{number}"
            spool.mkdir()
            for kind in parts:
                _copy(store, f"{prefix}/{number}.{kind}", spool / f"{number}.{kind}", deadline)
            count += Spool(spool, server, warnings, root_of).step()
            shutil.rmtree(spool)
    except Enough as exc:
        left.append(f"{len(whole) - count - too_large} artifacts at {prefix}: {exc}")
    if too_large:
        left.append(
            f"{too_large} artifacts at {prefix}: they are larger than {megabytes(limits.artifact_bytes)} or the disk"
        )
    return count


def _copy(store: ObjectStore, key: str, target: Path, deadline: TimeBudget) -> None:
    with store.open(key) as source, target.open("wb") as file:
        while chunk := source.read(COPY_BYTES):
            deadline.check()
            file.write(chunk)
