"""Run one pod: init containers in order, sidecars beside them, main containers, then the end.

Each pod has one `PodWorker`, a task of the local node's loop. Once the scheduler has placed the pod, only its worker
writes its status. After a restart, it continues from that status and from the containers' folders.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from updraft_localnode import claims, disks, processes
from updraft_localnode.containers import ContainerRunner
from updraft_localnode.errors import Json
from updraft_localnode.kubelet import Kubelet
from updraft_localnode.podreport import PodReport, never_started
from updraft_localnode.podstatus import INIT, MAIN, SIDECAR, ContainerRecord, final_phase, running_state
from updraft_localnode.resources import memory_limit_bytes
from updraft_localnode.volumes import NotYetError, prepare_volumes

logger = logging.getLogger(__name__)
KILL_AGAIN_SECONDS = 1.0


class PodWorker:
    def __init__(self, kubelet: Kubelet, pod: Json) -> None:
        self._kubelet = kubelet
        self._report = PodReport(kubelet, pod)
        self._containers = ContainerRunner(self._report)
        self._sidecars: list[asyncio.Task[None]] = []
        self.uid, self.namespace, self.name = self._report.uid, self._report.namespace, self._report.name
        self.request_stop = self._report.stop.give

    @property
    def records(self) -> Sequence[ContainerRecord]:
        """Return the pod's containers in their current state."""
        return self._report.records

    # --- The life -------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Return when no process of the pod is left and its status says how it ended.

        Cancelled (the node itself fails), it leaves the processes to the next local node.
        """
        report = self._report
        try:
            await self._until_end_or_stop()
        finally:
            for task in self._sidecars:
                task.cancel()
            await asyncio.gather(*self._sidecars, return_exceptions=True)
        if report.stop.given is None:
            self.request_stop(report.grace_seconds)
        await asyncio.gather(*self._containers.starting, return_exceptions=True)
        await self._stop_containers()
        disks.release(self._kubelet.pod_folder(self.uid))
        assert report.stop.given is not None
        why = (report.stop.given.reason, report.stop.given.message)
        report.phase = "Failed" if report.stop.given.reason else final_phase(report.records)
        report.publish(why)

    async def _until_end_or_stop(self) -> None:
        """Return when the containers have run their course, or when they have to be stopped before."""
        stop = self._report.stop
        sequence = asyncio.create_task(self._sequence())
        stopped = asyncio.create_task(stop.changed.wait())
        try:
            await asyncio.wait({sequence, stopped}, timeout=self._seconds_left(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended = sequence.done()
            for task in (sequence, stopped):
                task.cancel()
            await asyncio.gather(sequence, stopped, return_exceptions=True)
        if stop.given is None and not ended:
            message = "Pod was active on the node longer than the specified deadline"
            self.request_stop(self._report.grace_seconds, "DeadlineExceeded", message)
        elif stop.given is None and (defect := sequence.exception()) is not None:
            logger.error("pod %s: its worker failed", self._report.name, exc_info=defect)
            self.request_stop(0, "NodeError", "The local node failed to run this pod; see its log.")

    async def _sequence(self) -> None:
        """Return when the main containers have ended, or an init container has failed for good."""
        report, run = self._report, self._containers
        self._adopt_all()
        if self._finished():
            return
        await run.until_possible("FailedMount", self._prepare_volumes)
        report.publish()
        for record in report.records:
            if record.role == SIDECAR:
                self._sidecars.append(asyncio.create_task(self._keep(record)))
                while not record.started:
                    run.record_changed.clear()
                    await run.record_changed.wait()
            elif record.role == INIT and await run.keep_until_done(record) != 0:
                return
        mains = [r for r in report.records if r.role == MAIN]
        for record in mains:
            if record.state.get("waiting", {}).get("reason") == "PodInitializing":
                record.waits("ContainerCreating")
        report.publish()
        await asyncio.gather(*(run.keep_until_done(r) for r in mains))

    def _finished(self) -> bool:
        """Return whether, after a restart of the node, nothing is left to run."""
        if self._report.restart_policy != "Never":
            return False
        mains = [r.exit_code for r in self.records if r.role == MAIN]
        return None not in mains or any(r.exit_code not in (None, 0) for r in self.records if r.role == INIT)

    async def _keep(self, record: ContainerRecord) -> None:
        """Restart a sidecar whenever it ends."""
        try:
            await self._containers.keep_until_done(record)
        except Exception:  # outermost line of this task
            logger.exception("sidecar %s of pod %s", record.name, self._report.name)

    def _prepare_volumes(self) -> None:
        secrets, namespace = self._kubelet.store, self._report.namespace
        folder = self._kubelet.pod_folder(self.uid)
        try:
            disks.prepare(folder, self._kubelet.disk_bytes)
        except OSError as exc:
            raise NotYetError(f"the pod's disk cannot be made: {exc.strerror}") from exc
        prepare_volumes(
            self._report.pod,
            folder / "v",
            lambda name: secrets.find("secrets", namespace, name),
            lambda name: claims.folder_of(self._kubelet.claims_dir, namespace, name),
        )

    def _adopt_all(self) -> None:
        """Take over what an earlier local node started."""
        for record in self.records:
            if record.process is None and record.exit_code is None:
                limit = memory_limit_bytes(record.spec)
                record.process = self._kubelet.processes.adopt(self._report.folder(record), limit)
                if record.process is not None and record.process.started_at:
                    record.state = running_state(record.process)

    def _seconds_left(self) -> float | None:
        """Return the seconds until `activeDeadlineSeconds` is over; None without one."""
        limit = self._report.pod["spec"].get("activeDeadlineSeconds")
        if limit is None:
            return None
        start = self._report.pod["status"].get("startTime")
        since = 0.0 if start is None else (datetime.now(UTC) - datetime.fromisoformat(start)).total_seconds()
        return max(float(limit) - since, 0.0)

    # --- Stopping -------------------------------------------------------------------------------------
    async def _stop_containers(self) -> None:
        """Stop the main containers, then the sidecars in reverse order, each within the rest of the grace period."""
        self._adopt_all()
        await self._end_of([r for r in self.records if r.role != SIDECAR], 0.0)
        for record in reversed([r for r in self.records if r.role == SIDECAR]):
            await self._end_of([record], self._kubelet.timing.sidecar_grace_seconds)

    async def _end_of(self, records: Sequence[ContainerRecord], least_seconds: float) -> None:
        """End the containers: SIGTERM, SIGKILL at the deadline, and the end of each in its state."""
        stop = self._report.stop
        living = [(r, r.process) for r in records if r.process is not None and r.process.exit is None]
        for record, process in living:
            self._report.event(record, "Normal", "Killing", f"Stopping container {record.name}")
            await asyncio.to_thread(processes.terminate, process)
        least = time.monotonic() + least_seconds
        while any(p.exit is None for _, p in living):
            stop.changed.clear()
            left = stop.kill_at(least) - time.monotonic()
            if left <= 0:
                for _, process in living:
                    if process.exit is None:
                        await asyncio.to_thread(processes.kill_all, process)
            await self._any_exit([p for _, p in living if p.exit is None], max(left, 0) or KILL_AGAIN_SECONDS)
        for record in records:
            end = record.process.exit if record.process is not None else None
            if record.exit_code is None and (end is not None or "running" in record.state):
                self._containers.note_end(record, end or never_started())

    async def _any_exit(self, living: Sequence[processes.ContainerProcess], timeout_seconds: float) -> None:
        waits = {asyncio.create_task(p.exited.wait()) for p in living}
        waits.add(asyncio.create_task(self._report.stop.changed.wait()))
        try:
            await asyncio.wait(waits, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
