"""`Ledger`: every call is one transaction. Safe from several processes and threads; never call it in an event loop
directly (use `asyncio.to_thread`)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

from updraft import allocation
from updraft.allocation import Capacity
from updraft.exceptions import NotFoundError
from updraft.ledger import admission, attempts, endings, facts, halting, jobs, outbox, requests, revisions
from updraft.ledger.clock import clock_of
from updraft.ledger.engine import make_engine, reading, writing
from updraft.ledger.leases import LEASE_SECONDS, WAIT_SECONDS, give_lease, lease, take_lease
from updraft.ledger.records import (
    Admission,
    Attempt,
    AttemptClosure,
    Checkpoint,
    Job,
    ListedJob,
    Message,
    NewJob,
    QueueNews,
    Request,
    RequestKind,
    Revision,
    Transition,
    Validation,
)
from updraft.lifecycle import State, Verdict
from updraft.lifecycle.membership import Membership
from updraft.recovery.resume import ResumePlan

_open: dict[tuple[int, str], Ledger] = {}
_open_lock = threading.Lock()


def open_ledger(url: str) -> Ledger:
    """The ledger of this process. A forked child gets its own: database connections do not survive a fork."""
    key = (os.getpid(), url)
    with _open_lock:
        # A parent's entry stays in the child's dictionary on purpose: closing its connections here would hurt it.
        if key not in _open:
            _open[key] = Ledger(url)
        return _open[key]


def _new_lock_after_fork() -> None:
    global _open_lock
    _open_lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock_after_fork)


class Ledger:
    """Reads and writes the platform's records. `clock` is replaced in tests."""

    def __init__(self, url: str, *, clock: Callable[[], datetime] | None = None) -> None:
        self._engine = make_engine(url)
        self._clock = clock or clock_of(self._engine)

    def close(self) -> None:
        self._engine.dispose()

    def now(self) -> datetime:
        """UTC by the one clock that all times of the ledger are of. Raises UnavailableError."""
        return self._clock()

    # --- jobs ---

    def record_job(self, new: NewJob) -> Job:
        """Idempotent by id: the same run again gets the existing job, another run RefusedError."""
        with writing(self._engine) as connection:
            return jobs.record(connection, new, self._clock())

    def job(self, job_id: str) -> Job:
        """Raises NotFoundError."""
        with reading(self._engine) as connection:
            return jobs.get(connection, job_id)

    def job_of_run(self, dag_id: str, run_id: str) -> Job:
        """The job whose guardian is this DAG run. Raises NotFoundError."""
        with reading(self._engine) as connection:
            found = jobs.of_run(connection, dag_id, run_id)
        if found is None:
            raise NotFoundError(f"run: {run_id!r} of DAG {dag_id!r} is not recorded as a job")
        return found

    def jobs(
        self,
        tenant: str | None = None,
        state: State | None = None,
        name: str | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> list[ListedJob]:
        """Newest first; `before` is the id of the last job of the page before."""
        with reading(self._engine) as connection:
            return jobs.find(connection, tenant=tenant, state=state, name=name, limit=limit, before=before)

    def recorded(self, runs: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
        """Those of the runs, as (DAG, run), that are the guardians of jobs."""
        with reading(self._engine) as connection:
            return jobs.recorded(connection, runs)

    def transitions(self, job_id: str) -> list[Transition]:
        with reading(self._engine) as connection:
            return jobs.history(connection, job_id)

    def move(
        self,
        job_id: str,
        to: State,
        reason: str,
        evidence: Mapping[str, Any] | None = None,
        *,
        tell: Mapping[str, Any] | None = None,
        only_from: State | None = None,
    ) -> Job:
        """Raises IllegalTransitionError; ends are reached by `finish` only.

        `tell`: {"state", "tags"} of a message to MLflow that is written with it. A move that changes nothing tells
        nothing. `only_from`: nothing is done in any other state; for a caller that looked a while ago.
        """
        with writing(self._engine) as connection:
            return jobs.move(connection, job_id, to, reason, evidence, self._clock(), tell=tell, only_from=only_from)

    def note(
        self,
        job_id: str,
        reason: str,
        evidence: Mapping[str, Any] | None = None,
        *,
        only_from: State | None = None,
    ) -> Transition:
        """A transition to the same state; possible after the end too, whose reason it leaves alone.

        `only_from`: nothing is done in any other state.
        """
        with writing(self._engine) as connection:
            return jobs.note(connection, job_id, reason, evidence, self._clock(), only_from)

    def finish(self, job_id: str, verdict: Verdict) -> Job:
        """The first verdict stands. With it go its message to MLflow and an answer to all unanswered requests."""
        with writing(self._engine) as connection:
            return endings.finish(connection, job_id, verdict, self._clock())

    def override(self, job_id: str, what: Mapping[str, Any]) -> Job:
        """What a person made Airflow say against the evidence; the newest stands."""
        with writing(self._engine) as connection:
            return jobs.override(connection, job_id, what)

    def live_jobs(self) -> list[Job]:
        """Those that have not ended, oldest first."""
        with reading(self._engine) as connection:
            return jobs.live(connection)

    def touch_guardian(self, job_id: str, what: str) -> None:
        """`what` guards the job and is alive. Written at most once in ten seconds."""
        now = self._clock()
        if jobs.touch_is_due(self.job(job_id), now):  # most calls need no lock
            self.touch_guardians({job_id: what})

    def touch_guardians(self, guarded: Mapping[str, str]) -> None:
        """`guarded`: job id -> what guards it, for many jobs in one transaction."""
        with writing(self._engine) as connection:
            jobs.touch_guardians(connection, guarded, self._clock())

    def set_run(self, job_id: str, mlflow_run_id: str, mlflow_experiment_id: str) -> Job:
        with writing(self._engine) as connection:
            return jobs.set_run(connection, job_id, mlflow_run_id, mlflow_experiment_id)

    def set_inputs(self, job_id: str, code_tree: str | None, data: Sequence[Mapping[str, Any]]) -> Job:
        with writing(self._engine) as connection:
            return jobs.set_inputs(connection, job_id, code_tree, data)

    # --- what people ask for ---

    def request(self, job_id: str, kind: RequestKind, by: str, *, revision: Mapping[str, Any] | None = None) -> Request:
        """Raises RefusedError with advice. The same again finds the request that is unanswered; see `requests`."""
        with writing(self._engine) as connection:
            return requests.request(connection, job_id, kind, by, revision, self._clock())

    def requests(self, job_id: str) -> list[Request]:
        """Oldest first."""
        with reading(self._engine) as connection:
            return requests.list_requests(connection, jobs.get(connection, job_id).id)

    def pending(self, job_id: str, kind: RequestKind) -> Request | None:
        """The newest unanswered one of the kind."""
        with reading(self._engine) as connection:
            return requests.pending(connection, job_id, kind)

    def asked(self) -> frozenset[str]:
        """Ids of all jobs of which something is asked that nobody has answered."""
        with reading(self._engine) as connection:
            return requests.asked(connection)

    def answer(self, job_id: str, seq: int, text: str) -> Request:
        """The first answer stands."""
        with writing(self._engine) as connection:
            return requests.answer(connection, job_id, seq, text, self._clock())

    def rest(self, job_id: str, kept: str, *, attempt: int | None) -> bool:
        """HALTED, if that is asked for and nothing runs: gives back what was granted, and answers the request."""
        with writing(self._engine) as connection:
            return halting.rest(connection, job_id, kept, attempt, self._clock())

    def rejoin(self, job_id: str, seq: int, place: allocation.Request) -> bool:
        """Obeys the resume request `seq`: revised if it says so, and in line again. Once, whoever asks."""
        with writing(self._engine) as connection:
            return halting.rejoin(connection, job_id, seq, place, self._clock())

    def revise(self, job_id: str, manifest: Mapping[str, Any], changes: Mapping[str, Any], by: str) -> Revision:
        """The job's manifest from now on; the one that it has already is no new revision."""
        with writing(self._engine) as connection:
            return revisions.revise(connection, job_id, manifest, changes, by, self._clock())

    def revisions(self, job_id: str) -> list[Revision]:
        """Oldest first; number 0 is the manifest as submitted."""
        with reading(self._engine) as connection:
            return revisions.list_revisions(connection, jobs.get(connection, job_id))

    # --- messages to MLflow ---

    def outbox(self, job_id: str | None = None, limit: int = 100) -> list[Message]:
        """Undelivered, each job's in order; jobs whose messages failed most often last."""
        with reading(self._engine) as connection:
            return outbox.undelivered_messages(connection, job_id, limit)

    def delivered(self, message_id: int) -> None:
        with writing(self._engine) as connection:
            outbox.delivered(connection, message_id, self._clock())

    def undelivered(self, message_id: int, error: str) -> None:
        """Counts a try that failed."""
        with writing(self._engine) as connection:
            outbox.undelivered(connection, message_id, error)

    # --- the queue ---

    def enqueue(self, job_id: str, request: allocation.Request) -> None:
        with writing(self._engine) as connection:
            admission.enqueue(connection, job_id, request)

    def plan_queue(self, capacity: Capacity) -> None:
        """Grants to all whose turn it is, and writes place and reason of each job that waits."""
        with writing(self._engine) as connection:
            admission.plan(connection, capacity, self._clock())

    def hold_queue(self, problem: str) -> None:
        """Nobody can tell what is free: each job in the queue waits for this reason."""
        with writing(self._engine) as connection:
            admission.hold(connection, problem)

    def plan_is_due(self) -> bool:
        """Whether the queue has changed since the newest plan."""
        with reading(self._engine) as connection:
            return admission.plan_is_due(connection)

    def admission(self, job_id: str) -> Admission:
        """What the newest plan says of the job. Raises RefusedError for one that is not in the queue."""
        with reading(self._engine) as connection:
            return admission.admission(connection, job_id)

    def queue_news(self, since: int | None) -> QueueNews:
        """What changed in the queue after its counter had this value; None: only the value now."""
        with reading(self._engine) as connection:
            return admission.news(connection, since)

    def requeue(self, job_id: str, request: allocation.Request) -> None:
        """To the end of the line with a QUEUED job that gave its grant back. Once, whoever asks."""
        with writing(self._engine) as connection:
            admission.requeue(connection, job_id, request, self._clock())

    def in_line(self, job_id: str) -> bool:
        """Whether the job has a place in line, or a grant."""
        with reading(self._engine) as connection:
            return admission.in_line(connection, job_id)

    def take_place(self, job_id: str, reason: str) -> bool:
        """DEPLOYING, if the job is QUEUED and its turn has come."""
        with writing(self._engine) as connection:
            return admission.take_place(connection, job_id, reason, self._clock())

    def release(self, job_id: str) -> bool:
        """Whether there was anything to give back."""
        with writing(self._engine) as connection:
            return admission.release(connection, job_id, self._clock())

    # --- attempts ---

    def ensure_attempt(
        self,
        job_id: str,
        role: str,
        *,
        after: int | None,
        resume: ResumePlan | None = None,
        learners: int = 1,
    ) -> Attempt:
        """The attempt that follows `after` (None: the first), made once whoever asks; see `attempts`.

        Raises RefusedError when the job has ended or was cancelled.
        """
        with writing(self._engine) as connection:
            return attempts.ensure_attempt(
                connection, job_id, role, after=after, resume=resume, learners=learners, now=self._clock()
            )

    def change_members(self, job_id: str, role: str, number: int, membership: Membership) -> Attempt:
        """Gives an open attempt its next generation of members.

        Raises StaleAttemptError for another attempt than the open one, and RefusedError for a generation that does not
        follow the attempt's own.
        """
        with writing(self._engine) as connection:
            return attempts.change_members(connection, job_id, role, number, membership)

    def changed_members(self) -> dict[tuple[str, str], int]:
        """The generation of each open attempt whose members have changed since it began, by job and role."""
        with reading(self._engine) as connection:
            return attempts.changed_members(connection)

    def current_attempt(self, job_id: str, role: str) -> Attempt | None:
        with reading(self._engine) as connection:
            return attempts.current_attempt(connection, job_id, role)

    def attempts(self, job_id: str) -> list[Attempt]:
        with reading(self._engine) as connection:
            return attempts.list_attempts(connection, job_id)

    def close_attempt(
        self,
        job_id: str,
        role: str,
        number: int,
        closure: AttemptClosure,
    ) -> Attempt:
        """The first closure stands.

        Raises StaleAttemptError when a newer attempt of the role exists.
        """
        with writing(self._engine) as connection:
            return attempts.close_attempt(connection, job_id, role, number, closure, self._clock())

    def note_steps(self, job_id: str, role: str, number: int, first: int, last: int) -> None:
        """Widens the range of steps of an open attempt."""
        with reading(self._engine) as connection:  # most calls need no lock
            known = attempts.current_attempt(connection, job_id, role)
        if known is not None and known.number == number and attempts.covers(known, first, last):
            return
        with writing(self._engine) as connection:
            attempts.note_steps(connection, job_id, role, number, first, last)

    def runtime_seconds(self, job_id: str, role: str) -> float:
        """Since the role's first attempt, until its end or now, without the time halted or in line."""
        with reading(self._engine) as connection:
            return attempts.runtime_seconds(connection, job_id, role, self._clock())

    # --- locks ---

    def lock(
        self, name: str, *, lease_seconds: float = LEASE_SECONDS, wait_seconds: float = WAIT_SECONDS
    ) -> AbstractContextManager[None]:
        """One holder of `name` at a time over all processes; see `leases`. Raises UnavailableError."""
        return lease(self._engine, name, self._clock, lease_seconds=lease_seconds, wait_seconds=wait_seconds)

    def take_lease(self, name: str, owner: str, lease_seconds: float) -> bool:
        """Takes or renews the lock `name` for `owner`. False while another one holds it."""
        return take_lease(self._engine, name, owner, self._clock(), lease_seconds)

    def give_lease(self, name: str, owner: str) -> None:
        """Ends the lease, if it is this owner's."""
        give_lease(self._engine, name, owner)

    # --- facts ---

    def record_checkpoint(
        self,
        job_id: str,
        name: str,
        *,
        step: int,
        attempt: int,
        metrics: Mapping[str, float],
        bytes: int,
        uri: str,
        created_at: datetime | None = None,
        verified: bool = True,
    ) -> Checkpoint:
        """The first record of a name stands. Raises StaleAttemptError for a new one of a closed attempt."""
        now = self._clock()
        new = Checkpoint(job_id, name, step, attempt, metrics, bytes, uri, created_at or now, now if verified else None)
        with writing(self._engine) as connection:
            return facts.record_checkpoint(connection, new)

    def checkpoints(
        self, job_id: str, *, with_deleted: bool = False, with_quarantined: bool = False
    ) -> list[Checkpoint]:
        """Lowest step first."""
        with reading(self._engine) as connection:
            return facts.list_checkpoints(
                connection, job_id, with_deleted=with_deleted, with_quarantined=with_quarantined
            )

    def quarantine_checkpoint(self, job_id: str, name: str, reason: str) -> Checkpoint:
        """Never gone on from again. The first reason stands."""
        with writing(self._engine) as connection:
            return facts.quarantine_checkpoint(connection, job_id, name, reason, self._clock())

    def mark_checkpoint_deleted(self, job_id: str, name: str, reason: str) -> Checkpoint:
        with writing(self._engine) as connection:
            return facts.mark_checkpoint_deleted(connection, job_id, name, reason, self._clock())

    def validation(self, tenant: str, fingerprint: str, suite_digest: str) -> Validation | None:
        with reading(self._engine) as connection:
            return facts.validation(connection, tenant, fingerprint, suite_digest)

    def judged(self, tenant: str, suite_digest: str) -> tuple[str, ...]:
        """Fingerprints of the tenant's data on which this suite's verdict is known; of many, the latest."""
        with reading(self._engine) as connection:
            return facts.judged(connection, tenant, suite_digest)

    def record_validation(
        self, tenant: str, fingerprint: str, suite_digest: str, *, success: bool, result: Mapping[str, Any]
    ) -> Validation:
        new = Validation(tenant, fingerprint, suite_digest, success, result, self._clock())
        with writing(self._engine) as connection:
            return facts.record_validation(connection, new)

    def effect(self, job_id: str, key: str) -> Any | None:
        """What `record_effect` stored, or None when the effect has not happened."""
        with reading(self._engine) as connection:
            return facts.effect(connection, job_id, key)

    def record_effect(self, job_id: str, key: str, value: Any) -> Any:
        """The first value stands and is returned."""
        with writing(self._engine) as connection:
            return facts.record_effect(connection, job_id, key, value, self._clock())
