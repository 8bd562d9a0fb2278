"""Drive one role of a job from its first launch to its end: watch the learners, and relaunch lost attempts.

Each next step comes from the ledger (`updraft.controller.next_action`). If a trigger dies, the pods stay and its
successor continues. A trigger that was suspended and wakes up beside its successor does no harm.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, nullcontext, suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from updraft.controller import attempts, outbox, pods, user_requests
from updraft.controller.attempts import EndSignal
from updraft.controller.next_action import (
    BackingOff,
    Finished,
    Halted,
    LaunchDue,
    NextAction,
    Queued,
    Running,
    next_action,
)
from updraft.controller.queueing import ask, requeue
from updraft.exceptions import QuotaError, RefusedError, UnavailableError
from updraft.kubernetes.watch import LaunchKey, PodWatch
from updraft.lifecycle import State
from updraft.lifecycle.workflow import TRAIN_ROLE
from updraft.recovery.ends import EndKind
from updraft.recovery.policy import NO_QUOTA, releases_grant
from updraft.services import UsesServices
from updraft.triggers.attempt_monitor import AttemptMonitor
from updraft.triggers.queue import QueueReader, queue
from updraft.triggers.request_poller import RequestPoller, request_poller

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api

    from updraft.kubernetes.objects import Launch
    from updraft.ledger import Attempt, Job

T = TypeVar("T")
HALTED_TICKS = 15  # ticks after which a halted job is checked without a request
# Calls to a cluster or a store that does not answer take minutes. In these threads they delay no other trigger.
CALLS = ThreadPoolExecutor(max_workers=64, thread_name_prefix="controller")
REVISED = {"kind": "revised", "reason": "the resumed job's manifest has changed"}


class GangTrigger(UsesServices, BaseTrigger):
    """Watch a role's learners, and relaunch them after a loss, until the role has ended.

    Args:
        conn_id: Airflow connection of the cluster.
        namespace: The tenant's namespace.
        job_id: The job.
        role: The role of its learners.

    Fires once: `{"kind": "ended", "reason": text}`, or `{"kind": "revised"}` if a resume brought another manifest, for
    which only the task can build pods.
    """

    def __init__(self, *, conn_id: str, namespace: str, job_id: str, role: str) -> None:
        super().__init__()
        self.conn_id = conn_id
        self.namespace = namespace
        self.job_id = job_id
        self.role = role
        self._core: Any = None
        self._followed: tuple[LaunchKey, asyncio.Event] | None = None  # makes the watch remember the attempt's pods
        self._told: object = None  # the attempt whose back-off was logged
        self._telling: asyncio.Task[None] | None = None

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            "updraft.triggers.gang.GangTrigger",
            {"conn_id": self.conn_id, "namespace": self.namespace, "job_id": self.job_id, "role": self.role},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        failures = 0
        watch: PodWatch | None = None
        async with AsyncExitStack() as stack:
            while True:
                try:
                    if watch is None:
                        watch = await stack.enter_async_context(self.services.watch_pods(self.conn_id, self.namespace))
                        stack.callback(self._keep_in_mind, watch, None)
                    event = await self._step(watch)
                except UnavailableError as exc:
                    # The learners do not need the part that is unavailable: wait without a time limit, and lose
                    # nothing.
                    self.log.warning("Waiting: %s", exc)
                    self._core = None  # then the connection is read again: its token may have been renewed
                except Exception as exc:
                    self.log.exception("Unexpected %s; trying again", type(exc).__name__)
                else:
                    failures = 0
                    if event is not None:
                        yield TriggerEvent(event)
                        return
                    continue
                failures += 1
                await self.services.timing.sleep(self.services.timing.retry.seconds(failures))

    async def on_kill(self) -> None:
        """Do nothing: this also runs when a late triggerer loses its triggers. A cancel request is in the ledger."""

    async def _step(self, watch: PodWatch) -> dict[str, Any] | None:
        """Do one thing that the ledger asks for; return the task's event when nothing is left to do."""
        self._tell()
        match await asyncio.to_thread(self._standing):
            case Finished(reason):
                return {"kind": "ended", "reason": reason}
            case Halted(after):
                if after is not None:  # the process that closed it may have died before it stopped the pods
                    await self._call(self._stop, await self._cluster(), after, True)
                if await asyncio.to_thread(user_requests.rest, self.services, self.job_id, after):
                    self._tell()
                    await self._wait_for_resume()
            case Queued(after):
                if after is not None and after.label == NO_QUOTA:
                    never = await asyncio.to_thread(attempts.never_fits, self.services, self.job_id, after)
                    if never is not None:
                        await asyncio.to_thread(self._record_impossible, never)
                        return None
                await self._wait_in_line()
            case LaunchDue() | BackingOff() if await asyncio.to_thread(self._gives_back):
                self.log.info("Its room was needed: in the queue again")
            case BackingOff(after, until, reason):
                if self._told != after.number:
                    self._told = after.number
                    then = "In line" if releases_grant(after.label) else "Launched"
                    self.log.info("%s again at %s UTC: %s", then, until.strftime("%H:%M:%S"), reason)
                    await self._call(self._stop, await self._cluster(), after, False)
                await asyncio.to_thread(self._touch, "backing off")
                timing = self.services.timing
                left_seconds = (until - await asyncio.to_thread(self._now)).total_seconds()
                await timing.sleep(max(0.1, min(timing.tick_seconds, left_seconds)))
            case LaunchDue(after):
                if not await asyncio.to_thread(self._prepared):
                    return REVISED
                with suppress(RefusedError):  # it has just ended or was cancelled: the next look at the ledger shows it
                    await asyncio.to_thread(self._begin, after)
            case Running(attempt):
                if not await asyncio.to_thread(self._prepared):
                    return REVISED
                await self._guard(watch, attempt)
        return None

    def _tell(self) -> None:
        """Start sending the job's messages to MLflow, without waiting for it; the reaper sends the rest."""

        async def tell() -> None:
            with suppress(UnavailableError):
                await self._call(outbox.deliver, self.services, self.job_id)

        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(tell())

    def _standing(self) -> NextAction:
        job, halt = user_requests.wanted(self.services, self.job_id)
        book = self.services.ledger
        newest = book.attempts.current(self.job_id, self.role)
        placed = job.state is not State.QUEUED or book.queue.holds(self.job_id)
        return next_action(job, newest, halt_asked=halt is not None, now=self._now(), placed=placed)

    def _now(self) -> datetime:
        return self.services.ledger.now()

    def _prepared(self) -> bool:
        return pods.has_template(self.services, self.services.ledger.jobs.get(self.job_id), self.role)

    def _begin(self, after: Attempt | None) -> None:
        attempts.begin(self.services, self.services.ledger.jobs.get(self.job_id), self.role, after)

    def _gives_back(self) -> bool:
        """Give back the room of a job without learners, if the planner asks for it."""
        book = self.services.ledger
        return book.queue.leaving(self.job_id) is not None and book.jobs.give_back(self.job_id)

    def _touch(self, what: str) -> None:
        self.services.ledger.jobs.touch(self.job_id, f"{self.role}: {what}")

    def _stop(self, core: Any, attempt: Attempt, wait: bool) -> None:
        attempts.stop(self.services, core, self.services.ledger.jobs.get(self.job_id), attempt, wait=wait)

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        here = contextvars.copy_context()  # so that the thread logs to this trigger's log
        return await asyncio.get_running_loop().run_in_executor(CALLS, partial(here.run, function, *args))

    async def _cluster(self) -> CoreV1Api:
        """Return the synchronous client; its connection can only be asked for from a thread that knows this loop."""
        from asgiref.sync import sync_to_async

        if self._core is None:
            self._core = await sync_to_async(self.services.open_cluster, thread_sensitive=False)()
        return self._core

    def _poller(self) -> RequestPoller:
        return request_poller(self.services)

    def _queue(self) -> QueueReader:
        return queue(self.services, self.conn_id)

    async def _watch_attempt(self, watch: PodWatch, job: Job, launch: Launch, attempt: Attempt) -> EndSignal:
        monitor = AttemptMonitor(self.services, watch, job, launch, attempt, self.log, core=self._core, call=self._call)
        return await monitor.run()

    # --- halted, in the queue ----------------------------------------------------------------------------------------

    async def _wait_for_resume(self) -> None:
        with self._poller().guarding(self.job_id, f"{self.role}: halted"):
            while True:
                await asyncio.to_thread(user_requests.resumed, self.services, self.job_id)
                job, _ = await asyncio.to_thread(user_requests.wanted, self.services, self.job_id)
                if job.ended or job.cancel_requested_by is not None or job.state is not State.HALTED:
                    return
                for _ in range(HALTED_TICKS):
                    await self.services.timing.sleep(self.services.timing.tick_seconds)
                    if await self._poller().asked(self.job_id):
                        break

    async def _wait_in_line(self) -> None:
        await asyncio.to_thread(requeue, self.services, self.job_id, self.role)
        with self._queue().waiting(self.job_id, f"{self.role}: in the queue") as place:
            while True:
                try:
                    await asyncio.to_thread(
                        user_requests.wanted, self.services, self.job_id
                    )  # also answers a resume that withdrew a halt
                    kind, reason = await asyncio.to_thread(ask, self.services, self.job_id)
                except (
                    RefusedError
                ) as exc:  # another controller removed it from the queue: the ledger says how it stands
                    self.log.info("%s", exc)
                    return
                if kind not in ("waiting", "unplanned"):
                    break
                await place.look_again(self.log, at_first_plan=kind == "unplanned")
        self.log.info("%s: %s", kind, reason)
        if kind == "granted":
            await asyncio.to_thread(self.services.ledger.queue.start, self.job_id, f"admitted again: {reason}")
        elif kind == "impossible":
            await asyncio.to_thread(self._record_impossible, reason)

    def _record_impossible(self, reason: str) -> None:
        """Halt a job that asks for something that no node has, perhaps since its revision, so that nothing is lost and
        a user can correct it."""
        tell = {"state": "HALTED", "tags": {}}
        told = f"it cannot go on like this: {reason}"
        self.services.ledger.jobs.move(self.job_id, State.HALTED, told, {}, tell=tell, only_from=State.QUEUED)

    # --- one attempt --------------------------------------------------------------------------------------------

    def _keep_in_mind(self, watch: PodWatch, attempt: Attempt | None) -> None:
        """Make the watch remember the attempt's deleted pods between two looks, until the attempt is over."""
        key = None if attempt is None else (self.job_id, self.role, str(attempt.number))
        if self._followed is not None and self._followed[0] != key:
            watch.unsubscribe(*self._followed)
            self._followed = None
        if key is not None and self._followed is None:
            self._followed = (key, watch.subscribe(key))

    async def _guard(self, watch: PodWatch, attempt: Attempt) -> None:
        """Deploy the attempt if it is not, watch it until something ends, and have it judged."""
        self._keep_in_mind(watch, attempt)
        core = await self._cluster()
        job = await asyncio.to_thread(self.services.ledger.jobs.get, self.job_id)
        try:
            launch = await self._call(pods.deploy, self.services, core, job, attempt)
        except QuotaError as exc:
            seen = EndSignal(EndKind.QUOTA, str(exc))
        except RefusedError as exc:
            seen = EndSignal(EndKind.REFUSED, str(exc))
        else:
            elastic = self.role == TRAIN_ROLE and job.manifest.get("elastic") is not None
            with self._queue().planned() if elastic else nullcontext():
                seen = await self._watch_attempt(watch, job, launch, attempt)
        closed = await self._call(attempts.conclude, self.services, core, self.job_id, self.role, attempt.number, seen)
        if closed is None:
            self.log.info("The learners are alive; going on (%s)", seen.reason)
            await self.services.timing.sleep(self.services.timing.retry.first_seconds)
        elif closed.number != attempt.number:
            self.log.info("Another controller has gone on with attempt %d", closed.number)
        else:
            self.log.info("Attempt %d: %s: %s", closed.number, closed.outcome, closed.reason)
