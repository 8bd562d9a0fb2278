"""Find jobs without a controller: wait until there is something to remove or to deliver, and return it.

The trigger only finds; the reaper's task acts. The evidence comes from the ledger, the pods, and, for jobs that no
controller has touched for a while, from Airflow. `updraft.recovery.reaping` decides whether it is enough.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from updraft.kubernetes.watch import PodWatch
from updraft.recovery.reaping import OrphanCandidate, OrphanPod, Reap, Run, reap
from updraft.services import UsesServices
from updraft_learner.backoff import Backoff

if TYPE_CHECKING:
    from updraft.ledger import Job
    from updraft.lifecycle import State

T = TypeVar("T")
ASK_AFTER_SECONDS = 60.0  # how long no controller has touched a job before Airflow is asked about it
UNTOLD = Backoff(30.0, 480.0)  # after each try, how long a message is left to its own job's tasks
FORGET_SECONDS = 120.0  # after a longer gap between two looks, observations start again


@dataclass
class Memory:
    """What this triggerer has observed so far. It outlives a trigger, which ends at each finding: if the observed times
    started again with each trigger, they would never become long enough on a busy platform."""

    touched: dict[str, tuple[object, float]] = field(
        default_factory=dict
    )  # job -> the controller's last touch, and when it was first read
    untold: dict[str, float] = field(default_factory=dict)
    looked: float = -math.inf

    def begin_look(self, now: float) -> None:
        """Forget everything if the last look, before `now`, was too long ago to know what happened since."""
        if now - self.looked > FORGET_SECONDS:  # nobody watched in between
            self.touched.clear()
            self.untold.clear()
        self.looked = now


_memories: dict[str, Memory] = {}


class ReaperTrigger(UsesServices, BaseTrigger):
    """Look for jobs without a controller, pods without a job, and messages to MLflow that were not delivered.

    Args:
        conn_id: Airflow connection of the cluster.

    Fires `{"reap": {job id: {"reason", "pods", "end", ...}}, "untold": [job ids], "notices": [ids]}` once one of them
    is not empty.
    """

    def __init__(self, *, conn_id: str) -> None:
        super().__init__()
        self.conn_id = conn_id

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "updraft.triggers.reaper.ReaperTrigger", {"conn_id": self.conn_id}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        async with AsyncExitStack() as stack:
            watches: dict[str, PodWatch] = {}
            while True:
                try:
                    for tenant in (await asyncio.to_thread(self.services.tenancy)).names:
                        if tenant not in watches:
                            watch = self.services.watch_pods(self.conn_id, self.services.settings.namespace(tenant))
                            watches[tenant] = await stack.enter_async_context(watch)
                    found = await self._look(watches)
                except Exception as exc:  # noqa: BLE001 - outermost line of the look: the next look tries again
                    self.log.warning("The reaper cannot see: %s: %s", type(exc).__name__, str(exc)[:200])
                else:
                    if any(found.values()):
                        yield TriggerEvent(found)
                        return
                await asyncio.sleep(self.services.timing.reaper_seconds)

    async def _look(self, watches: Mapping[str, PodWatch]) -> dict[str, Any]:
        live = {job.id: job for job in await asyncio.to_thread(self.services.ledger.jobs.live)}
        pods: dict[str, list[OrphanPod]] = {}
        for watch in watches.values():
            if watch.synced.is_set():  # otherwise its pods may be out of date
                for (job_id, role, attempt), found in watch.launches().items():
                    number = int(attempt) if attempt.isdigit() else 0
                    pods.setdefault(job_id, []).extend(OrphanPod(pod.name, role, number) for pod in found)
        now, memory = self.services.timing.clock(), _memories.setdefault(self.conn_id, Memory())
        memory.begin_look(now)
        memory.touched = {name: seen for name, seen in memory.touched.items() if name in live}
        wards = [await self._ward(live.get(name), name, tuple(pods.get(name, ())), now, memory) for name in live | pods]
        decided = {ward.job_id: reap(ward) for ward in wards}
        return {
            "reap": {
                job_id: {
                    "reason": act.reason,
                    "pods": list(act.pods),
                    "end": act.end,
                    "evidence": dict(act.evidence),
                    "controller_seen": _text(live.get(job_id)),
                }
                for job_id, act in decided.items()
                if isinstance(act, Reap)
            },
            "untold": await asyncio.to_thread(self._waiting_messages, now, memory),
            "notices": [notice.id for notice in await asyncio.to_thread(self.services.ledger.notices.due)],
        }

    async def _ward(
        self, job: Job | None, job_id: str, pods: tuple[OrphanPod, ...], now: float, memory: Memory
    ) -> OrphanCandidate:
        if job is None:  # it has ended or was never recorded here: only its pods matter
            state = await asyncio.to_thread(self._state_of, job_id)
            return OrphanCandidate(job_id, state, 0.0, Run.UNKNOWN, pods=pods)
        word = job.controller_seen_at
        known = memory.touched.get(job_id)
        if known is None or known[0] != word:
            known = memory.touched[job_id] = (word, now)
        quiet = now - known[1]
        newest = await asyncio.to_thread(self._newest, job_id) if pods else {}
        run: Run = Run.UNKNOWN
        tasks: dict[str, str | None] = {}
        if quiet >= ASK_AFTER_SECONDS:
            run, tasks = await self._ask_airflow(job)
        return OrphanCandidate(job_id, job.state, quiet, run, tasks=tasks, pods=pods, newest=newest)

    def _state_of(self, job_id: str) -> State | None:
        from updraft.exceptions import NotFoundError

        try:
            return self.services.ledger.jobs.get(job_id).state
        except NotFoundError:
            return None

    def _newest(self, job_id: str) -> dict[str, int]:
        newest: dict[str, int] = {}
        for attempt in self.services.ledger.attempts.of_job(job_id):
            newest[attempt.role] = max(newest.get(attempt.role, 0), attempt.number)
        return newest

    def _waiting_messages(self, now: float, memory: Memory) -> list[str]:
        tries: dict[str, int] = {}
        for message in self.services.ledger.outbox.undelivered(limit=100):
            tries[message.job_id] = max(message.tries, tries.get(message.job_id, 0))
        memory.untold = {job_id: memory.untold.get(job_id, now) for job_id in tries}
        due = [job_id for job_id, since in memory.untold.items() if now - since >= UNTOLD.seconds(tries[job_id] + 1)]
        for job_id in due:
            memory.untold[job_id] = now
        return sorted(due)

    async def _ask_airflow(self, job: Job) -> tuple[Run, dict[str, str | None]]:
        """Return the state of the run and of its tasks. What Airflow does not say is UNKNOWN; a failure for one job
        does not affect another.

        Whether the run's DAG exists cannot be asked here: a triggerer's supervisor never answers that message.
        """
        from airflow.sdk.exceptions import AirflowRuntimeError
        from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

        seconds = self.services.timing.airflow_answer_seconds
        try:
            state = await _answer(seconds, RuntimeTaskInstance.get_dagrun_state, job.dag_id, job.run_id)
            tasks = await _answer(seconds, RuntimeTaskInstance.get_task_states, dag_id=job.dag_id, run_ids=[job.run_id])
        except AirflowRuntimeError as exc:
            return (Run.GONE if _not_found(exc.error.detail) else Run.UNKNOWN), {}
        except Exception as exc:  # noqa: BLE001 - whatever the error: Airflow did not answer
            self.log.warning("Airflow does not say how run %s stands: %s", job.run_id, type(exc).__name__)
            return Run.UNKNOWN, {}
        run = Run(state) if state in set(Run) else Run.UNKNOWN
        return run, dict(tasks.get(job.run_id) or {})


async def _answer(seconds: float, ask: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call `ask` in a thread of its own: the thread that Airflow's hooks share in a triggerer must not wait for an
    answer."""
    from asgiref.sync import sync_to_async

    asked = sync_to_async(ask, thread_sensitive=False)
    return await asyncio.wait_for(asked(*args, **kwargs), seconds)


def _not_found(detail: Mapping[str, Any] | None) -> bool:
    """Return whether the API answered that there is no such run; a proxy's or a wrong path's 404 gives no such
    reason."""
    told = (detail or {}).get("detail")
    inner = told.get("detail") if isinstance(told, Mapping) else None
    return (
        (detail or {}).get("status_code") == 404 and isinstance(inner, Mapping) and inner.get("reason") == "not_found"
    )


def _text(job: Job | None) -> str | None:
    """Return the controller's last touch, so that the task sees whether it has come back since."""
    return None if job is None or job.controller_seen_at is None else job.controller_seen_at.isoformat()
