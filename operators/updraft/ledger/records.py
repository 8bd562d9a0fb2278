"""Define the ledger's records: frozen values; all times are UTC with a time zone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from updraft.allocation import GangRequest
from updraft.lifecycle import TERMINAL, State, Verdict
from updraft.lifecycle.membership import Membership
from updraft.recovery.evidence import AttemptEvidence
from updraft.recovery.policy import PlannedRelaunch
from updraft.recovery.resume import ResumePlan

RequestKind = Literal["halt", "resume", "cancel"]
SeriesEventKind = Literal["fired", "waiting", "promoted", "rejected", "rolled back"]
UNPLANNED = "waiting to be planned"  # reason of a job that the planner has not considered yet
METRICS, METRIC_CHARACTERS = 20, 250  # limits for the metrics that a list of jobs shows of one manifest


@dataclass(frozen=True)
class NewJob:
    """A job, as submitted."""

    id: str  # the DAG run's id, which is the idempotency key
    tenant: str
    name: str
    dag_id: str
    run_id: str
    manifest: Mapping[str, Any]
    submitted_by: str
    submitted_at: datetime | None = None  # default: now


@dataclass(frozen=True)
class Shown:
    """The parts of a manifest that a list of jobs shows; the manifest itself may be as large as a megabyte."""

    learners: int = 1
    metrics: tuple[str, ...] = ()  # the metrics that decide about the model and the best checkpoint

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Shown:
        """Read the fields from a manifest of any shape; values of the wrong type are left out."""
        learners = _part(manifest, "resources").get("learners")
        best = _part(manifest, "checkpoints").get("metric")
        names = [*_part(_part(manifest, "export"), "promote_if"), *([best] if isinstance(best, str) else [])]
        return cls(
            learners if isinstance(learners, int) and learners > 0 else 1,
            tuple(name[:METRIC_CHARACTERS] for name in names[:METRICS]),
        )

    def to_json(self) -> dict[str, Any]:
        return {"learners": self.learners, "metrics": list(self.metrics)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Shown:
        return cls(document["learners"], tuple(document["metrics"]))


def _part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = document.get(name)
    return part if isinstance(part, Mapping) else {}


@dataclass(frozen=True)
class ListedJob:
    """A job in a list: a `Job` without the parts that may be large."""

    id: str
    tenant: str
    name: str
    dag_id: str
    run_id: str
    state: State
    reason: str
    submitted_by: str
    submitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    mlflow_run_id: str | None
    mlflow_experiment_id: str | None
    override: Mapping[str, Any] | None
    shown: Shown

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL


@dataclass(frozen=True)
class Job:
    """A job in its current state."""

    id: str
    tenant: str
    name: str
    dag_id: str
    run_id: str
    manifest: Mapping[str, Any]
    state: State
    reason: str  # of the last transition
    submitted_by: str
    submitted_at: datetime
    started_at: datetime | None = None  # when it first entered PROCESSING
    ended_at: datetime | None = None
    verdict: Verdict | None = None
    mlflow_run_id: str | None = None
    mlflow_experiment_id: str | None = None
    code_tree: str | None = None
    data: tuple[Mapping[str, Any], ...] = ()
    cancel_requested_at: datetime | None = None
    cancel_requested_by: str | None = None
    revision: int = 0  # of the manifest; 0: as submitted
    controller_seen_at: datetime | None = None  # when a task or trigger of this job last reported
    controller_what: str | None = None  # which task or trigger
    override: Mapping[str, Any] | None = None  # the result that a user set in Airflow against the evidence

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL

    @property
    def shown(self) -> Shown:
        return Shown.of(self.manifest)


@dataclass(frozen=True)
class Transition:
    """A change of state, or a note if `from_state` equals `to_state`. The first transition has no `from_state`."""

    job_id: str
    seq: int
    at: datetime
    from_state: State | None
    to_state: State
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Admission:
    """The planner's decision about a job in the queue."""

    granted: bool
    place: int | None  # in the queue, from 1; None if granted or impossible, and before the first plan
    reason: str
    impossible: bool = False  # it can never fit

    @property
    def planned(self) -> bool:
        """Return whether the planner has decided about the job."""
        return self.reason != UNPLANNED

    @property
    def waits(self) -> bool:
        return not self.granted and not self.impossible


@dataclass(frozen=True)
class QueueRow:
    """A job that waits for a grant or holds one, and the newest plan's decision."""

    request: GangRequest
    tenant: str
    name: str
    user: str
    state: State
    admission: Admission
    granted_at: datetime | None = None
    leaving: str | None = None  # why it is asked to give its room back
    estimated: bool = False  # whether its start was estimated


@dataclass(frozen=True)
class Analysis:
    """What an elastic job has measured of its own scaling.

    Args:
        timings: Samples of one learner, and the seconds of its step.
        gradient_bytes: What the learners exchange in a step.
        noise: The gradient noise scale, in samples.
        follows_batch: Whether the program has read the batch that the platform chose.
        exchange: Bytes, and the seconds of an all-reduce among the job's present learners.
    """

    timings: tuple[tuple[float, float], ...] = ()
    gradient_bytes: float | None = None
    noise: float | None = None
    follows_batch: bool = False
    exchange: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class ResizeRow:
    """A size that the planner has given to an elastic job, and what it brought.

    Args:
        round: The same for all that were decided together.
        before: The learners before; 0: the job started with this size.
        expected: How many times as fast as before the job was expected to be; None: it had not run before.
        gained: How many times as fast as before it was; None: not measured.
        pause_seconds: How long it trained nothing; None: not measured.
        closed: Whether the result is known, or cannot be measured any more.
    """

    id: int
    round: int
    job_id: str
    tenant: str
    name: str
    at: datetime
    before: int
    before_batch: int | None
    after: int
    after_batch: int | None
    reason: str
    expected: float | None
    gained: float | None
    pause_seconds: float | None
    closed: bool


@dataclass(frozen=True)
class SizeRow:
    """A size that an elastic job may have.

    Args:
        speedup: How many times as fast as with its fewest learners it is expected to be.
        step_seconds: The measured time of a step with so many learners, on average; None: not measured.
        current: Whether the job has this size.
    """

    learners: int
    batch: int | None
    speedup: float
    step_seconds: float | None = None
    current: bool = False


@dataclass(frozen=True)
class JobSizes:
    """The sizes that an elastic job may have now; none, if it is not elastic.

    Args:
        noise: Its gradient noise scale, in samples; None: not measured.
        remarks: What a user should know about how it scales.
    """

    rows: Sequence[SizeRow] = ()
    noise: float | None = None
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class Use:
    """What a job has held, from its grant to its release; `released_at` is None while it holds it."""

    tenant: str
    job_id: str
    learners: int
    cpus: float  # this and the next three: per learner
    memory_mib: int
    gpus: int
    gpu_type: str | None
    granted_at: datetime
    released_at: datetime | None = None


@dataclass(frozen=True)
class QueueNews:
    """The rows of the queue that changed. A job that has left the queue has the value None."""

    changes: int  # the counter at the time of reading
    admissions: Mapping[str, Admission | None]


@dataclass(frozen=True)
class Attempt:
    """One launch of a role's learners. `number` fences older attempts off; it rises over all roles of a job except
    `prepare`, which counts its own."""

    job_id: str
    role: str
    number: int
    started_at: datetime
    ended_at: datetime | None = None
    outcome: str | None = None
    reason: str | None = None
    evidence: AttemptEvidence = field(default_factory=AttemptEvidence)
    label: str | None = None  # row of the failure catalogue
    relaunch: PlannedRelaunch | None = None  # set if another attempt follows: when, why, and which nodes to avoid
    resume: ResumePlan | None = None  # the checkpoint that it resumed from
    first_step: int | None = None  # lowest and highest step that its learners reported
    last_step: int | None = None
    revision: int = 0  # the manifest's revision that it was launched from
    membership: Membership = field(default_factory=lambda: Membership.first(1))
    batch: int | None = None  # the global batch that the platform chose


@dataclass(frozen=True)
class Shift:
    """The state that a job shows after its attempt is closed, if another attempt follows."""

    reason: str
    evidence: Mapping[str, Any]  # in addition to the relaunch, which is recorded with it
    tags: Mapping[str, str]  # for the job's MLflow run


@dataclass(frozen=True)
class AttemptClosure:
    """The end of an attempt, with everything that is recorded in the same transaction.

    Args:
        checkpoints: All checkpoints in the store; those of this attempt that are not recorded yet are recorded.
        shift: Recorded as RECOVERING, if the job's state allows it; another controller may have continued already.
        releases_grant: Whether the job's grant is released; then the job shows QUEUED instead of RECOVERING.
    """

    outcome: str
    reason: str
    evidence: AttemptEvidence = field(default_factory=AttemptEvidence)
    label: str | None = None  # row of the failure catalogue
    relaunch: PlannedRelaunch | None = None  # set if another attempt follows
    checkpoints: Sequence[Mapping[str, Any]] = ()
    shift: Shift | None = None
    releases_grant: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint in the store."""

    job_id: str
    name: str
    step: int
    attempt: int
    metrics: Mapping[str, float]
    bytes: int
    uri: str
    created_at: datetime
    verified_at: datetime | None = None
    deleted_at: datetime | None = None
    delete_reason: str | None = None
    quarantined_at: datetime | None = None  # when it was found damaged; never resumed from
    quarantine_reason: str | None = None


@dataclass(frozen=True)
class Request:
    """A user's request to a running job; the job's controller obeys and answers it."""

    job_id: str
    seq: int
    kind: RequestKind
    by: str
    at: datetime
    revision: Mapping[str, Any] | None = None  # with "resume": the changed manifest and the changes
    answered_at: datetime | None = None
    answer: str | None = None


@dataclass(frozen=True)
class Revision:
    """A job's manifest from a certain time on. Revision 0 is the submitted manifest."""

    job_id: str
    number: int
    manifest: Mapping[str, Any]
    changes: Mapping[str, Any]  # relative to the revision before
    by: str
    at: datetime


@dataclass(frozen=True)
class Message:
    """An undelivered message to MLflow about a job."""

    id: int
    job_id: str
    state: State
    tags: Mapping[str, str]
    created_at: datetime
    tries: int = 0
    error: str | None = None  # of the last attempt to deliver it


@dataclass(frozen=True)
class NewSeriesEvent:
    """What happened to a model of a series, or to the series itself.

    Args:
        key: What was done once, such as the promotion of one job: the first record of a key stays.
        job_id: The job whose version it is about; for a roll-back, the job that made the version that is restored.
        version: The version that was promoted, rejected or restored.
        by: The user who decided; None if the platform did.
    """

    key: str
    tenant: str
    series: str
    kind: SeriesEventKind
    reason: str
    job_id: str | None = None
    model: str | None = None
    version: str | None = None
    by: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SeriesEvent(NewSeriesEvent):
    id: int = 0
    at: datetime = datetime.min


@dataclass(frozen=True)
class NewNotice:
    """A message to people.

    Args:
        key: What is told once: the first record of a key stays.
        notifier: The name of the notifier that sends it.
        kind: started, failed, waiting, promoted, rejected or rolled back.
        url: Of the page that it is about.
    """

    key: str
    notifier: str
    kind: str
    subject: str
    message: str
    url: str
    job_id: str | None = None


@dataclass(frozen=True)
class Notice(NewNotice):
    """`due_at`: when it is sent next; None: it was delivered, or given up."""

    id: int = 0
    created_at: datetime = datetime.min
    due_at: datetime | None = None
    delivered_at: datetime | None = None
    tries: int = 0
    error: str | None = None


@dataclass(frozen=True)
class Schedule:
    """What is known of a series that a schedule starts.

    Args:
        rule: The manifest's section `schedule`.
        since: When this rule came into force.
        slot: The last moment of its cron that was decided.
        fired_on: Fingerprint of the data when it last fired.
        seen: Fingerprint of the data at the last look; `seen_since`: since when it is that.
        reason: What the last look decided, for people.
    """

    tenant: str
    series: str
    dag_id: str
    rule: Mapping[str, Any]
    since: datetime
    slot: datetime | None = None
    fired_at: datetime | None = None
    fired_on: str | None = None
    seen: str | None = None
    seen_since: datetime | None = None
    looked_at: datetime | None = None
    next_at: datetime | None = None
    reason: str = ""
    paused_by: str | None = None


@dataclass(frozen=True)
class Series:
    """The runs of one manifest name of a tenant."""

    tenant: str
    name: str
    jobs: int
    last_submitted_at: datetime


@dataclass(frozen=True)
class Validation:
    """A suite's result for data with this fingerprint."""

    tenant: str
    fingerprint: str
    suite_digest: str
    success: bool
    result: Mapping[str, Any]
    at: datetime
