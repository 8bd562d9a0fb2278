"""What goes into the ledger and what comes out: frozen values, all times aware and in UTC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from updraft.lifecycle import TERMINAL, State, Verdict


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

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL


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
    """Answer to a job that wants to start."""

    granted: bool
    place: int | None  # in line, from 1; None when granted or impossible
    reason: str
    impossible: bool = False  # it would never fit; waiting is useless


@dataclass(frozen=True)
class Attempt:
    """One launch of a role's learners; `number` rises over all roles of a job and fences older ones off."""

    job_id: str
    role: str
    number: int
    started_at: datetime
    ended_at: datetime | None = None
    outcome: str | None = None
    reason: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)


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


@dataclass(frozen=True)
class Validation:
    """What a suite said about data with this fingerprint."""

    tenant: str
    fingerprint: str
    suite_digest: str
    success: bool
    result: Mapping[str, Any]
    at: datetime
