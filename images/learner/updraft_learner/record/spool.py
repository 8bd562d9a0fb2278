"""Spool MLflow artifacts: write them to disk while the program waits, and upload them afterwards.

They are uploaded in the order of arrival, so that the last upload to a path stays. What the server cannot take before
the pod ends goes to the object store (`hand_over`). The endpoint fills the spool; the spool's own thread empties it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from updraft_learner.backoff import Backoff
from updraft_learner.mlflow_rest import ServerUnavailable, TrackingServer
from updraft_learner.record.disk import POD_DISK, PodDisk
from updraft_learner.record.fenced import Fenced
from updraft_learner.record.files import read_json
from updraft_learner.record.report import Warnings
from updraft_learner.store import ObjectStore

RUN = "run"
CHILD = "child/"  # and the id of a nested run
BACKOFF = Backoff(1.0, 15.0)
IDLE_SECONDS = 10.0


@dataclass(frozen=True)
class Artifact:
    number: int
    owner: str  # RUN, CHILD with the id of a nested run, or the id of a logged model
    path: str  # below the owner's artifacts
    size: int


class Spool:
    """The artifacts that wait for their upload.

    Args:
        root_of: Returns the path of an owner's artifacts below the server's artifact API; may raise ServerUnavailable.
    """

    def __init__(
        self,
        folder: Path,
        server: TrackingServer,
        warnings: Warnings,
        root_of: Callable[[str], str],
        clock: Callable[[], float] = time.monotonic,
        disk: PodDisk = POD_DISK,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._server, self._warnings = folder, server, warnings
        self._root_of, self._clock, self._disk = root_of, clock, disk
        for part in folder.glob("*.part"):
            part.unlink()
        self._changed = threading.Condition()
        self._waiting: list[Artifact] = []
        for path in sorted(folder.glob("*.json")):
            data = path.with_suffix(".data")
            if data.exists():
                raw = read_json(path, {})
                self._waiting.append(Artifact(int(path.stem), raw["owner"], raw["path"], data.stat().st_size))
            else:
                path.unlink()
        self._next = max((artifact.number for artifact in self._waiting), default=0) + 1
        self.failing = False
        self._ended = False

    @property
    def pending_bytes(self) -> int:
        with self._changed:
            return sum(artifact.size for artifact in self._waiting)

    @property
    def pending(self) -> int:
        with self._changed:
            return len(self._waiting)

    def add(self, owner: str, path: str, chunks: Iterable[bytes]) -> None:
        """Take an artifact over; it is on disk when this returns. Raises OSError when the disk is full."""
        with self._changed:
            number = self._next
            self._next += 1
        part, size = self._folder / f"{number:08d}.part", 0
        try:
            with part.open("wb") as file:
                for chunk in chunks:
                    file.write(chunk)
                    size += len(chunk)
            self._disk.write_json(self._folder / f"{number:08d}.json", {"owner": owner, "path": path})
            os.replace(part, part.with_suffix(".data"))
        finally:
            part.unlink(missing_ok=True)
        with self._changed:
            self._waiting.append(Artifact(number, owner, path, size))
            self._waiting.sort(key=lambda artifact: artifact.number)
            self._changed.notify_all()

    def run(self, stop: threading.Event) -> None:
        """Upload until `stop` is set."""
        failures = 0
        while not stop.is_set():
            try:
                worked = self.step()
            except Fenced:
                self._ended = True
                return
            except ServerUnavailable as exc:
                self.failing = True
                self._warnings.add("artifacts", f"{exc}; artifacts are kept and sent later")
                with self._changed:
                    self._changed.notify_all()
                failures += 1
                stop.wait(BACKOFF.seconds(failures))
                continue
            except Exception as exc:  # noqa: BLE001 - outermost line of the loop
                self._warnings.add("artifacts", f"artifacts cannot be sent to MLflow: {type(exc).__name__}: {exc}")
                stop.wait(BACKOFF.limit_seconds)
                continue
            failures = 0
            if not worked:
                with self._changed:
                    self._changed.wait_for(lambda: bool(self._waiting) or stop.is_set(), IDLE_SECONDS)

    def wake(self) -> None:
        """Make the loop look at its stop event."""
        with self._changed:
            self._changed.notify_all()

    def step(self) -> bool:
        """Upload the oldest artifact; False when there is none. Raises ServerUnavailable."""
        with self._changed:
            if not self._waiting:
                return False
            artifact = self._waiting[0]
        root = self._root_of(artifact.owner)
        with self._data(artifact).open("rb") as file:
            answer = self._server.put_artifact(f"{root}/{artifact.path}", file, artifact.size)
        if answer.status in (401, 403) and not self._server.serves_run():
            raise ServerUnavailable(f"MLflow refuses the job's artifacts: {answer.message}", ambiguous=False)
        if not answer.ok:
            self._warnings.add(
                f"artifact {artifact.path}", f"MLflow refused artifact {artifact.path}: {answer.message}"
            )
        self._remove(artifact)
        self.failing = False
        self._warnings.clear("artifacts")
        return True

    def wait_empty(self, timeout_seconds: float, *, patient: bool = False) -> bool:
        """Wait until all is uploaded; returns False after the time or, unless `patient`, while the server is away."""
        deadline = self._clock() + timeout_seconds
        with self._changed:
            while self._waiting:
                left = deadline - self._clock()
                if left <= 0 or self._ended or (self.failing and not patient):
                    return False
                self._changed.wait(min(left, 0.2))
        return True

    def hand_over(self, store: ObjectStore, prefix: str) -> None:
        """Put what waits into the object store; raises StorageError. The artifacts stay here too."""
        with self._changed:
            waiting = list(self._waiting)
        for artifact in waiting:
            store.put_file(f"{prefix}/{artifact.number:08d}.data", self._data(artifact))
            store.put_file(f"{prefix}/{artifact.number:08d}.json", self._folder / f"{artifact.number:08d}.json")

    def _data(self, artifact: Artifact) -> Path:
        return self._folder / f"{artifact.number:08d}.data"

    def _remove(self, artifact: Artifact) -> None:
        self._data(artifact).unlink(missing_ok=True)
        (self._folder / f"{artifact.number:08d}.json").unlink(missing_ok=True)
        with self._changed:
            self._waiting = [other for other in self._waiting if other.number != artifact.number]
            self._changed.notify_all()
