"""What goes into the ledger and what comes out: frozen values, all times aware and in UTC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from updraft.lifecycle import TERMINAL, State, Verdict
from updraft.lifecycle.membership import Membership
from updraft.recovery.evidence import AttemptEvidence
from updraft.recovery.policy import PlannedRelaunch
from updraft.recovery.resume import ResumePlan

RequestKind = Literal["halt", "resume", "cancel"]
UNPLANNED = "waiting to be planned"  # reason of a job that the planner has not seen yet
METRICS, METRIC_CHARACTERS = 20, 250  # of a manifest, in a list of jobs


@dataclass(frozen=True)
class NewJob:
    """A job as it is submitted."""

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
    """What a list of jobs shows of a manifest, which may have a megabyte."""

    learners: int = 1
    metrics: tuple[str, ...] = ()  # those that decide about the model, and about the best checkpoint

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
    """A job in a list: what `Job` has, but for the parts that may be large."""

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
    """A job as it is known now."""

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
    started_at: datetime | None = None  # first time in PROCESSING
    ended_at: datetime | None = None
    verdict: Verdict | None = None
    mlflow_run_id: str | None = None
    mlflow_experiment_id: str | None = None
    code_tree: str | None = None
    data: tuple[Mapping[str, Any], ...] = ()
    cancel_requested_at: datetime | None = None
    cancel_requested_by: str | None = None
    revision: int = 0  # of the manifest; 0: as submitted
    controller_seen_at: datetime | None = None  # when a task or trigger of this job last showed itself
    controller_what: str | None = None  # which
    override: Mapping[str, Any] | None = None  # what a person made Airflow say against the evidence

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL

    @property
    def shown(self) -> Shown:
        return Shown.of(self.manifest)


@dataclass(frozen=True)
class Transition:
    """One change of state, or a note where `from_state` equals `to_state`. The first has no `from_state`."""

    job_id: str
    seq: int
    at: datetime
    from_state: State | None
    to_state: State
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Admission:
    """What the planner decided about a job in the queue."""

    granted: bool
    place: int | None  # in the queue, from 1; None when granted or impossible, and before the first plan
    reason: str
    impossible: bool = False  # it would never fit; waiting is useless

    @property
    def planned(self) -> bool:
        """Return whether the planner has decided about the job."""
        return self.reason != UNPLANNED

    @property
    def waits(self) -> bool:
        return not self.granted and not self.impossible


@dataclass(frozen=True)
class QueueNews:
    """The rows of the queue that changed. A job that has left the queue stands there with None."""

    changes: int  # the counter at that moment
    admissions: Mapping[str, Admission | None]


@dataclass(frozen=True)
class Attempt:
    """One launch of a role's learners; `number` fences older ones off. It rises over all roles of a job but `prepare`,
    which is counted by itself."""

    job_id: str
    role: str
    number: int
    started_at: datetime
    ended_at: datetime | None = None
    outcome: str | None = None
    reason: str | None = None
    evidence: AttemptEvidence = field(default_factory=AttemptEvidence)
    label: str | None = None  # row of the failure catalogue
    relaunch: PlannedRelaunch | None = None  # closed, and another attempt follows: when, why, where not
    resume: ResumePlan | None = None  # what it went on from
    first_step: int | None = None  # lowest and highest step that its learners reported
    last_step: int | None = None
    revision: int = 0  # of the manifest that it was launched from
    membership: Membership = field(default_factory=lambda: Membership.first(1))


@dataclass(frozen=True)
class Shift:
    """The state in which a job is shown once its attempt is closed and another one follows."""

    reason: str
    evidence: Mapping[str, Any]  # beside the relaunch, which is recorded with it
    tags: Mapping[str, str]  # for its MLflow run


@dataclass(frozen=True)
class AttemptClosure:
    """How an attempt ended, with all that is recorded in the same transaction.

    Args:
        checkpoints: what the store holds; those of this attempt that are not recorded yet are recorded.
        shift: shown as RECOVERING where the job's state allows it; later, another controller may have gone on already.
        releases_grant: the job's grant is released, and it is shown as QUEUED in place of RECOVERING.
    """

    outcome: str
    reason: str
    evidence: AttemptEvidence = field(default_factory=AttemptEvidence)
    label: str | None = None  # row of the failure catalogue
    relaunch: PlannedRelaunch | None = None  # another attempt follows
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
    quarantined_at: datetime | None = None  # found damaged; never resumed from
    quarantine_reason: str | None = None


@dataclass(frozen=True)
class Request:
    """What a person asked of a running job; its controller obeys and answers."""

    job_id: str
    seq: int
    kind: RequestKind
    by: str
    at: datetime
    revision: Mapping[str, Any] | None = None  # with "resume": changes of the manifest
    answered_at: datetime | None = None
    answer: str | None = None


@dataclass(frozen=True)
class Revision:
    """A job's manifest from one time on. Number 0 is the one that was submitted."""

    job_id: str
    number: int
    manifest: Mapping[str, Any]
    changes: Mapping[str, Any]  # to the revision before
    by: str
    at: datetime


@dataclass(frozen=True)
class Message:
    """What MLflow is still to be told about a job."""

    id: int
    job_id: str
    state: State
    tags: Mapping[str, str]
    created_at: datetime
    tries: int = 0
    error: str | None = None  # of the last try


@dataclass(frozen=True)
class Validation:
    """What a suite said about data with this fingerprint."""

    tenant: str
    fingerprint: str
    suite_digest: str
    success: bool
    result: Mapping[str, Any]
    at: datetime
