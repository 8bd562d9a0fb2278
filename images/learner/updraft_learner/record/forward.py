"""Send the journal to the job's MLflow run: in order, in batches, at least once, and each point once.

MLflow keeps every point that it receives and cannot delete one. So before a name is first sent, and after a request
whose effect is unknown, the server is asked which steps it has. This also covers the points of an earlier attempt, and
a restart of the sidecar between an answer and the write of the position. A second point at a step stays in the record
only; at steps that an earlier attempt had reached this is normal, and causes no warning.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from updraft_learner.backoff import Backoff
from updraft_learner.mlflow_rest import ServerUnavailable, TrackingServer
from updraft_learner.record.disk import POD_DISK, PodDisk
from updraft_learner.record.fenced import Fenced
from updraft_learner.record.files import read_json
from updraft_learner.record.journal import Entry, Journal, JournalPosition, points
from updraft_learner.record.report import Warnings, log

MAX_POINTS = 1000
MAX_TEXTS = 100  # params or tags in one request
MAX_BYTES = 400_000  # MLflow refuses requests of more than 1 MB
MIN_SECONDS = 2.0  # between requests, so that a fast loop's points are sent together
BACKOFF = Backoff(1.0, 15.0)
HURRIED_DELAY_SECONDS = 0.5  # between tries while a caller waits
IDLE_SECONDS = 10.0
HISTORY_PAGE = 10_000

Item = dict[str, Any]


@dataclass
class Batch:
    """The items of one request, and the position in the journal after them."""

    end: JournalPosition
    metrics: list[Item] = field(default_factory=list)
    params: list[Item] = field(default_factory=list)
    tags: list[Item] = field(default_factory=list)
    call: dict[str, Any] | None = None
    points: int = 0  # of the journal, including those that are not sent
    size_bytes: int = 0

    @property
    def items(self) -> int:
        return len(self.metrics) + len(self.params) + len(self.tags)


class Forwarder:
    """Sends the journal to MLflow. `run` is its thread's loop; `step` makes one request. Any thread may call
    `flush`."""

    def __init__(
        self,
        journal: Journal,
        server: TrackingServer,
        warnings: Warnings,
        state_file: Path,
        *,
        attempt: int = 1,
        min_seconds: float = MIN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        disk: PodDisk = POD_DISK,
    ) -> None:
        self._journal, self._server, self._warnings, self._disk = journal, server, warnings, disk
        self._state_file, self._min_seconds, self._clock = state_file, min_seconds, clock
        state = read_json(state_file, {"segment": 1, "offset": 0, "sent": 0, "duplicates": 0, "refused": 0})
        self.position = JournalPosition(int(state["segment"]), int(state["offset"]))
        self.sent = int(state["sent"])  # number of metric points
        self.duplicates = int(state["duplicates"])
        self.refused = int(state["refused"])
        self._known: dict[str, dict[int, int]] = {}  # name -> step -> time in ms of the points on the server
        self._later = attempt > 1
        self._reached: dict[str, int] = {}  # name -> last step on the server when it was first asked
        self._names: set[str] | None = None  # names with points on the server; None: ask
        self._model_points: set[tuple[str, int, str]] = set()
        self._nan_accepted = True
        self._backlog = self._count_backlog()
        self._appended_before = journal.appended_points
        self._handled = 0
        self._hurry = threading.Event()
        self._moved = threading.Condition()
        self.failing_since: float | None = None
        self._ended = False

    @property
    def pending(self) -> int:
        """Return how many points, params, tags and calls of the journal are not in MLflow yet."""
        return self._backlog + self._journal.appended_points - self._appended_before - self._handled

    @property
    def failing_seconds(self) -> float:
        """Return for how long the server has been unreachable."""
        since = self.failing_since
        return 0.0 if since is None else self._clock() - since

    def run(self, stop: threading.Event) -> None:
        """Forward until `stop` is set."""
        failures = 0
        while not stop.is_set():
            try:
                worked = self.step()
            except Fenced:
                self._ended = True
                return
            except ServerUnavailable as exc:
                self._failed(exc)
                failures += 1
                if self._hurry.wait(BACKOFF.seconds(failures)):
                    self._hurry.clear()
                    stop.wait(HURRIED_DELAY_SECONDS)
                continue
            except Exception as exc:  # noqa: BLE001 - outermost line of the loop
                self._warnings.add("forward", f"metrics cannot be sent to MLflow: {type(exc).__name__}: {exc}")
                stop.wait(BACKOFF.limit_seconds)
                continue
            failures = 0
            if not worked:
                self._journal.wait(self.position, IDLE_SECONDS, stop)
            elif self.pending < MAX_POINTS:
                self._hurry.wait(self._min_seconds)
            self._hurry.clear()

    def wake(self) -> None:
        """Make the loop look at its stop event."""
        self._hurry.set()
        self._journal.wake()

    def flush(self, timeout_seconds: float, *, patient: bool = False) -> bool:
        """Wait until what is in the journal now is in MLflow; False when it is not.

        Returns early while the server is away; with `patient` only after the time.
        """
        end = self._journal.end()
        deadline = self._clock() + timeout_seconds
        while self.pending and self.position < end:
            left = deadline - self._clock()
            if left <= 0 or self._ended or (not patient and self.failing_since is not None):
                return False
            self._hurry.set()
            with self._moved:
                self._moved.wait(min(left, 0.1))
        return True

    def step(self) -> bool:
        """Send one batch; False when there is nothing to send.

        Raises:
            ServerUnavailable: nothing of the batch counts as sent.
        """
        batch = self._collect()
        if batch is None:
            settled = self._journal.settle(self.position)
            if settled != self.position:
                self.position = settled
                self._save()
            return False
        if batch.call is not None:
            self._call(batch.call)
        else:
            self._send_metrics_and_texts(batch)
        self.position = batch.end
        self._handled += batch.points
        self._save()
        if self.failing_since is not None:
            log("MLflow is back")
        self.failing_since = None
        self._warnings.clear("mlflow")
        with self._moved:
            self._moved.notify_all()
        return True

    def _failed(self, exc: ServerUnavailable) -> None:
        if self.failing_since is None:
            self.failing_since = self._clock()
        self._warnings.add("mlflow", f"{exc}; metrics are kept and sent later")
        with self._moved:
            self._moved.notify_all()

    def _collect(self) -> Batch | None:
        batch: Batch | None = None
        position = self.position
        while True:
            entries = self._journal.read(position)
            if not entries:
                return batch
            for entry, after in entries:
                if batch is None:
                    batch = Batch(end=after)
                if "call" in entry and batch.points == 0:
                    batch.call, batch.points, batch.end = entry["call"], 1, after
                    return batch
                if "call" in entry or not self._add(batch, entry):
                    return batch
                batch.end = position = after

    def _add(self, batch: Batch, entry: Entry) -> bool:
        """Add an entry if it fits."""
        count = points(entry)
        size = sum(
            len(str(name)) + len(str(value)) + 100
            for kind in ("metrics", "params", "tags")
            for name, value in entry.get(kind, {}).items()
        )
        fits = (
            batch.items + count <= MAX_POINTS
            and batch.size_bytes + size <= MAX_BYTES
            and len(batch.params) + len(entry.get("params", ())) <= MAX_TEXTS
            and len(batch.tags) + len(entry.get("tags", ())) <= MAX_TEXTS
        )
        if not fits and batch.points:
            return False
        timestamp = round(entry["t"] * 1000)
        for name, value in entry.get("metrics", {}).items():
            item = {"key": name, "value": value, "timestamp": timestamp, "step": entry["step"]}
            batch.metrics.append({**item, **entry.get("model", {})})
        batch.params += [{"key": name, "value": value} for name, value in entry.get("params", {}).items()]
        batch.tags += [{"key": name, "value": value} for name, value in entry.get("tags", {}).items()]
        batch.points += count
        batch.size_bytes += size
        return True

    def _send_metrics_and_texts(self, batch: Batch) -> None:
        try:
            metrics = self._only_new(batch.metrics)
            self._send(metrics, batch.params, batch.tags)
        except ServerUnavailable as exc:
            if exc.ambiguous:
                self._forget({item["key"] for item in batch.metrics})
            raise
        for item in metrics:
            self._known[item["key"]].setdefault(item["step"], item["timestamp"])
            if "model_id" in item:
                self._model_points.add((item["key"], item["step"], item["model_id"]))
        self.sent += len(metrics)

    def _only_new(self, metrics: list[Item]) -> list[Item]:
        new: list[Item] = []
        taken: set[tuple[str, int, str]] = set()
        for item in metrics:
            if item["value"] in ("Infinity", "-Infinity") or (item["value"] == "NaN" and not self._nan_accepted):
                continue
            name, step, model = item["key"], item["step"], item.get("model_id", "")
            stored = self._steps(name)
            if model:
                there = stored.get(step) == item["timestamp"] or (name, step, model) in self._model_points
            else:
                there = step in stored
            if there or (name, step, model) in taken:
                self._count_duplicate(item, stored)
                continue
            taken.add((name, step, model))
            new.append(item)
        return new

    def _count_duplicate(self, item: Item, stored: dict[int, int]) -> None:
        if stored.get(item["step"]) == item["timestamp"]:
            return  # the same point again, after an unclear answer
        if item["key"].startswith("system/"):
            return  # a system metric: this node's clock is behind that of an earlier attempt's node
        if self._later and item["step"] <= self._reached.get(item["key"], -1):
            return  # a step that is repeated since the checkpoint
        self.duplicates += 1
        self._warnings.add(
            "duplicates",
            f"{self.duplicates} points at a step that already had one are in the job's record but not in MLflow "
            f"(last: {item['key']} at step {item['step']}); log each metric once per step",
        )

    def _steps(self, name: str) -> dict[int, int]:
        """Return the steps at which the server has a point of this name, with their times."""
        if name not in self._known:
            if self._names is None:
                run = self._checked(self._server.get("runs/get", {"run_id": self._server.run_id}))["run"]
                self._names = {item["key"] for item in run.get("data", {}).get("metrics", [])}
            self._known[name] = self._history(name) if name in self._names else {}
            self._reached.setdefault(name, max(self._known[name], default=-1))
        return self._known[name]

    def _history(self, name: str) -> dict[int, int]:
        steps: dict[int, int] = {}
        query: dict[str, Any] = {"run_id": self._server.run_id, "metric_key": name, "max_results": HISTORY_PAGE}
        while True:
            body = self._checked(self._server.get("metrics/get-history", query))
            for item in body.get("metrics", []):
                steps.setdefault(int(item.get("step", 0)), int(item["timestamp"]))
            if not body.get("next_page_token"):
                return steps
            query["page_token"] = body["next_page_token"]

    def _checked(self, answer: Any) -> dict[str, Any]:
        if not answer.ok:
            raise ServerUnavailable(f"MLflow refuses to read the run: {answer.message}", ambiguous=False)
        return dict(answer.body)

    def _forget(self, names: set[str]) -> None:
        self._names = None
        for name in names:
            self._known.pop(name, None)

    def _send(self, metrics: list[Item], params: list[Item], tags: list[Item]) -> None:
        """Send; what MLflow finds invalid is narrowed down by halves, so that the rest arrives."""
        count = len(metrics) + len(params) + len(tags)
        if count == 0:
            return
        body = {"run_id": self._server.run_id, "metrics": metrics, "params": params, "tags": tags}
        answer = self._server.post("runs/log-batch", body)
        if answer.ok:
            return
        if answer.status in (401, 403, 404) and not self._server.serves_run():
            raise ServerUnavailable(f"MLflow refuses the job's run: {answer.message}", ambiguous=False)
        if count == 1:
            self._refuse((metrics + params + tags)[0], answer.message)
        elif sum(map(bool, (metrics, params, tags))) > 1:
            self._send(metrics, [], [])
            self._send([], params, [])
            self._send([], [], tags)
        else:
            for part in (slice(None, count // 2), slice(count // 2, None)):
                self._send(metrics[part], params[part], tags[part])

    def _refuse(self, item: Item, reason: str) -> None:
        if item["value"] == "NaN":
            self._nan_accepted = False
            return
        self.refused += 1
        self._warnings.add(f"refused {item['key']}", f"MLflow refused {item['key']!r}: {reason}")

    def _call(self, call: dict[str, Any]) -> None:
        answer = self._server.post(call["path"], call["body"])
        if answer.status in (401, 403) and not self._server.serves_run():
            raise ServerUnavailable(f"MLflow refuses {call['path']}: {answer.message}", ambiguous=False)
        if not answer.ok:
            self.refused += 1
            self._warnings.add(f"refused {call['path']}", f"MLflow refused {call['path']}: {answer.message}")

    def _save(self) -> None:
        self._disk.save_json(
            self._state_file,
            {
                "segment": self.position.segment,
                "offset": self.position.offset,
                "sent": self.sent,
                "duplicates": self.duplicates,
                "refused": self.refused,
            },
        )

    def _count_backlog(self) -> int:
        count, position = 0, self.position
        while entries := self._journal.read(position):
            count += sum(points(entry) for entry, _ in entries)
            position = entries[-1][1]
        return count
