"""Find the job that a request names, its learners' newest statuses and its model: what several routes need.

Every route gets a job through `JobReader.job`, which checks the tenant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from updraft.api import accepted, views
from updraft.api.access import Caller, Policy, check_owner
from updraft.api.parts import Parts
from updraft.controller.approval import approval_asked
from updraft.controller.idempotency import MODEL_VERSION, PROMOTION
from updraft.exceptions import NotFoundError, RefusedError, UnavailableError
from updraft.ledger import Attempt, Checkpoint, Job, Ledger, ListedJob, Request, Transition
from updraft.ledger.records import JobSizes
from updraft.lifecycle import State
from updraft.manifest.errors import nearest
from updraft.schemas import JobDetail, JobSummary
from updraft_learner.contract import LearnerStatus

PROGRESS_OF = 20  # the newest jobs of a list, whose progress is looked up


@dataclass(frozen=True)
class Learners:
    """The newest attempt of each role, with the status documents of its learners."""

    attempts: tuple[Attempt, ...]
    statuses: tuple[tuple[Attempt, int, LearnerStatus], ...]


@dataclass(frozen=True)
class JobReader:
    """Reads jobs for one caller."""

    parts: Parts
    policy: Policy
    caller: Caller

    def job(self, job_id: str) -> Job:
        """Return the job.

        Raises NotFoundError, the same for a job that does not exist and for another tenant's job. For a job that
        Airflow has accepted and nothing has recorded, the message says so.
        """
        found = self._recorded_or_accepted(job_id)
        if isinstance(found, Job):
            return found
        raise NotFoundError(f"job: {job_id!r} has nothing to read or to change yet. {found.reason}")

    def job_if_recorded(self, job_id: str) -> Job | None:
        """Return the job; None if Airflow has accepted it and nothing has recorded it, so that it has no history yet.
        Raises NotFoundError as `job` does."""
        found = self._recorded_or_accepted(job_id)
        return found if isinstance(found, Job) else None

    def _recorded_or_accepted(self, job_id: str) -> Job | JobDetail:
        try:
            return self._recorded(job_id)
        except NotFoundError:
            if (found := self.accepted(job_id)) is not None:
                return found
            return self._recorded(job_id)  # it may have been recorded after the first look

    def _recorded(self, job_id: str) -> Job:
        job = self.parts.deadline.call("ledger", lambda: self.parts.ledger().jobs.get(job_id))
        check_owner(self.policy, self.caller, job.tenant, f"job: {job_id!r}")
        return job

    def jobs(self, state: str | None, name: str | None, limit: int) -> list[JobSummary]:
        """Return the jobs, newest first, including those that Airflow has accepted and no task has recorded yet."""
        wanted = state_of(state)
        accepted = self._accepted(wanted, name)  # first: a job that is recorded in the meantime is then in the ledger
        records = self.records(limit, wanted, name)
        recorded = {job.id for job in records}
        found: list[JobSummary | ListedJob] = [*records, *(job for job in accepted if job.id not in recorded)]
        found.sort(key=_age, reverse=True)
        return [
            self._summary(job, i < PROGRESS_OF) if isinstance(job, ListedJob) else job
            for i, job in enumerate(found[:limit])
        ]

    def accepted(self, job_id: str) -> JobDetail | None:
        """Return the job if Airflow has accepted it and nothing has recorded it."""
        return next((job for job in self._accepted() if job.id == job_id), None)

    def _accepted(self, state: State | None = None, name: str | None = None) -> list[JobDetail]:
        parts, ledger = self.parts, self.parts.ledger
        runs = parts.accepted.unrecorded(
            lambda pairs: parts.deadline.call("ledger", lambda: ledger().jobs.recorded(pairs))
        )
        url = parts.settings.airflow_public_uri.rstrip("/")
        jobs = [accepted.detail(run, url) for run in runs]
        return [
            job
            for job in jobs
            if self.policy(self.caller, job.tenant)
            and (state is None or job.state == state)
            and (name is None or job.name == name)
        ]

    def tenants(self) -> list[str]:
        """Return the caller's tenants."""
        known = self.parts.deadline.call("ledger", lambda: self.parts.tenancy().names)
        return [tenant for tenant in known if self.policy(self.caller, tenant)]

    def records(self, limit: int, state: State | None = None, name: str | None = None) -> list[ListedJob]:
        """Return the jobs of the caller's tenants, newest first."""
        tenants = self.tenants()
        found = self.parts.deadline.call(
            "ledger",
            lambda: [job for t in tenants for job in self.parts.ledger().jobs.find(t, state, name, limit)],
        )
        found.sort(key=lambda job: (job.submitted_at, job.id), reverse=True)
        return found[:limit]

    def _summary(self, job: ListedJob, look: bool) -> JobSummary:
        known, progress = self._known(job), None
        if look and not job.ended and job.started_at is not None:
            progress = views.slowest(views.learners(self.learners(job, known.attempts).statuses))
        return views.summary(job, known, progress)

    def _known(self, job: Job | ListedJob) -> views.Known:
        def ask() -> views.Known:
            ledger = self.parts.ledger()
            version = ledger.idempotency.get(job.id, MODEL_VERSION)
            promotion = ledger.idempotency.get(job.id, PROMOTION) if version else None
            waiting = [] if job.ended else [item for item in ledger.requests.of_job(job.id) if item.answered_at is None]
            model = views.model(version, promotion, self.parts.settings)
            place = _place(ledger, job.id) if job.state is State.QUEUED else None
            asked = version is not None and promotion is None and not job.ended and approval_asked(ledger, job.id)
            transitions, attempts = ledger.jobs.transitions(job.id), ledger.attempts.of_job(job.id)
            return views.Known(transitions, attempts, waiting, model, place, waits_for_approval=asked)

        return self.parts.deadline.call("ledger", ask)

    def detail(self, job_id: str) -> JobDetail:
        job = self._recorded_or_accepted(job_id)
        if isinstance(job, JobDetail):
            return job
        known = self._known(job)
        if job.manifest.get("elastic") is not None:
            known = replace(known, sizes=self.parts.deadline.call("ledger", lambda: self._sizes(job)))
        learners = views.learners(self.learners(job, known.attempts).statuses)
        return views.detail(job, self.parts.settings, known, learners)

    def _sizes(self, job: Job) -> JobSizes:
        return self.parts.ledger().queue.sizes(job.id)

    def transitions(self, job: Job | None) -> list[Transition]:
        if job is None:
            return []
        return self.parts.deadline.call("ledger", lambda: self.parts.ledger().jobs.transitions(job.id))

    def requests(self, job: Job | None) -> list[Request]:
        if job is None:
            return []
        return self.parts.deadline.call("ledger", lambda: self.parts.ledger().requests.of_job(job.id))

    def checkpoints(self, job: Job | None) -> list[Checkpoint]:
        """Return all that the job ever had."""
        if job is None:
            return []

        def ask() -> list[Checkpoint]:
            return self.parts.ledger().checkpoints.of_job(job.id, with_deleted=True, with_quarantined=True)

        return self.parts.deadline.call("ledger", ask)

    def attempts(self, job: Job | None) -> list[Attempt]:
        if job is None:
            return []
        return self.parts.deadline.call("ledger", lambda: self.parts.ledger().attempts.of_job(job.id))

    def attempt(self, job: Job, role: str, number: int | None) -> tuple[Attempt, Attempt]:
        """Return the attempt asked for (default: the latest of the role), and the latest. Raises NotFoundError."""
        of_role = [attempt for attempt in self.attempts(job) if attempt.role == role]
        if not of_role:
            raise NotFoundError(f"job {job.id} has not launched {role} yet")
        for attempt in of_role:
            if number in (None, attempt.number) and (number is not None or attempt is of_role[-1]):
                return attempt, of_role[-1]
        numbers = ", ".join(str(attempt.number) for attempt in of_role)
        raise NotFoundError(f"job {job.id} has no attempt {number} of {role}; it has {numbers}")

    def learners(self, job: Job | ListedJob, launched: Sequence[Attempt]) -> Learners:
        """Return the state of the job's learners. Their statuses are left out while the store does not answer; the
        ledger's part is returned without them."""
        latest = {attempt.role: attempt for attempt in launched}
        attempts = tuple(sorted(latest.values(), key=lambda attempt: attempt.number))

        def ask() -> list[tuple[Attempt, int, LearnerStatus]]:
            found = []
            for attempt in attempts:
                for learner in attempt.membership.learners:
                    status = self.parts.store.status(job.tenant, job.id, attempt.role, attempt.number, learner)
                    if status is not None:
                        found.append((attempt, learner, status))
            return found

        try:
            statuses = self.parts.deadline.call("storage", ask) if attempts else []
        except UnavailableError:
            statuses = []
        return Learners(attempts, tuple(statuses))


def _place(ledger: Ledger, job_id: str) -> int | None:
    try:
        return ledger.queue.admission(job_id).place
    except RefusedError:  # it is not in the queue
        return None


def _age(job: JobSummary | ListedJob) -> tuple[datetime, str]:
    return (job.submitted_at if isinstance(job, ListedJob) else job.created_at, job.id)


def state_of(text: str | None) -> State | None:
    if text is None:
        return None
    try:
        return State(text.upper())
    except ValueError:
        guess = nearest(text, State)
        hint = f"; did you mean {guess}?" if guess else "."
        raise NotFoundError(f"state {text!r} does not exist{hint} The states are {', '.join(State)}") from None
