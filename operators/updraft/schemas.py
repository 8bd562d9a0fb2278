"""What the plugin's routes answer and the HTTP client reads, written once: JSON models, nothing else.

`updraft.api` fills them, `updraft.client` and `updraft.cli` show them. Unknown fields are ignored by a reader, so that
an older client goes on with a newer platform. Times are UTC with their zone; sizes are bytes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field

API_PREFIX = "/updraft/api/v1"
PAGES_PREFIX = "/updraft/jobs"
SERIES_PAGES_PREFIX = "/updraft/series"
QUEUE_PAGE = "/updraft/queue"
TENANTS_PAGE = "/updraft/tenants"
SIZES_PAGE = "/updraft/sizes"
UPLOAD_SECONDS = 120.0  # longest answer about a tree: of a big store, everything is listed
NOT_NEEDED_TO_SUBMIT = frozenset({"mlflow"})  # the job's first task waits for it
PART_TITLES = {"ledger": "The ledger", "storage": "The object store", "mlflow": "MLflow", "cluster": "The cluster"}


class Schema(BaseModel):
    """Base of all answers: frozen, and unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class FieldError(Schema):
    """One wrong field of a manifest or of a request."""

    field: str
    message: str


class ErrorBody(Schema):
    """What went wrong, as one message, and every wrong field if the content was wrong."""

    message: str
    fields: tuple[FieldError, ...] = ()


class ErrorAnswer(Schema):
    """Body of every answer that is not a success."""

    error: ErrorBody


class PartHealth(Schema):
    """Whether one part of the platform answers."""

    name: str = Field(description="ledger, storage, mlflow or cluster")
    ok: bool
    detail: str = Field(description="What was reached, or why it was not")


class Limits(Schema):
    """What the platform's operator has set, for a client to know before it uploads."""

    code_bytes: int
    data_bytes: int


class Health(Schema):
    """Whether the platform can run a job that is submitted now."""

    ok: bool = Field(description="Whether a job that is submitted now can run")
    parts: tuple[PartHealth, ...]
    limits: Limits


class Progress(Schema):
    """How far a training is, as its program reported it."""

    step: int | None = None
    total: int | None = None
    epoch: int | None = None
    epochs: int | None = None


class Learner(Schema):
    """Latest word of one learner, from its sidecar."""

    role: str
    attempt: int
    learner: int
    phase: str
    heard_at: datetime | None = None
    progress: Progress | None = None
    metrics: dict[str, float] = {}
    checkpoints: int = 0
    warnings: tuple[str, ...] = ()


class Transition(Schema):
    """One change of a job's state. `evidence` holds the facts that it was decided by."""

    at: datetime
    state: str
    reason: str
    previous: str | None = None
    evidence: dict[str, Any] = {}


class Stage(Schema):
    """One task of the job's DAG run."""

    name: str
    state: str
    started_at: datetime | None = None
    ended_at: datetime | None = None
    tries: int = 0


class Queue(Schema):
    """Why a job waits, or what it was granted."""

    place: int | None = Field(None, description="From 1; none once granted")
    granted_at: datetime | None = None
    reason: str = ""


class QueueEntry(Schema):
    """A job that waits for room in the cluster, or has it."""

    job: str
    name: str
    tenant: str
    user: str
    state: str
    priority: str
    place: int | None = Field(None, description="From 1; none for a job that has its room")
    learners: int
    each: str = Field(description="What each learner gets")
    requested_at: datetime = Field(description="Since when it is in the queue; after a loss, since then")
    granted_at: datetime | None = Field(None, description="Since when it has its room")
    starts_at: datetime | None = Field(
        None, description="Estimate, from how long the newest jobs of each series took; none: unknown"
    )
    reason: str = ""


class SizeChange(Schema):
    """A size that an elastic job was given, and what it brought."""

    job: str
    name: str
    tenant: str
    before: int = Field(description="Learners before; 0: the job started with this size")
    before_batch: int | None = Field(None, description="The global batch before; none: it is the program's own")
    after: int = Field(description="Learners after")
    after_batch: int | None = None
    reason: str
    expected: float | None = Field(None, description="How many times as fast as before it should be")
    gained: float | None = Field(None, description="How many times as fast as before it was; none: not measured")
    pause_seconds: float | None = Field(None, description="How long it trained nothing; none: not measured")
    waits: bool = Field(description="Whether the result is still to be measured")


class SizingRound(Schema):
    """The sizes that were decided together."""

    round: int
    at: datetime
    changes: tuple[SizeChange, ...]


class RoundList(Schema):
    """The newest rounds of sizes, newest first, with the changes of the caller's tenants."""

    rounds: tuple[SizingRound, ...] = ()


class EstimateErrors(Schema):
    """By how much jobs started earlier or later than they were expected to when they had joined the queue."""

    jobs: int = Field(description="Newest jobs that waited and had an estimate, of all tenants; 50 at most")
    median_seconds: float
    largest_seconds: float


class QueueList(Schema):
    """The jobs that have room in the cluster, oldest first, and those that wait, in their order."""

    running: tuple[QueueEntry, ...] = ()
    waiting: tuple[QueueEntry, ...] = ()
    estimates: EstimateErrors | None = Field(
        None, description="How good the estimates have been; none: there were none"
    )


class SharePoint(Schema):
    """A tenant's average share of the cluster in a span of time."""

    at: datetime = Field(description="Begin of the span, which lasts until the next one")
    share: float = Field(description="Largest of its shares of CPUs, memory and GPUs, from 0 to 1")


class TenantUse(Schema):
    """What a tenant may use of the cluster, uses now and has used. Devices are counted by kind: `cpu` is a learner
    without GPUs, `gpu` a GPU of any type; the types of GPUs have kinds of their own."""

    name: str
    weight: float
    quota: dict[str, int] = Field({}, description="What it may always use; a kind that is missing is not limited")
    borrow: dict[str, int] = Field({}, description="What it may use beyond its quota; missing: whatever is free")
    lend: dict[str, int] = Field({}, description="What others may use of its quota; missing: whatever it does not use")
    priorities: tuple[str, ...] = ()
    used: dict[str, int] = {}
    borrowed: dict[str, int] = Field({}, description="What it uses beyond its quota")
    running: int = Field(description="Jobs that have room in the cluster")
    waiting: int = Field(description="Jobs that wait for it")
    share: float | None = Field(None, description="Largest of its shares of CPUs, memory and GPUs now, from 0 to 1")
    claim: float | None = Field(
        None, description="That share and its average so far, divided by the weight; the smallest is served next"
    )
    shares: tuple[SharePoint, ...] = Field((), description="Its share in the last 24 hours, or since the first job")
    notes: tuple[str, ...] = Field((), description="What its limits may not have been meant to say")


class TenantList(Schema):
    """The caller's tenants."""

    tenants: tuple[TenantUse, ...] = ()
    problem: str | None = Field(
        None, description="Why the file of tenants cannot be read; the tenants are those that it named before"
    )


class PriorityBody(Schema):
    """Another priority for a job."""

    priority: Literal["low", "normal", "high"]


class ScaleBody(Schema):
    """Another number of learners for an elastic job."""

    learners: int | None = Field(None, ge=1, le=64, description="null: the platform chooses again")


class Model(Schema):
    """The model version that a job registered."""

    name: str
    version: str
    alias: str | None = None
    url: str | None = None


class Loss(Schema):
    """How an attempt ended that was not done."""

    attempt: int
    role: str
    cause: str = Field(description="infrastructure, program, configuration, data, preempted, halted, ...")
    label: str | None = Field(None, description="Row of the failure catalogue")
    code: str | None = Field(None, description="FfDL's code of it: S... the platform's fault, C... the user's")
    reason: str = ""
    text: str = Field("", description="The same in words")


class Request(Schema):
    """What a person asked of a job, and what the job's controller answered."""

    seq: int
    kind: str = Field(description="halt, resume or cancel")
    by: str
    at: datetime
    changes: dict[str, Any] = Field({}, description="Of the manifest, with a resume")
    answered_at: datetime | None = None
    answer: str | None = Field(None, description="None while the job has not answered")


class RequestList(Schema):
    """The requests made of a job, oldest first."""

    requests: tuple[Request, ...]


class Links(Schema):
    """Addresses of the job's pages; None for a page that does not exist."""

    airflow_run: str | None = None
    mlflow_run: str | None = None
    page: str | None = None


class JobSummary(Schema):
    """A job as lists of jobs show it."""

    id: str
    name: str
    tenant: str
    user: str | None = None
    state: str
    reason: str
    ended: bool = Field(description="Whether the state is an end: COMPLETED, FAILED or CANCELLED")
    created_at: datetime
    updated_at: datetime
    progress: Progress | None = None
    model: Model | None = None
    attempt: int = Field(0, description="Launches of the training so far")
    loss: Loss | None = Field(None, description="How the newest attempt that has ended was lost; none if it was done")
    requests: tuple[Request, ...] = Field((), description="Asked for and not answered yet")
    override: str | None = Field(None, description="What a person made Airflow say against the evidence")


class JobSize(Schema):
    """A number of learners that an elastic job may have, with how fast it is expected to be."""

    learners: int
    batch: int | None = Field(None, description="The global batch that goes with it; none: it is the program's own")
    speedup: float = Field(description="How many times as fast as with the fewest learners")
    step_seconds: float | None = Field(None, description="Measured time of a step with so many learners; none: not yet")
    current: bool = False


class JobDetail(JobSummary):
    """A job with everything that its page shows."""

    dag_id: str
    run_id: str = Field(description="Id of the DAG run; the job's own id unless Airflow chose it")
    revision: int = Field(0, description="How often the manifest was changed on resume")
    cancel_requested: bool = False
    manifest_digest: str | None = None
    transitions: tuple[Transition, ...] = ()
    learners: tuple[Learner, ...] = ()
    metrics: dict[str, float] = {}
    strategy: str | None = Field(None, description="How its learners exchange gradients, if the manifest says so")
    queue: Queue | None = None
    min_learners: int | None = Field(None, description="Of an elastic job: its fewest learners")
    max_learners: int | None = Field(None, description="Of an elastic job: its most learners")
    resize: str | None = Field(None, description="Of an elastic job: restart, or in_place")
    sizes: tuple[JobSize, ...] = Field((), description="Of an elastic job: the sizes that it may have now")
    size_remarks: tuple[str, ...] = Field((), description="What to know about how an elastic job scales")
    gradient_noise: float | None = Field(None, description="Measured gradient noise scale, in samples; none: not yet")
    verdict: dict[str, Any] | None = Field(None, description="Evidence of the end; none before it")
    approval: str | None = Field(None, description="Address of the page where a person approves or rejects its model")
    links: Links = Links()


class JobList(Schema):
    """Jobs, newest first."""

    jobs: tuple[JobSummary, ...]


class JobManifest(Schema):
    """The manifest of a job."""

    manifest: dict[str, Any] = Field(description="As the job was launched last, with the changes of its resumes")


class TransitionList(Schema):
    """The changes of a job's state, oldest first."""

    transitions: tuple[Transition, ...]


class LogLine(Schema):
    """One line of a learner's log."""

    n: int = Field(description="Number of the line in this learner's log, from 1")
    t: str = Field(description="RFC 3339 with nanoseconds")
    line: str


class LogPage(Schema):
    """Consecutive lines of one learner's log, in one attempt."""

    role: str
    attempt: int
    latest_attempt: int
    learner: int
    lines: tuple[LogLine, ...]
    after: int = Field(description="Ask with this `after` for the lines that follow")


class MetricPoint(Schema):
    """One point of a metric."""

    step: int
    t: float = Field(description="Unix seconds")
    value: float | None = Field(description="None for a value that is no number")


class Metrics(Schema):
    """Metrics of a job's MLflow run: the last value of each, and the points of those asked for."""

    run_id: str | None
    last: dict[str, float | None]
    history: dict[str, tuple[MetricPoint, ...]] = {}


class ResumePlan(Schema):
    """From what an attempt goes on."""

    checkpoint: str | None = Field(None, description="None: from the beginning")
    step: int | None = None
    repeats: int | None = Field(None, description="Steps that are done a second time")
    reason: str = ""


class Relaunch(Schema):
    """What was decided when an attempt was lost."""

    delay_seconds: float = 0.0
    not_before: datetime | None = None
    reason: str = ""
    avoid_nodes: tuple[str, ...] = ()
    older_checkpoint: bool = False


class Attempt(Schema):
    """One launch of a role's learners."""

    number: int = Field(description="Rises over all roles of a job; what an older one still does is refused")
    role: str = Field(description="prepare, build, train, evaluate, export, champion-N or compare-N")
    started_at: datetime
    ended_at: datetime | None = None
    cause: str | None = Field(None, description="Class of its end: done, infrastructure, program, ...; none before it")
    label: str | None = Field(None, description="Row of the failure catalogue")
    code: str | None = Field(None, description="FfDL's code of it: S... the platform's fault, C... the user's")
    reason: str | None = None
    action: str | None = Field(
        None, description="What was done: none, relaunch, relaunch_elsewhere, older_checkpoint, wait (halted) or stop"
    )
    done: str = Field("", description="The same in words: relaunched after 5 s on another node from step-300")
    resume: ResumePlan | None = Field(None, description="Its beginning; none for a first launch")
    relaunch: Relaunch | None = Field(None, description="What follows its end, where something does")
    first_step: int | None = None
    last_step: int | None = None
    revision: int = Field(0, description="Of the manifest that it was launched with")
    learners: int = Field(1, description="How many it has; at its end, how many it had")
    batch: int | None = Field(None, description="The global batch that the platform chose for an elastic job")
    evidence: dict[str, Any] = {}


class AttemptList(Schema):
    """The launches of a job, oldest first."""

    attempts: tuple[Attempt, ...]


class Checkpoint(Schema):
    """One checkpoint of a job, as the ledger records it."""

    name: str
    step: int | None = None
    attempt: int = 0
    size_bytes: int = 0
    created_at: datetime | None = None
    metrics: dict[str, float] = {}
    state: str = Field("kept", description="kept, deleted or quarantined")
    reason: str | None = Field(None, description="Why it was deleted or quarantined")


class CheckpointList(Schema):
    """Checkpoints, lowest step first."""

    checkpoints: tuple[Checkpoint, ...]


class FileEntry(Schema):
    """One stored file."""

    path: str
    size_bytes: int


class FileList(Schema):
    """The stored files of one kind: results, model or checkpoint:NAME. `after` is the path to go on after if there are
    more files than these."""

    kind: str
    files: tuple[FileEntry, ...]
    after: str | None = None


class TreeFile(Schema):
    """One file of a tree: its path, the digest of its content, its size in bytes and its mode."""

    path: str
    sha256: str
    size: int
    mode: int


class TreeBody(Schema):
    """The files of a tree that a client uploads."""

    files: Annotated[tuple[TreeFile, ...], FailFast()]  # 100,000 wrong ones would be 100,000 errors


class Missing(Schema):
    """What a client still has to upload of a tree."""

    missing: tuple[str, ...] = Field(description="Digests of the blobs that the store lacks")


class Stored(Schema):
    """What was stored."""

    sha256: str
    size_bytes: int


class SecretBody(Schema):
    """The keys and values of a secret."""

    data: dict[str, str] = Field(repr=False, min_length=1)


class SecretList(Schema):
    """Names of stored secrets."""

    secrets: tuple[str, ...]


class Validation(Schema):
    """Whether a manifest is accepted, and every wrong field if not."""

    valid: bool
    errors: tuple[FieldError, ...] = ()
    warnings: tuple[str, ...] = ()


class PossibleBody(Schema):
    """A manifest whose local sources may still be local; `secrets` are stored before it is submitted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    manifest: dict[str, Any]
    secrets: tuple[str, ...] = ()


class PlannedRole(Schema):
    """The objects that one role of a job creates in the cluster, in the order in which they are created."""

    role: str = Field(description="prepare, build, train, evaluate, export, champion-N or compare-N")
    objects: tuple[dict[str, Any], ...]


class Planned(Schema):
    """What a job of a manifest would create; what is known only at its launch has a placeholder such as `<job>`."""

    roles: tuple[PlannedRole, ...]


class ResumeBody(Schema):
    """A partial manifest: command, params, env, resources, budget, checkpoints, failures and priority may
    change."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    changes: dict[str, Any] = {}


class Accepted(Schema):
    """A request that was accepted, and what happens next."""

    id: str
    message: str
    request: Request | None = Field(None, description="As it was recorded; none if there was nothing left to do")


class SeriesSummary(Schema):
    """A series: the jobs of one manifest name of a tenant."""

    tenant: str
    name: str
    jobs: int
    last_submitted_at: datetime
    model: str | None = Field(None, description="Registered model that the series last registered a version of")
    champion: str | None = Field(None, description="Version that the platform last made its champion")


class SeriesList(Schema):
    """Series, most recent job first."""

    series: tuple[SeriesSummary, ...]


class SeriesEvent(Schema):
    """What happened to a model of a series."""

    at: datetime
    kind: str = Field(description="fired, waiting, promoted, rejected or rolled back")
    model: str | None = None
    version: str | None = None
    job: str | None = Field(None, description="Job that made the version")
    by: str | None = Field(None, description="User who decided; none if the platform did")
    reason: str = ""
    over: str | None = Field(None, description="Version that was the champion before")


class DataVersion(Schema):
    """Data as a job trained on it."""

    source: str
    tree: str = Field(description="Digest of its files")
    since: str | None = Field(
        None, description="What was new beside the champion's data, in files, when the model was judged"
    )


class SeriesRun(Schema):
    """One job of a series: what it trained on, and what became of its model."""

    id: str
    state: str
    user: str | None = None
    submitted_at: datetime
    code: str | None = Field(None, description="Digest of the code's tree")
    data: tuple[DataVersion, ...] = ()
    version: str | None = Field(None, description="Version that it registered")
    outcome: str | None = Field(None, description="promoted, rejected or waiting")
    reason: str = Field("", description="Of the outcome; of the state, where there is no outcome")


class Schedule(Schema):
    """A series whose schedule has conditions, and what the last look at it decided."""

    tenant: str
    series: str
    dag: str
    rule: dict[str, Any] = Field(description="The manifest's section `schedule`")
    reason: str = Field("", description="What the last look decided")
    looked_at: datetime | None = None
    next_at: datetime | None = Field(None, description="Next moment of its cron")
    fired_at: datetime | None = None
    paused_by: str | None = Field(None, description="User who paused it")


class SeriesDetail(SeriesSummary):
    """A series with its newest jobs and all that happened to its models."""

    previous: str | None = Field(None, description="Version that a roll-back restores")
    schedule: Schedule | None = Field(None, description="If its manifest in `jobs/` has one")
    runs: tuple[SeriesRun, ...] = ()
    events: tuple[SeriesEvent, ...] = Field((), description="Newest first")


class RollBackBody(Schema):
    """Which version becomes the champion again, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: str | None = Field(None, pattern=r"^[1-9][0-9]{0,9}$", description="By default the champion before")
    model: str | None = Field(None, max_length=250, description="By default the model that the series registered last")
    reason: str = Field(min_length=1, max_length=500)


class RolledBack(Schema):
    """A roll-back that was carried out."""

    message: str
    event: SeriesEvent


class ScheduleList(Schema):
    """Schedules, by series."""

    schedules: tuple[Schedule, ...]
