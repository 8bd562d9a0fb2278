"""Run one container of a pod: its image, launches, hook and probe, and restarts with back-off. Used by `worker`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from updraft_localnode import processes
from updraft_localnode.errors import Json
from updraft_localnode.logs import LogOptions, entries, tail_offset
from updraft_localnode.podreport import PodReport, never_started
from updraft_localnode.podstatus import (
    INIT,
    SIDECAR,
    ContainerRecord,
    container_id,
    running_state,
    terminated_state,
)
from updraft_localnode.probes import PROBE_ERRORS, keep_asking, run_once, wait_until_started
from updraft_localnode.processes import ProcessExit
from updraft_localnode.resources import memory_limit_bytes
from updraft_localnode.volumes import NotYetError

T = TypeVar("T")
RETRY_SECONDS = 2.0
BUILDING = "BuildingEnvironment"  # the reason of a container that waits for its image to be built
CGROUP_DIR = "/sys/fs/cgroup"  # where a probe finds the container's counters
TERMINATION_MESSAGE_LINES = 80
TERMINATION_MESSAGE_BYTES = 2048


class ContainerRunner:
    """Runs the containers of one pod, one call per container."""

    def __init__(self, report: PodReport) -> None:
        self._report = report
        self._kubelet = report.kubelet
        self.starting: set[asyncio.Task[None]] = set()
        self.record_changed = asyncio.Event()  # set when a container has started, its hook and probe included

    async def keep_until_done(self, record: ContainerRecord) -> int:
        """Run the container as often as its restart policy wants; returns the last exit code."""
        timing = self._kubelet.timing
        backoff = timing.backoff_seconds
        while True:
            began = time.monotonic()
            if record.exit_code is None:
                await self._launch(record)
                assert record.process is not None
                probing = asyncio.create_task(self._probe(record))
                try:
                    end = await record.process.wait()
                finally:
                    probing.cancel()
                self.note_end(record, end)
            code = record.exit_code
            assert code is not None
            if not self._restarts(record, code):
                return code
            if time.monotonic() - began > timing.backoff_reset_seconds:
                backoff = timing.backoff_seconds
            await self._back_off(record, backoff if record.restart_count else 0.0)
            if record.restart_count > 1:
                backoff = min(2 * backoff, timing.backoff_limit_seconds)

    def note_end(self, record: ContainerRecord, end: ProcessExit) -> None:
        tail = ""
        if record.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError" and end.code != 0:
            tail = self._log_tail(record)
        record.state = terminated_state(end, container_id(self._report.pod, record), tail)
        record.started = record.ready = False
        self._report.publish()

    async def until_possible(self, reason: str, action: Callable[[], T], record: ContainerRecord | None = None) -> T:
        """Repeat `action` for as long as it raises NotYetError, and shows why."""
        stop = self._report.stop
        while True:
            try:
                return action()
            except NotYetError as exc:
                if stop.given is not None:
                    raise
                if record is not None:
                    record.waits(reason, str(exc))
                self._report.event(record, "Warning", reason if record is None else "Failed", f"{exc}")
                self._report.publish()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.changed.wait(), RETRY_SECONDS)

    def _restarts(self, record: ContainerRecord, code: int) -> bool:
        if record.role == SIDECAR:
            return True
        if record.role == INIT and code == 0:
            return False
        policy = self._report.restart_policy
        return policy == "Always" or (policy == "OnFailure" and code != 0)

    async def _back_off(self, record: ContainerRecord, seconds: float) -> None:
        record.last_state = record.state
        if seconds:
            message = f"back-off {seconds:g}s restarting failed container={record.name} pod={self._report.name}"
            record.waits("CrashLoopBackOff", message)
            self._report.event(record, "Warning", "BackOff", f"Back-off restarting failed container {record.name}")
            self._report.publish()
            await asyncio.sleep(seconds)
        record.restart_count += 1
        record.process = None
        record.waits("ContainerCreating")

    async def _launch(self, record: ContainerRecord) -> None:
        """Return once the program runs or could not be started. What was started before is taken over."""
        if record.process is None:
            await self._image(record)
            start = asyncio.create_task(self._start(record))
            self.starting.add(start)
            start.add_done_callback(self.starting.discard)
            await asyncio.shield(start)  # so that a stop in the middle does not lose the process
        if "running" in record.state and not _starts_late(record.spec):
            self._note_started(record)

    async def _start(self, record: ContainerRecord) -> None:
        report = self._report
        launch = await self.until_possible(
            "CreateContainerConfigError", lambda: self._kubelet.launch(report.pod, record.spec), record
        )
        folder = report.folder(record)
        if report.stop.given is not None:
            record.state = terminated_state(never_started(), container_id(report.pod, record))
            record.process = processes.ContainerProcess(folder, None, exit=never_started())
            record.process.exited.set()
            return
        folder.mkdir(parents=True, exist_ok=True)
        report.event(record, "Normal", "Created", f"Created container: {record.name}")
        limit = memory_limit_bytes(record.spec)
        process = await self._kubelet.processes.start(folder, launch.argv, launch.environment, launch.cwd, limit)
        record.process = process
        if process.started_at:
            record.state = running_state(process)
            report.event(record, "Normal", "Started", f"Started container {record.name}")
        elif process.exit is not None:
            report.event(record, "Warning", "Failed", f"Error: {process.exit.message}")
        report.publish()

    async def _probe(self, record: ContainerRecord) -> None:
        """Run the container's probes for as long as it runs."""
        await self._until_started(record)
        probe = record.spec.get("readinessProbe")
        if not probe or not record.started:
            return
        report, process, counted = self._report, record.process, self._report.folder(record) / "cgroup"

        def tell(ready: bool) -> None:
            if record.ready != ready:
                record.ready = ready
                report.publish()

        def unhealthy(text: str) -> None:
            report.event(record, "Warning", "Unhealthy", text)

        def account() -> None:
            if process is not None:
                processes.account(process, counted)

        translation = self._kubelet.translation(report.pod, record.spec)
        own = replace(translation, mounts={**translation.mounts, CGROUP_DIR: str(counted)})
        launch = self._kubelet.launch(report.pod, record.spec)
        await keep_asking(probe, record.spec, own, launch, tell, unhealthy, account)

    async def _until_started(self, record: ContainerRecord) -> None:
        """Run the hook, then the startup probe; a failure of either ends the container."""
        process = record.process
        if record.started or process is None or not _starts_late(record.spec):
            return
        problem = await self._hook_problem(record) or await self._probe_problem(record)
        if problem is None:
            self._note_started(record)
            return
        self._report.event(record, "Normal", "Killing", f"Container {record.name} failed {problem}, will be restarted")
        await asyncio.to_thread(processes.kill_all, process)

    async def _hook_problem(self, record: ContainerRecord) -> str | None:
        """Run the hook; return why it failed, or None. A hook may run again when the local node is restarted, as
        Kubernetes allows."""
        hook = _post_start(record.spec)
        if not hook:
            return None
        translation = self._kubelet.translation(self._report.pod, record.spec)
        try:
            await run_once(hook, record.spec, translation, self._kubelet.launch(self._report.pod, record.spec))
        except PROBE_ERRORS as exc:
            self._report.event(record, "Warning", "FailedPostStartHook", f"PostStartHook failed: {exc}")
            return "PostStart hook"
        return None

    async def _probe_problem(self, record: ContainerRecord) -> str | None:
        probe = record.spec.get("startupProbe")
        if not probe:
            return None
        report = self._report
        translation = self._kubelet.translation(report.pod, record.spec)
        launch = self._kubelet.launch(report.pod, record.spec)
        passed = await wait_until_started(
            probe, record.spec, translation, launch, lambda text: report.event(record, "Warning", "Unhealthy", text)
        )
        return None if passed else "startup probe"

    def _note_started(self, record: ContainerRecord) -> None:
        record.started = True
        self.record_changed.set()
        self._report.publish()

    def _log_tail(self, record: ContainerRecord) -> str:
        path = self._report.folder(record) / "log"
        try:
            with path.open("rb") as handle:
                handle.seek(tail_offset(path, TERMINATION_MESSAGE_LINES))
                out = b"".join(entries(handle.read().split(b"\n"), LogOptions()))
        except OSError:
            return ""
        return out[-TERMINATION_MESSAGE_BYTES:].decode(errors="replace")

    async def _image(self, record: ContainerRecord) -> None:
        """Wait until the image's environment is there."""
        image, report = record.spec["image"], self._report
        told: set[bool] = set()  # texts of `building` that were reported
        while (lack := self._kubelet.image_lack(image, report.uid)) is not None:
            if lack.building:
                record.waits(BUILDING, lack.text)
            elif False in told:
                record.waits("ImagePullBackOff", f'Back-off pulling image "{image}": ErrImagePull: {lack.text}')
            else:
                record.waits("ErrImagePull", lack.text)
            if lack.building not in told:
                told.add(lack.building)
                if lack.building:
                    report.event(record, "Normal", "Building", f'Building the environment of image "{image}"')
                else:
                    report.event(record, "Warning", "Failed", f'Failed to pull image "{image}": {lack.text}')
            report.publish()
            await asyncio.sleep(self._kubelet.timing.image_seconds)


def _starts_late(container: Json) -> bool:
    """Return whether it counts as started only some time after its program was."""
    return bool(_post_start(container) or container.get("startupProbe"))


def _post_start(container: Json) -> Json | None:
    hook: Json | None = (container.get("lifecycle") or {}).get("postStart")
    return hook
