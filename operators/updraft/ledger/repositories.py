"""Define one repository for each kind of record. Every method is one transaction.

One method writes everything that has to be written together, whatever tables it touches: the end of an attempt with
what follows it, a verdict with its message to MLflow. The functions that the methods call (in `ledger/jobs.py` and its
sibling modules) take the open transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, Engine, insert, select, update

from updraft import allocation
from updraft.exceptions import NotFoundError
from updraft.ledger import (
    admission,
    attempts,
    endings,
    facts,
    halting,
    jobs,
    leases,
    notices,
    outbox,
    requests,
    revisions,
    rounds,
    schedules,
    series,
)
from updraft.ledger.admission import Decide
from updraft.ledger.engine import reading, writing
from updraft.ledger.records import (
    Admission,
    Analysis,
    Attempt,
    AttemptClosure,
    Checkpoint,
    Job,
    JobSizes,
    ListedJob,
    Message,
    NewJob,
    NewNotice,
    NewSeriesEvent,
    Notice,
    QueueNews,
    QueueRow,
    Request,
    RequestKind,
    ResizeRow,
    Revision,
    Schedule,
    Series,
    SeriesEvent,
    Transition,
    Use,
    Validation,
)
from updraft.ledger.tables import tenancy
from updraft.lifecycle import State, Verdict, is_legal
from updraft.lifecycle.idempotency import IdempotencyKey
from updraft.lifecycle.membership import Membership
from updraft.recovery.resume import ResumePlan
from updraft.tenants import Tenancy

if TYPE_CHECKING:  # NumPy
    from updraft.allocation.scalability import Report

T = TypeVar("T")


class _NotDecided(Exception):
    """The plan does not say what was asked for."""


class _Repository:
    def __init__(self, engine: Engine, clock: Callable[[], datetime]) -> None:
        self._engine, self._clock = engine, clock

    def _reading(self) -> AbstractContextManager[Connection]:
        return reading(self._engine)

    def _writing(self) -> AbstractContextManager[Connection]:
        return writing(self._engine)


class Jobs(_Repository):
    """Jobs, their states with reasons, and the revisions of their manifests."""

    def record(self, new: NewJob) -> Job:
        """Record a new job. Idempotent by id: the same run again gets the existing job, another run RefusedError."""
        with self._writing() as connection:
            return jobs.record(connection, new, self._clock())

    def get(self, job_id: str) -> Job:
        """Return the job. Raises NotFoundError."""
        with self._reading() as connection:
            return jobs.get(connection, job_id)

    def of_run(self, dag_id: str, run_id: str) -> Job:
        """Return the job whose controller is this DAG run. Raises NotFoundError."""
        with self._reading() as connection:
            found = jobs.of_run(connection, dag_id, run_id)
        if found is None:
            raise NotFoundError(f"run: {run_id!r} of DAG {dag_id!r} is not recorded as a job")
        return found

    def find(
        self,
        tenant: str | None = None,
        state: State | None = None,
        name: str | None = None,
        limit: int = 100,
        before: str | None = None,
    ) -> list[ListedJob]:
        """Return jobs, newest first; `before` is the id of the last job of the page before."""
        with self._reading() as connection:
            return jobs.find(connection, tenant=tenant, state=state, name=name, limit=limit, before=before)

    def recorded(self, runs: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
        """Return those of the (DAG, run) pairs that are the controllers of jobs."""
        with self._reading() as connection:
            return jobs.recorded(connection, runs)

    def transitions(self, job_id: str) -> list[Transition]:
        with self._reading() as connection:
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
        """Move the job to another state. Raises IllegalTransitionError; a terminal state is reached by `finish` only.

        `tell`: {"state", "tags"} of a message to MLflow that is written with it. A move that changes nothing tells
        nothing. `only_from`: do nothing in any other state; for a caller that looked a while ago.
        """
        with self._writing() as connection:
            return jobs.move(connection, job_id, to, reason, evidence, self._clock(), tell=tell, only_from=only_from)

    def note(
        self,
        job_id: str,
        reason: str,
        evidence: Mapping[str, Any] | None = None,
        *,
        only_from: State | None = None,
    ) -> Transition:
        """Add a transition to the same state. Possible after the job's end too; the verdict's reason stays.

        `only_from`: do nothing in any other state.
        """
        with self._writing() as connection:
            return jobs.note(connection, job_id, reason, evidence, self._clock(), only_from)

    def finish(self, job_id: str, verdict: Verdict, tells: Iterable[NewNotice] = ()) -> Job:
        """End the job; the first verdict stays. Its messages to MLflow and to people, and an answer to all unanswered
        requests are written with it."""
        with self._writing() as connection:
            now = self._clock()
            if not jobs.get(connection, job_id, lock=True).ended:
                notices.put(connection, tells, now)
            return endings.finish(connection, job_id, verdict, now)

    def override(self, job_id: str, what: Mapping[str, Any]) -> Job:
        """Record the result that a user set in Airflow against the evidence; the newest stays."""
        with self._writing() as connection:
            return jobs.override(connection, job_id, what)

    def live(self) -> list[Job]:
        """Return the jobs that have not ended, oldest first."""
        with self._reading() as connection:
            return jobs.live(connection)

    def touch(self, job_id: str, what: str) -> None:
        """Record that `what`, a task or trigger, controls the job and is alive. Writes at most once in ten seconds."""
        now = self._clock()
        if jobs.touch_is_due(self.get(job_id), now):  # most calls need no lock
            self.touch_all({job_id: what})

    def touch_all(self, guarded: Mapping[str, str]) -> None:
        """Record for many jobs in one transaction which task or trigger controls each (job id -> name)."""
        with self._writing() as connection:
            jobs.touch_controllers(connection, guarded, self._clock())

    def set_run(self, job_id: str, mlflow_run_id: str, mlflow_experiment_id: str) -> Job:
        with self._writing() as connection:
            return jobs.set_run(connection, job_id, mlflow_run_id, mlflow_experiment_id)

    def set_inputs(self, job_id: str, code_tree: str | None, data: Sequence[Mapping[str, Any]]) -> Job:
        with self._writing() as connection:
            return jobs.set_inputs(connection, job_id, code_tree, data)

    def rest(self, job_id: str, kept: str, *, attempt: int | None) -> bool:
        """Move the job to HALTED if a halt is requested and nothing runs: its grant is released and the request
        answered."""
        with self._writing() as connection:
            return halting.rest(connection, job_id, kept, attempt, self._clock())

    def rejoin(self, job_id: str, seq: int, place: allocation.GangRequest) -> bool:
        """Obey the resume request `seq`: revise the job if the request says so, and put it into the queue again.
        Happens once for all callers."""
        with self._writing() as connection:
            return halting.rejoin(connection, job_id, seq, place, self._clock())

    def give_back(self, job_id: str) -> bool:
        """Put a job that the planner asks for its room, and that runs no learner, into the queue again; return whether
        it is there. Once for all callers."""
        with self._writing() as connection:
            return halting.give_back(connection, job_id, self._clock())

    def revise(self, job_id: str, manifest: Mapping[str, Any], changes: Mapping[str, Any], by: str) -> Revision:
        """Make this the job's manifest from now on, and return its revision. An unchanged manifest adds no revision."""
        with self._writing() as connection:
            return revisions.revise(connection, job_id, manifest, changes, by, self._clock())

    def revisions(self, job_id: str) -> list[Revision]:
        """Return the revisions of the manifest, oldest first; number 0 is the manifest as submitted."""
        with self._reading() as connection:
            return revisions.list_revisions(connection, jobs.get(connection, job_id))


class Requests(_Repository):
    """Users' requests to a job: halt, resume or cancel."""

    def make(self, job_id: str, kind: RequestKind, by: str, *, revision: Mapping[str, Any] | None = None) -> Request:
        """Record a request. Raises RefusedError with advice. The same request again returns the unanswered one; see
        `requests`."""
        with self._writing() as connection:
            return requests.request(connection, job_id, kind, by, revision, self._clock())

    def of_job(self, job_id: str) -> list[Request]:
        """Return the job's requests, oldest first."""
        with self._reading() as connection:
            return requests.list_requests(connection, jobs.get(connection, job_id).id)

    def pending(self, job_id: str, kind: RequestKind) -> Request | None:
        """Return the newest unanswered one of the kind."""
        with self._reading() as connection:
            return requests.pending(connection, job_id, kind)

    def asked(self) -> frozenset[str]:
        """Return the ids of all jobs with an unanswered request."""
        with self._reading() as connection:
            return requests.asked(connection)

    def answer(self, job_id: str, seq: int, text: str) -> Request:
        """Answer a request. The first answer stays."""
        with self._writing() as connection:
            return requests.answer(connection, job_id, seq, text, self._clock())


class Outbox(_Repository):
    """Messages to MLflow, written with the facts that they report and delivered later."""

    def undelivered(self, job_id: str | None = None, limit: int = 100) -> list[Message]:
        """Return undelivered messages, those of a job in order; jobs whose messages failed most often come last."""
        with self._reading() as connection:
            return outbox.undelivered_messages(connection, job_id, limit)

    def delivered(self, message_id: int) -> None:
        with self._writing() as connection:
            outbox.delivered(connection, message_id, self._clock())

    def failed(self, message_id: int, error: str) -> None:
        """Count a try that failed."""
        with self._writing() as connection:
            outbox.undelivered(connection, message_id, error)


class Queue(_Repository):
    """The jobs that wait for a grant, and those that hold one."""

    def enqueue(self, job_id: str, request: allocation.GangRequest) -> None:
        with self._writing() as connection:
            admission.enqueue(connection, job_id, request)

    def plan(self, decide: admission.Decide) -> None:
        """Grant what `decide` says, and write the place and reason of each job that waits.

        `decide` is called under the lock of the queue, with the requests in their order and what is granted.
        """
        with self._writing() as connection:
            admission.plan(connection, decide, self._clock)

    def hold(self, problem: str) -> None:
        """Let each job in the queue wait for this reason while the capacity is unknown."""
        with self._writing() as connection:
            admission.hold(connection, problem)

    def plan_is_due(self) -> bool:
        """Return whether the queue has changed since the newest plan."""
        with self._reading() as connection:
            return admission.plan_is_due(connection)

    def admission(self, job_id: str) -> Admission:
        """Return the newest plan's decision about the job. Raises RefusedError if the job is not in the queue."""
        with self._reading() as connection:
            return admission.admission(connection, job_id)

    def news(self, since: int | None) -> QueueNews:
        """Return what changed in the queue after its counter had this value; None: only the value now."""
        with self._reading() as connection:
            return admission.news(connection, since)

    def prioritize(self, job_id: str, priority: allocation.Priority, by: str) -> bool:
        """Give the job another priority, here and in its manifest; return whether it waits in the queue now. Raises
        RefusedError if the job has ended."""
        with self._writing() as connection:
            return admission.prioritize(connection, job_id, priority, by, self._clock())

    def listing(self) -> list[QueueRow]:
        """Return what is granted, oldest first, and then the jobs that wait, in the order of the newest plan."""
        with self._reading() as connection:
            return admission.listing(connection)

    def usual_seconds(self, series: Iterable[tuple[str, str]], newest: int = 5) -> dict[tuple[str, str], float]:
        """Return the median of how long the newest completed jobs of each series (tenant, name) have held their room.
        A series without such jobs is left out."""
        with self._reading() as connection:
            found = {each: admission.usual_seconds(connection, *each, newest) for each in series}
        return {each: seconds for each, seconds in found.items() if seconds is not None}

    def expect(self, waiting: Collection[str], starts: Mapping[str, datetime]) -> None:
        """Record when these jobs are expected to start, once for each; one that is not in `starts` has no estimate."""
        with self._writing() as connection:
            admission.expect(connection, waiting, starts)

    def estimate_errors(self, newest: int = 50) -> list[float]:
        """Return by how many seconds the newest jobs started later than they were expected to."""
        with self._reading() as connection:
            return admission.estimate_errors(connection, newest)

    def requested_at(self, job_id: str) -> datetime:
        """Return since when the job is in the queue; of a job that gave its room back, since before."""
        with self._reading() as connection:
            return admission.held(connection, job_id).requested_at

    def leaving(self, job_id: str) -> str | None:
        """Return why the job is asked to give back what it was granted; None if it is not."""
        with self._reading() as connection:
            return admission.leaving(connection, job_id)

    def resizes(self, job_id: str) -> bool:
        """Return whether the job is being given another size."""
        with self._reading() as connection:
            return admission.resizes(connection, job_id)

    def size(self, job_id: str) -> tuple[int, int | None] | None:
        """Return the learners and the batch that an elastic job has been given; None for another job."""
        with self._reading() as connection:
            return admission.size(connection, job_id)

    def sizes(self, job_id: str) -> JobSizes:
        """Return the sizes that an elastic job may have now; none for another job."""
        with self._reading() as connection:
            return admission.sizes(connection, job_id, self._clock())

    def target(self, job_id: str) -> tuple[int, str] | None:
        """Return the learners that a job is being given, and why; None if it keeps its size."""
        with self._reading() as connection:
            return admission.target(connection, job_id)

    def scale(self, job_id: str, learners: int | None, by: str, decide: Decide) -> bool:
        """Fix the learners of an elastic job, and plan the queue; None leaves them to the planner again.

        Returns False, and changes nothing, if the plan does not give it so many. Raises RefusedError if the job cannot
        be scaled now.
        """
        with suppress(_NotDecided), self._writing() as connection:
            admission.pin(connection, job_id, learners, by)
            admission.plan(connection, decide, self._clock)
            if learners is not None and admission.promised(connection, job_id) != learners:
                raise _NotDecided  # nothing of this transaction is kept
            return True
        return False

    def settle_in_place(
        self, job_id: str, learners: int, reason: str, evidence: Mapping[str, Any], *, pause: float | None
    ) -> None:
        """Record that a job has so many learners now, after some have joined or left while the others trained, who
        stood still for `pause` seconds. It is PROCESSING again."""
        with self._writing() as connection:
            now = self._clock()
            job = jobs.get(connection, job_id, lock=True)
            admission.settle_in_place(connection, job_id, learners, pause, now)
            if is_legal(job.state, State.PROCESSING):
                jobs.move(connection, job_id, State.PROCESSING, reason, evidence, now)

    def note_speed(
        self, job_id: str, attempt: int, report: Report, steps: int, began: datetime, *, generation: int = 1
    ) -> None:
        """Record how long a step takes with the members of this generation of an attempt, whose first step was at
        `began`, measured over so many steps; replaces what was measured before."""
        with self._writing() as connection:
            admission.note_speed(connection, job_id, (attempt, generation), report, steps, began, self._clock())

    def note_analysis(self, job_id: str, learners: int, found: Analysis) -> None:
        """Record what an elastic job with so many learners has measured of its own scaling."""
        with self._writing() as connection:
            admission.note_analysis(connection, job_id, learners, found, self._clock())

    def rounds(self, limit: int, tenants: Collection[str]) -> list[ResizeRow]:
        """Return the sizes that elastic jobs of these tenants got in the newest rounds, newest first."""
        with self._reading() as connection:
            return rounds.newest(connection, limit, tenants)

    def round_to_show(self) -> list[ResizeRow]:
        """Return the oldest round that was not reported yet and whose results are known; empty if there is none."""
        with self._reading() as connection:
            return rounds.to_show(connection)

    def mark_shown(self, number: int) -> None:
        """Record that a round was reported."""
        with self._writing() as connection:
            rounds.mark_shown(connection, number)

    def grants(self) -> list[allocation.Grant]:
        """Return what is granted and not released, oldest first."""
        with self._reading() as connection:
            return admission.live_grants(connection)

    def sized(self) -> tuple[list[allocation.GangRequest], list[allocation.Grant]]:
        """Return the jobs that wait, in the order of the newest plan, and those that have room; elastic ones with their
        sizes."""
        with self._reading() as connection:
            return admission.sized(connection, self._clock())

    def used(self, since: datetime) -> list[Use]:
        """Return what jobs have held after `since`."""
        with self._reading() as connection:
            return admission.used(connection, since)

    def requeue(self, job_id: str, request: allocation.GangRequest) -> None:
        """Add a QUEUED job that released its grant to the end of the queue, or to its earlier place if the planner took
        the grant back. Happens once for all callers."""
        with self._writing() as connection:
            admission.requeue(connection, job_id, request, self._clock())

    def holds(self, job_id: str) -> bool:
        """Return whether the job has a place in the queue, or a grant."""
        with self._reading() as connection:
            return admission.in_line(connection, job_id)

    def start(self, job_id: str, reason: str) -> bool:
        """Move the job to DEPLOYING if it is QUEUED and its turn has come."""
        with self._writing() as connection:
            return admission.take_place(connection, job_id, reason, self._clock())

    def release(self, job_id: str) -> bool:
        """Return whether there was anything to give back."""
        with self._writing() as connection:
            return admission.release(connection, job_id, self._clock())


class Attempts(_Repository):
    """The attempts of a job's roles."""

    def ensure(
        self,
        job_id: str,
        role: str,
        *,
        after: int | None,
        resume: ResumePlan | None = None,
        learners: int = 1,
        batch: int | None = None,
    ) -> Attempt:
        """Return the attempt that follows `after` (None: the first), made once for all callers; see `attempts`.

        Raises RefusedError when the job has ended or was cancelled.
        """
        with self._writing() as connection:
            return attempts.ensure_attempt(
                connection, job_id, role, after=after, resume=resume, learners=learners, batch=batch, now=self._clock()
            )

    def change_members(self, job_id: str, role: str, number: int, membership: Membership) -> Attempt:
        """Give an open attempt its next generation of members.

        Raises StaleAttemptError for another attempt than the open one, and RefusedError for a generation that does not
        follow the attempt's own.
        """
        with self._writing() as connection:
            return attempts.change_members(connection, job_id, role, number, membership)

    def changed_members(self) -> dict[tuple[str, str], int]:
        """Return the generation of each open attempt whose members have changed since it began, by job and role."""
        with self._reading() as connection:
            return attempts.changed_members(connection)

    def current(self, job_id: str, role: str) -> Attempt | None:
        with self._reading() as connection:
            return attempts.current_attempt(connection, job_id, role)

    def of_job(self, job_id: str) -> list[Attempt]:
        with self._reading() as connection:
            return attempts.list_attempts(connection, job_id)

    def close(
        self,
        job_id: str,
        role: str,
        number: int,
        closure: AttemptClosure,
    ) -> Attempt:
        """Close an attempt. The first closure stays.

        Raises StaleAttemptError when a newer attempt of the role exists.
        """
        with self._writing() as connection:
            return attempts.close_attempt(connection, job_id, role, number, closure, self._clock())

    def note_steps(self, job_id: str, role: str, number: int, first: int, last: int) -> None:
        """Widen the range of steps of an open attempt."""
        with self._reading() as connection:  # most calls need no lock
            known = attempts.current_attempt(connection, job_id, role)
        if known is not None and known.number == number and attempts.covers(known, first, last):
            return
        with self._writing() as connection:
            attempts.note_steps(connection, job_id, role, number, first, last)

    def runtime_seconds(self, job_id: str, role: str) -> float:
        """Return the seconds since the role's first attempt, until its end or now, without the time halted or
        queued."""
        with self._reading() as connection:
            return attempts.runtime_seconds(connection, job_id, role, self._clock())


class Leases(_Repository):
    """Locks that all processes share, and that expire by themselves."""

    def lock(
        self, name: str, *, lease_seconds: float = leases.LEASE_SECONDS, wait_seconds: float = leases.WAIT_SECONDS
    ) -> AbstractContextManager[None]:
        """Hold the lock `name` in one process at a time; see `leases`. Raises UnavailableError."""
        return leases.lease(self._engine, name, self._clock, lease_seconds=lease_seconds, wait_seconds=wait_seconds)

    def take(self, name: str, owner: str, lease_seconds: float) -> bool:
        """Take or renew the lock `name` for `owner`. Returns False while another owner holds it."""
        return leases.take_lease(self._engine, name, owner, self._clock(), lease_seconds)

    def give(self, name: str, owner: str) -> None:
        """End the lease, if it is this owner's."""
        leases.give_lease(self._engine, name, owner)


class Checkpoints(_Repository):
    """The checkpoints of a job's training."""

    def record(
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
        """Record a checkpoint; the first record of a name stays. Raises StaleAttemptError for a new checkpoint of a
        closed attempt."""
        now = self._clock()
        new = Checkpoint(job_id, name, step, attempt, metrics, bytes, uri, created_at or now, now if verified else None)
        with self._writing() as connection:
            return facts.record_checkpoint(connection, new)

    def of_job(self, job_id: str, *, with_deleted: bool = False, with_quarantined: bool = False) -> list[Checkpoint]:
        """Return the job's checkpoints, lowest step first."""
        with self._reading() as connection:
            return facts.list_checkpoints(
                connection, job_id, with_deleted=with_deleted, with_quarantined=with_quarantined
            )

    def quarantine(self, job_id: str, name: str, reason: str) -> Checkpoint:
        """Set a checkpoint aside: no attempt resumes from it. The first reason stays."""
        with self._writing() as connection:
            return facts.quarantine_checkpoint(connection, job_id, name, reason, self._clock())

    def mark_deleted(self, job_id: str, name: str, reason: str) -> Checkpoint:
        with self._writing() as connection:
            return facts.mark_checkpoint_deleted(connection, job_id, name, reason, self._clock())


class Validations(_Repository):
    """Results of suites on data, by the data's fingerprint."""

    def get(self, tenant: str, fingerprint: str, suite_digest: str) -> Validation | None:
        with self._reading() as connection:
            return facts.validation(connection, tenant, fingerprint, suite_digest)

    def judged(self, tenant: str, suite_digest: str) -> tuple[str, ...]:
        """Return the fingerprints of the tenant's data on which this suite's verdict is known; of many, the latest."""
        with self._reading() as connection:
            return facts.judged(connection, tenant, suite_digest)

    def record(
        self, tenant: str, fingerprint: str, suite_digest: str, *, success: bool, result: Mapping[str, Any]
    ) -> Validation:
        new = Validation(tenant, fingerprint, suite_digest, success, result, self._clock())
        with self._writing() as connection:
            return facts.record_validation(connection, new)


class SeriesEvents(_Repository):
    """What happened to the models of each series; the runs of one manifest name of a tenant are a series."""

    def record(self, new: NewSeriesEvent) -> SeriesEvent:
        """Record an event. The first record of its key stays, and is returned."""
        with self._writing() as connection:
            return series.record(connection, new, self._clock())

    def find(self, key: str) -> SeriesEvent | None:
        with self._reading() as connection:
            return series.find(connection, key)

    def of_series(self, tenant: str, name: str, limit: int | None = None) -> list[SeriesEvent]:
        """Return the events of a series, oldest first; with `limit`, the newest of them."""
        with self._reading() as connection:
            return series.events(connection, tenant, series=name, model=None, limit=limit)

    def of_model(self, tenant: str, model: str) -> list[SeriesEvent]:
        """Return the events of a registered model, oldest first. Several series may register under one name."""
        with self._reading() as connection:
            return series.events(connection, tenant, series=None, model=model, limit=None)

    def model_of(self, tenant: str, name: str) -> str | None:
        with self._reading() as connection:
            return series.model_of(connection, tenant, name)

    def known(self, tenant: str | None = None, limit: int = 100) -> list[Series]:
        """Return the series with recorded jobs, most recent job first."""
        with self._reading() as connection:
            return series.list_series(connection, tenant, limit)


class Schedules(_Repository):
    """What is known of each series that a schedule starts, and its firings."""

    def ensure(self, tenant: str, name: str, dag_id: str, rule: Mapping[str, Any]) -> Schedule:
        """Return the schedule, recorded if it is new. A rule that has changed comes into force now."""
        with self._writing() as connection:
            return schedules.ensure(connection, tenant, name, dag_id, rule, self._clock())

    def save(self, changed: Schedule, fired: NewSeriesEvent | None = None) -> SeriesEvent | None:
        """Store what a look decided, together with the event of a schedule that fires. Returns the event."""
        with self._writing() as connection:
            return schedules.save(connection, changed, fired, self._clock())

    def pause(self, tenant: str, name: str, by: str | None) -> Schedule:
        """Pause a schedule in the name of a user; None lets it go on. Raises NotFoundError."""
        with self._writing() as connection:
            return schedules.pause(connection, tenant, name, by)

    def of_tenant(self, tenant: str) -> list[Schedule]:
        with self._reading() as connection:
            return schedules.list_schedules(connection, tenant)

    def untaken(self, tenant: str, name: str) -> SeriesEvent | None:
        """Return the newest firing of a series, if no job has taken it."""
        with self._reading() as connection:
            return schedules.untaken(connection, tenant, name)

    def take(self, key: str, job_id: str) -> str | None:
        """Give a firing to a job; return the job that has it. None: there is no such firing."""
        with self._writing() as connection:
            return schedules.take(connection, key, job_id)


class Notices(_Repository):
    """Messages to people."""

    def put(self, new: Iterable[NewNotice]) -> None:
        """Record messages, to be sent now. The first record of a key stays."""
        with self._writing() as connection:
            notices.put(connection, new, self._clock())

    def due(self, limit: int = 100) -> list[Notice]:
        """Return the messages that are to be sent now, those that were tried least first."""
        with self._reading() as connection:
            return notices.due(connection, self._clock(), limit)

    def of_job(self, job_id: str) -> list[Notice]:
        with self._reading() as connection:
            return notices.of_job(connection, job_id)

    def delivered(self, notice_id: int) -> None:
        with self._writing() as connection:
            notices.delivered(connection, notice_id, self._clock())

    def failed(self, notice_id: int, error: str, due_at: datetime | None) -> None:
        """Record a failed try, and when the next one is due; None: it is given up."""
        with self._writing() as connection:
            notices.failed(connection, notice_id, error, due_at)


class Tenants(_Repository):
    """The tenants in force."""

    def in_force(self) -> Tenancy | None:
        """Return the tenants that the file named when it was last right; None if no file was read yet."""
        with self._reading() as connection:
            document = connection.execute(select(tenancy.c.document)).scalar_one_or_none()
        return None if document is None else Tenancy.from_document(document)

    def put(self, found: Tenancy) -> None:
        """Put these tenants in force. The same again changes nothing; with others, the queue is planned again."""
        document, stored = found.document(), select(tenancy.c.document)
        with self._reading() as connection:
            if connection.execute(stored).scalar_one_or_none() == document:
                return
        with self._writing() as connection:
            admission.count_change(connection)  # locks the queue: two processes may read the file at once
            known = connection.execute(stored).scalar_one_or_none()
            values = {"document": document, "read_at": self._clock()}
            change = insert(tenancy).values(id=1) if known is None else update(tenancy)
            connection.execute(change.values(**values))


class IdempotencyRecords(_Repository):
    """Idempotency records: what was done once for a job, by key; a second run finds the first run's result."""

    def get(self, job_id: str, key: IdempotencyKey[T]) -> T | None:
        """Return the record, or None if the effect has not happened."""
        with self._reading() as connection:
            return facts.idempotency_record(connection, job_id, key)

    def record(self, job_id: str, key: IdempotencyKey[T], value: T) -> T:
        """Record `value` unless there is a record, and return the recorded value."""
        with self._writing() as connection:
            return facts.put_idempotency_record(connection, job_id, key, value, self._clock())
