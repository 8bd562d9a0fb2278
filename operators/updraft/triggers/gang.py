"""Watches all learners of one launch, keeps their logs, tells the ledger where the job stands, wakes the task once.

It decides nothing about success: the event says why the watching ended, and the operator judges from evidence read
afresh. A trigger that dies leaves the pods alone; its successor goes on from the cluster, the ledger and the store.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from updraft.exceptions import IllegalTransitionError, UpdraftError
from updraft.kubernetes import logs
from updraft.kubernetes.objects import Launch
from updraft.kubernetes.watch import PodWatch, launch_key, shared_watch
from updraft.lifecycle import State
from updraft.recovery.facts import PodFacts, stage_of
from updraft_learner import contract

TICK_SECONDS = 2.0  # cancel requests and deadlines are looked at this often
MISSING_SECONDS = 20.0  # a pod that the watch does not show for this long is gone
BLOCKED_SECONDS = 15.0  # an image that cannot be pulled for this long will not come by itself
LOG_END_SECONDS = 20.0
LOG_STOP_SECONDS = 8.0
LOG_RETRY_SECONDS = 3.0
TAIL_LINES = 20
EVIDENCE_PODS = 16  # of a larger gang, the first ones stand for all
ORDER = (State.DEPLOYING, State.DOWNLOADING, State.PROCESSING, State.STORING)
WORDS = {"evaluate": "evaluating", "export": "exporting"}


class GangTrigger(BaseTrigger):
    """Fires once: `{"kind": "ended" | "failed" | "cancelled" | "deadline" | "blocked" | "missing", ...}`."""

    def __init__(
        self,
        *,
        conn_id: str,
        namespace: str,
        tenant: str,
        job_id: str,
        role: str,
        attempt: int,
        learners: int,
        deploy_by: float,
        deadline: float | None,
        store_seconds: float,
    ) -> None:
        super().__init__()
        self.conn_id = conn_id
        self.launch = Launch(namespace, tenant, job_id, role, attempt, learners)
        self.deploy_by = deploy_by  # unix seconds by which the programs must run
        self.deadline = deadline  # unix seconds at which the job's max_runtime ends
        self.store_seconds = store_seconds
        self._tails: dict[int, deque[str]] = {}
        self._followers: dict[int, tuple[asyncio.Task[None], asyncio.Event]] = {}
        self._shown: tuple[State, str] | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        launch = self.launch
        return (
            "updraft.triggers.gang.GangTrigger",
            {
                "conn_id": self.conn_id,
                "namespace": launch.namespace,
                "tenant": launch.tenant,
                "job_id": launch.job_id,
                "role": launch.role,
                "attempt": launch.attempt,
                "learners": launch.learners,
                "deploy_by": self.deploy_by,
                "deadline": self.deadline,
                "store_seconds": self.store_seconds,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        async with shared_watch(self.conn_id, self.launch.namespace) as watch:
            try:
                kind, reason = await self._observe(watch)
                await self._finish_logs()
            finally:
                await self._stop_followers()
        tails = {str(learner): list(lines) for learner, lines in self._tails.items()}
        yield TriggerEvent({"kind": kind, "reason": reason, "tails": tails})

    async def on_kill(self) -> None:
        """Nothing: it also runs when a late triggerer loses its triggers. A cancel request is in the ledger."""

    async def _observe(self, watch: PodWatch) -> tuple[str, str]:
        key = launch_key(self.launch)
        woken = watch.subscribe(key)
        missing_since: float | None = None
        blocked_since: float | None = None
        failed_since: float | None = None
        try:
            while True:
                pods = watch.pods(key)
                now = time.time()
                if watch.synced.is_set():
                    self._follow_logs(watch, pods)
                    await self._show(pods)
                    if len(pods) == self.launch.learners and all(p.ended for p in pods):
                        return "ended", "all pods have ended"
                    # One learner's end with an error ends the attempt; its sidecar may still be storing.
                    failed = [p for p in pods if p.main.exit_code not in (None, 0) or p.phase == "Failed"]
                    failed_since = (failed_since or now) if failed else None
                    if failed and (all(p.ended for p in failed) or now - (failed_since or now) > self.store_seconds):
                        first = failed[0]
                        said = ": ".join(part for part in (first.reason, first.message) if part)
                        return (
                            "failed",
                            f"learner {first.learner}: {said}" if said else f"learner {first.learner} failed",
                        )
                    missing_since = (missing_since or now) if len(pods) < self.launch.learners else None
                    if missing_since and now - missing_since > MISSING_SECONDS:
                        return "missing", f"{self.launch.learners - len(pods)} pods are gone"
                    blocked = next((p for p in pods if p.blocked), None)
                    blocked_since = (blocked_since or now) if blocked else None
                    if blocked and blocked_since and now - blocked_since > BLOCKED_SECONDS:
                        return "blocked", f"learner {blocked.learner}: {blocked.blocked}"
                    not_running = any(p.main.state in ("absent", "waiting") for p in pods)
                    staging = any(p.stage.state == "running" for p in pods)
                    if not_running and not staging and now > self.deploy_by:
                        return "blocked", self._shown[1] if self._shown else "the learners did not start in time"
                if self.deadline is not None and now > self.deadline:
                    return "deadline", "budget.max_runtime is used up"
                if (by := await asyncio.to_thread(self._cancelled)) is not None:
                    return "cancelled", f"cancelled by {by}"
                with suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), TICK_SECONDS)
                woken.clear()
        finally:
            watch.unsubscribe(key, woken)

    def _cancelled(self) -> str | None:
        from updraft.ledger import open_ledger
        from updraft.settings import settings

        try:
            return open_ledger(settings().ledger_url).job(self.launch.job_id).cancel_requested_by
        except UpdraftError as exc:  # the learners do not need the ledger; it is asked again
            self.log.warning("Whether the job was cancelled is not known: %s", exc)
            return None

    async def _show(self, pods: Sequence[PodFacts]) -> None:
        """Bring the job's state forward to what the pods show; never backward within one attempt."""
        state, reason = stage_of(pods, self.launch.learners)
        if self.launch.role != "train":
            state, reason = State.STORING, f"{WORDS[self.launch.role]}: {reason}"
        if self._shown is not None and (
            (state, reason) == self._shown or ORDER.index(state) < ORDER.index(self._shown[0])
        ):
            return
        try:
            evidence = {"pods": [pod.evidence() for pod in pods[:EVIDENCE_PODS]]}
            await asyncio.to_thread(self._move, state, reason, evidence)
        except UpdraftError as exc:  # said again at the next look
            self.log.warning("%s could not be recorded: %s", state.value, exc)
            return
        self._shown = (state, reason)
        self.log.info("%s: %s", state.value, reason)

    def _move(self, state: State, reason: str, evidence: dict[str, Any]) -> None:
        from updraft.ledger import open_ledger
        from updraft.settings import settings

        ledger = open_ledger(settings().ledger_url)
        current = ledger.job(self.launch.job_id).state
        if current in ORDER and ORDER.index(state) < ORDER.index(current):
            return  # a successor of a dead trigger begins to look at an earlier moment than the ledger's
        with suppress(IllegalTransitionError):
            ledger.move(self.launch.job_id, state, reason, evidence)

    # --- logs -------------------------------------------------------------------------------------------------

    def _follow_logs(self, watch: PodWatch, pods: Sequence[PodFacts]) -> None:
        for pod in pods:
            if pod.stage.state == "terminated" and pod.stage.exit_code:
                container, ended = contract.STAGE_CONTAINER, True
            elif pod.main.state in ("running", "terminated"):
                container, ended = contract.MAIN_CONTAINER, pod.main.state == "terminated"
            else:
                continue
            if pod.learner not in self._followers:
                finished = asyncio.Event()
                task = asyncio.create_task(self._follow(watch, pod.name, container, pod.learner, finished))
                self._followers[pod.learner] = (task, finished)
            if ended:
                self._followers[pod.learner][1].set()

    async def _follow(self, watch: PodWatch, pod: str, container: str, learner: int, finished: asyncio.Event) -> None:
        from updraft.storage import objects

        launch = self.launch
        tail = self._tails.setdefault(learner, deque(maxlen=TAIL_LINES))
        while True:
            try:
                book = await asyncio.to_thread(
                    objects.LogBook.open, launch.tenant, launch.job_id, launch.role, launch.attempt, learner
                )
                break
            except UpdraftError as exc:  # where an earlier trigger stopped has to be known
                self.log.warning("The log of learner %d is not read yet: %s", learner, exc)
                await asyncio.sleep(LOG_RETRY_SECONDS)
        last = book.last
        cursor = logs.Cursor(n=last.n, t=last.t, same=last.same)
        tail.extend(book.tail)

        async def write(chunk: list[logs.Line]) -> None:
            await asyncio.to_thread(book.append, [{"n": line.n, "t": line.t, "line": line.line} for line in chunk])

        async def lines(at: logs.Cursor) -> AsyncIterator[logs.Line]:
            async for line in logs.follow(watch.api, launch.namespace, pod, container, at):
                tail.append(line.line)
                self.log.info("[%s %d] %s", launch.role, learner, line.line)
                yield line

        await logs.record(lines, cursor, write, finished=finished)

    async def _finish_logs(self) -> None:
        """Give the followers of ended containers a bounded time to read the ends of the logs and to store them.

        Those of containers that still run would not end by themselves: what they have is stored by stopping them.
        """
        ended = [task for task, finished in self._followers.values() if finished.is_set()]
        if ended:
            await asyncio.wait(ended, timeout=LOG_END_SECONDS)
        await self._stop_followers()

    async def _stop_followers(self) -> None:
        tasks = [task for task, _ in self._followers.values()]
        self._followers.clear()
        for task in tasks:
            task.cancel()  # on its way out a follower stores the lines that it has
        if tasks:
            done, _ = await asyncio.wait(tasks, timeout=LOG_STOP_SECONDS)
            for task in done:
                if not task.cancelled() and (error := task.exception()) is not None:
                    self.log.warning("A learner's log could not be kept: %s", error)


def tails_of(event: Mapping[str, Any]) -> dict[int, list[str]]:
    return {int(learner): list(lines) for learner, lines in (event.get("tails") or {}).items()}
