"""The life of one pod: init containers in order, sidecars beside, main containers, then the end.

One `PodWorker` per pod, a task of the local node's loop. It alone writes the pod's status after the scheduler
has placed it. What it needs to go on after a restart is in that status and in the folders of the containers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from updraft.localnode import processes
from updraft.localnode.errors import Json
from updraft.localnode.kubelet import Kubelet
from updraft.localnode.logs import LogOptions, entries, tail_offset
from updraft.localnode.podstatus import (
    INIT,
    MAIN,
    SIDECAR,
    ContainerRecord,
    container_id,
    final_phase,
    pod_status,
    records_of,
    running_state,
    terminated_state,
)
from updraft.localnode.probes import wait_until_started
from updraft.localnode.processes import Exit
from updraft.localnode.quantity import memory_limit_bytes
from updraft.localnode.store import now_text
from updraft.localnode.volumes import NotYetError, prepare_volumes

T = TypeVar("T")
logger = logging.getLogger(__name__)
RETRY_SECONDS = 2.0
KILL_AGAIN_SECONDS = 1.0
TERMINATION_MESSAGE_LINES = 80
TERMINATION_MESSAGE_BYTES = 2048


@dataclass(frozen=True)
class Stop:
    """An order to end the pod. `reason` is set when the pod is to be Failed for it."""

    deadline: float  # monotonic seconds: SIGKILL then
    at_once: bool = False  # no grace at all, not even a sidecar's
    reason: str = ""
    message: str = ""


class PodWorker:
    def __init__(self, kubelet: Kubelet, pod: Json) -> None:
        self._kubelet = kubelet
        self._pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self._records = records_of(pod)
        self._phase: str = pod["status"].get("phase", "Pending")
        self._stop: Stop | None = None
        self._stop_changed = asyncio.Event()
        self._starting: set[asyncio.Task[None]] = set()
        self._sidecars: list[asyncio.Task[None]] = []
        self._record_changed = asyncio.Event()

    # --- Orders ---------------------------------------------------------------------------------------
    def request_stop(self, grace_seconds: float, reason: str = "", message: str = "") -> None:
        """May be repeated; only shortens the time that is left."""
        deadline = time.monotonic() + grace_seconds
        if self._stop is None or deadline < self._stop.deadline:
            old = self._stop or Stop(deadline)
            self._stop = Stop(deadline, grace_seconds <= 0, old.reason or reason, old.message or message)
            self._stop_changed.set()

    # --- The life -------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Returns when no process of the pod is left and its status says how it ended.

        Cancelled (the node itself fails), it leaves the processes to the next local node.
        """
        try:
            await self._until_end_or_stop()
        finally:
            for task in self._sidecars:
                task.cancel()
            await asyncio.gather(*self._sidecars, return_exceptions=True)
        if self._stop is None:
            self.request_stop(self._grace_seconds)
        await asyncio.gather(*self._starting, return_exceptions=True)
        await self._stop_containers()
        assert self._stop is not None
        why = (self._stop.reason, self._stop.message)
        self._phase = "Failed" if self._stop.reason else final_phase(self._records)
        self._publish(why)

    async def _until_end_or_stop(self) -> None:
        """Returns when the containers have run their course, or when they have to be stopped before."""
        sequence = asyncio.create_task(self._sequence())
        stopped = asyncio.create_task(self._stop_changed.wait())
        try:
            await asyncio.wait({sequence, stopped}, timeout=self._seconds_left(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended = sequence.done()
            for task in (sequence, stopped):
                task.cancel()
            await asyncio.gather(sequence, stopped, return_exceptions=True)
        if self._stop is None and not ended:
            message = "Pod was active on the node longer than the specified deadline"
            self.request_stop(self._grace_seconds, "DeadlineExceeded", message)
        elif self._stop is None and (defect := sequence.exception()) is not None:
            logger.error("pod %s: its worker failed", self._name, exc_info=defect)
            self.request_stop(0, "NodeError", "The local node failed to run this pod; see its log.")

    async def _sequence(self) -> None:
        """Returns when the main containers have ended, or an init container has failed for good."""
        self._adopt_all()
        if self._finished():
            return
        await self._until_possible("FailedMount", self._prepare_volumes)
        self._publish()
        for record in self._records:
            if record.role == SIDECAR:
                self._sidecars.append(asyncio.create_task(self._keep(record)))
                while not record.started:
                    self._record_changed.clear()
                    await self._record_changed.wait()
            elif record.role == INIT and await self._keep_until_done(record) != 0:
                return
        for record in self._records:
            if record.role == MAIN and record.state.get("waiting", {}).get("reason") == "PodInitializing":
                record.waits("ContainerCreating")
        self._publish()
        mains = [r for r in self._records if r.role == MAIN]
        await asyncio.gather(*(self._keep_until_done(r) for r in mains))

    def _finished(self) -> bool:
        """True if, after a restart of the node, nothing is left to be run."""
        if self._restart_policy != "Never":
            return False
        mains = [r.exit_code for r in self._records if r.role == MAIN]
        return None not in mains or any(r.exit_code not in (None, 0) for r in self._records if r.role == INIT)

    # --- One container --------------------------------------------------------------------------------
    async def _keep(self, record: ContainerRecord) -> None:
        """A sidecar: started again whenever it ends."""
        try:
            await self._keep_until_done(record)
        except Exception:  # outermost line of this task
            logger.exception("sidecar %s of pod %s", record.name, self._name)

    async def _keep_until_done(self, record: ContainerRecord) -> int:
        """Runs the container as often as its restart policy wants; returns the last exit code."""
        backoff = self._kubelet.timing.backoff_seconds
        while True:
            if record.exit_code is None:
                await self._launch(record)
                assert record.process is not None
                probing = asyncio.create_task(self._probe(record))
                try:
                    end = await record.process.wait()
                finally:
                    probing.cancel()
                self._note_end(record, end)
            code = record.exit_code
            assert code is not None
            if not self._restarts(record, code):
                return code
            await self._back_off(record, backoff if record.restart_count else 0.0)
            if record.restart_count > 1:
                backoff = min(2 * backoff, self._kubelet.timing.backoff_limit_seconds)

    def _restarts(self, record: ContainerRecord, code: int) -> bool:
        if record.role == SIDECAR:
            return True
        if record.role == INIT and code == 0:
            return False
        return self._restart_policy == "Always" or (self._restart_policy == "OnFailure" and code != 0)

    async def _back_off(self, record: ContainerRecord, seconds: float) -> None:
        record.last_state = record.state
        if seconds:
            message = f"back-off {seconds:g}s restarting failed container={record.name} pod={self._name}"
            record.waits("CrashLoopBackOff", message)
            self._event(record, "Warning", "BackOff", f"Back-off restarting failed container {record.name}")
            self._publish()
            await asyncio.sleep(seconds)
        record.restart_count += 1
        record.process = None
        record.waits("ContainerCreating")

    async def _launch(self, record: ContainerRecord) -> None:
        """Returns once the program runs or could not be started. What was started before is taken over."""
        if record.process is None:
            await self._image(record)
            start = asyncio.create_task(self._start(record))
            self._starting.add(start)
            start.add_done_callback(self._starting.discard)
            await asyncio.shield(start)  # a stop in the middle must not lose the process
        if "running" in record.state and not record.spec.get("startupProbe"):
            self._note_started(record)

    async def _start(self, record: ContainerRecord) -> None:
        launch = await self._until_possible(
            "CreateContainerConfigError", lambda: self._kubelet.launch(self._pod, record.spec), record
        )
        if self._stop is not None:
            record.state = terminated_state(_never_started(), container_id(self._pod, record))
            record.process = processes.ContainerProcess(self._folder(record), None, exit=_never_started())
            record.process.exited.set()
            return
        folder = self._folder(record)
        folder.mkdir(parents=True, exist_ok=True)
        self._event(record, "Normal", "Created", f"Created container: {record.name}")
        limit = memory_limit_bytes(record.spec)
        process = await self._kubelet.processes.start(folder, launch.argv, launch.environment, launch.cwd, limit)
        record.process = process
        if process.started_at:
            record.state = running_state(process)
            self._event(record, "Normal", "Started", f"Started container {record.name}")
        elif process.exit is not None:
            self._event(record, "Warning", "Failed", f"Error: {process.exit.message}")
        self._publish()

    async def _probe(self, record: ContainerRecord) -> None:
        probe = record.spec.get("startupProbe")
        process = record.process
        if not probe or record.started or process is None:
            return
        translation = self._kubelet.translation(self._pod, record.spec)
        launch = self._kubelet.launch(self._pod, record.spec)
        passed = await wait_until_started(
            probe, record.spec, translation, launch, lambda text: self._event(record, "Warning", "Unhealthy", text)
        )
        if passed:
            self._note_started(record)
            return
        self._event(record, "Normal", "Killing", f"Container {record.name} failed startup probe, will be restarted")
        await asyncio.to_thread(processes.kill_all, process)

    def _note_started(self, record: ContainerRecord) -> None:
        record.started = True
        self._record_changed.set()
        self._publish()

    def _note_end(self, record: ContainerRecord, end: Exit) -> None:
        tail = ""
        if record.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError" and end.code != 0:
            tail = self._log_tail(record)
        record.state = terminated_state(end, container_id(self._pod, record), tail)
        record.started = False
        self._publish()

    def _log_tail(self, record: ContainerRecord) -> str:
        path = self._folder(record) / "log"
        try:
            with path.open("rb") as handle:
                handle.seek(tail_offset(path, TERMINATION_MESSAGE_LINES))
                out = b"".join(entries(handle.read().split(b"\n"), LogOptions()))
        except OSError:
            return ""
        return out[-TERMINATION_MESSAGE_BYTES:].decode(errors="replace")

    async def _image(self, record: ContainerRecord) -> None:
        """Waits until the image's environment is there."""
        problem = self._kubelet.image_problem(record.spec["image"])
        image = record.spec["image"]
        if problem is not None:
            record.waits("ErrImagePull", problem)
            self._event(record, "Warning", "Failed", f'Failed to pull image "{image}": {problem}')
            self._publish()
        while problem is not None:
            await asyncio.sleep(self._kubelet.timing.image_seconds)
            problem = self._kubelet.image_problem(image)
            if problem is not None:
                record.waits("ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {problem}')
                self._publish()

    async def _until_possible(self, reason: str, action: Callable[[], T], record: ContainerRecord | None = None) -> T:
        """Repeats `action` for as long as it raises NotYetError, and shows why."""
        while True:
            try:
                return action()
            except NotYetError as exc:
                if self._stop is not None:
                    raise
                if record is not None:
                    record.waits(reason, str(exc))
                self._event(record, "Warning", reason if record is None else "Failed", f"{exc}")
                self._publish()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop_changed.wait(), RETRY_SECONDS)

    def _prepare_volumes(self) -> None:
        secrets = self._kubelet.store
        namespace = self._pod["metadata"]["namespace"]
        folder = self._kubelet.pod_folder(self.uid) / "v"
        prepare_volumes(self._pod, folder, lambda name: secrets.find("secrets", namespace, name))

    # --- Stopping -------------------------------------------------------------------------------------
    async def _stop_containers(self) -> None:
        """Main containers first, then sidecars in reverse order; each with what is left of the grace period."""
        self._adopt_all()
        await self._end_of([r for r in self._records if r.role != SIDECAR], 0.0)
        for record in reversed([r for r in self._records if r.role == SIDECAR]):
            await self._end_of([record], self._kubelet.timing.sidecar_grace_seconds)

    async def _end_of(self, records: Sequence[ContainerRecord], least_seconds: float) -> None:
        """SIGTERM, SIGKILL at the deadline, and the end of each in its state."""
        living = [(r, r.process) for r in records if r.process is not None and r.process.exit is None]
        for record, process in living:
            self._event(record, "Normal", "Killing", f"Stopping container {record.name}")
            await asyncio.to_thread(processes.terminate, process)
        least = time.monotonic() + least_seconds
        while any(p.exit is None for _, p in living):
            self._stop_changed.clear()
            left = self._deadline(least) - time.monotonic()
            if left <= 0:
                for _, process in living:
                    if process.exit is None:
                        await asyncio.to_thread(processes.kill_all, process)
            await self._any_exit([p for _, p in living if p.exit is None], max(left, 0) or KILL_AGAIN_SECONDS)
        for record in records:
            end = record.process.exit if record.process is not None else None
            if record.exit_code is None and (end is not None or "running" in record.state):
                self._note_end(record, end or _never_started())

    def _deadline(self, least: float) -> float:
        if self._stop is None or self._stop.at_once:
            return 0.0
        return max(self._stop.deadline, least)

    async def _any_exit(self, living: Sequence[processes.ContainerProcess], timeout_seconds: float) -> None:
        waits = {asyncio.create_task(p.exited.wait()) for p in living}
        waits.add(asyncio.create_task(self._stop_changed.wait()))
        try:
            await asyncio.wait(waits, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()

    # --- Small things ---------------------------------------------------------------------------------
    @property
    def _name(self) -> str:
        return str(self._pod["metadata"]["name"])

    @property
    def _restart_policy(self) -> str:
        return str(self._pod["spec"]["restartPolicy"])

    @property
    def _grace_seconds(self) -> float:
        return float(self._pod["spec"]["terminationGracePeriodSeconds"])

    def _folder(self, record: ContainerRecord) -> Path:
        return self._kubelet.container_folder(self.uid, record.name, record.restart_count)

    def _adopt_all(self) -> None:
        """Takes over what an earlier local node started."""
        for record in self._records:
            if record.process is None and record.exit_code is None:
                limit = memory_limit_bytes(record.spec)
                record.process = self._kubelet.processes.adopt(self._folder(record), limit)
                if record.process is not None and record.process.started_at:
                    record.state = running_state(record.process)

    def _seconds_left(self) -> float | None:
        """Until `activeDeadlineSeconds` is over; None without one."""
        limit = self._pod["spec"].get("activeDeadlineSeconds")
        if limit is None:
            return None
        start = self._pod["status"].get("startTime")
        since = 0.0 if start is None else (datetime.now(UTC) - datetime.fromisoformat(start)).total_seconds()
        return max(float(limit) - since, 0.0)

    def _event(self, record: ContainerRecord | None, type_: str, reason: str, message: str) -> None:
        path = None
        if record is not None:
            group = "containers" if record.role == MAIN else "initContainers"
            path = f"spec.{group}{{{record.name}}}"
        self._kubelet.events.record(self._pod, type_, reason, message, field_path=path)

    def _publish(self, why: tuple[str, str] = ("", "")) -> None:
        """Writes the status, unless the pod is gone."""
        meta = self._pod["metadata"]
        if self._phase == "Pending" and any(r.role == MAIN and "waiting" not in r.state for r in self._records):
            self._phase = "Running"
        current = self._kubelet.store.find("pods", meta["namespace"], meta["name"])
        if current is None or current["metadata"]["uid"] != self.uid:
            return
        status = pod_status(current, self._records, self._phase, why, now_text())
        name = meta["name"]
        self._pod = self._kubelet.store.update("pods", meta["namespace"], name, lambda new: new.update(status=status))


def _never_started() -> Exit:
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}Z"
    return Exit(137, "ContainerStatusUnknown", now, now, "The pod was stopped before the container was started")
