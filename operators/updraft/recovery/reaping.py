"""Decide which pods and jobs have no controller any more: pods of ended jobs, and jobs whose run is over.

Pure. The reaper's trigger asks for each job at each look. A job is given up only if two conditions hold: Airflow says
that the run is over or that its DAG no longer exists, and no controller touched the job while the reaper watched it. If
a fact is unknown, the job is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from updraft.lifecycle import TERMINAL, State

CALM_SECONDS = 120.0
ORPHAN_SECONDS = 1800.0
LIVE_TASKS = frozenset(
    {"scheduled", "queued", "running", "deferred", "restarting", "up_for_retry", "up_for_reschedule"}
)


class Run(StrEnum):
    """The state of a job's run, as Airflow reports it."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    GONE = "gone"  # Airflow answered that there is no such run
    UNKNOWN = "unknown"  # Airflow did not answer


OVER = frozenset({Run.SUCCESS, Run.FAILED, Run.GONE})


@dataclass(frozen=True)
class OrphanPod:
    """A pod that carries the job's labels."""

    name: str
    role: str
    attempt: int


@dataclass(frozen=True)
class OrphanCandidate:
    """One job, as the ledger, Airflow and the cluster show it."""

    job_id: str
    state: State | None  # in the ledger; None: the ledger does not know the job, or did not answer
    quiet_seconds: float  # how long the reaper has watched the job without a controller touching it
    run: Run
    tasks: Mapping[str, str | None] = field(default_factory=dict)  # task id -> the task's state in Airflow
    dag: bool | None = None  # whether Airflow still has the run's DAG; None: unknown
    pods: tuple[OrphanPod, ...] = ()
    newest: Mapping[str, int] = field(default_factory=dict)  # role -> number of its newest attempt in the ledger


@dataclass(frozen=True)
class Reap:
    """A decision to remove these pods; with `end`, also to end the job with this reason and evidence."""

    reason: str
    pods: tuple[str, ...] = ()
    end: bool = False
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Leave:
    """A decision to do nothing, with the reason."""

    reason: str


def reap(
    ward: OrphanCandidate, *, calm_seconds: float = CALM_SECONDS, orphan_seconds: float = ORPHAN_SECONDS
) -> Reap | Leave:
    """Return what the reaper does about one job now."""
    pods = tuple(sorted(pod.name for pod in ward.pods))
    if ward.state is None:
        return Leave("the ledger does not say how the job stands")
    if ward.state in TERMINAL:
        if pods:
            return Reap(f"the job has ended {ward.state.value}", pods)
        return Leave(f"the job has ended {ward.state.value} and left nothing")
    if why := _given_up(ward, calm_seconds, orphan_seconds):
        return Reap(why, pods, end=True, evidence=_evidence(ward))
    older = tuple(sorted(p.name for p in ward.pods if p.attempt < ward.newest.get(p.role, 0)))
    if older:
        return Reap("a newer attempt of the role exists", older)
    return Leave(_why_left(ward, calm_seconds, orphan_seconds))


def _given_up(ward: OrphanCandidate, calm_seconds: float, orphan_seconds: float) -> str | None:
    """Return why the job has no controller any more; None while it has one, or that is unknown."""
    quiet = ward.quiet_seconds
    if ward.run in OVER:
        needed = orphan_seconds if _live(ward) else calm_seconds
        word = "does not exist any more" if ward.run is Run.GONE else f"has ended ({ward.run.value})"
    elif ward.run in (Run.RUNNING, Run.QUEUED) and ward.dag is False:
        needed, word = orphan_seconds, f"is {ward.run.value}, but its DAG does not exist any more"
    else:
        return None
    if quiet < needed:
        return None
    return f"its Airflow run {word}, and no task or trigger has touched the job for {quiet:.0f} s"


def _live(ward: OrphanCandidate) -> list[str]:
    return sorted(task for task, state in ward.tasks.items() if state in LIVE_TASKS)


def _why_left(ward: OrphanCandidate, calm_seconds: float, orphan_seconds: float) -> str:
    quiet = f"{ward.quiet_seconds:.0f} s"
    if ward.run is Run.UNKNOWN:
        return "Airflow does not say how the run stands"
    if ward.run in OVER:
        if live := _live(ward):
            return f"the run is over, but its task {live[0]} lives; watched for {quiet} of {orphan_seconds:.0f} s"
        return f"the run is over; watched for {quiet} of {calm_seconds:.0f} s"
    if ward.dag is False:
        return f"the run's DAG does not exist any more; watched for {quiet} of {orphan_seconds:.0f} s"
    return f"its run is {ward.run.value}"


def _evidence(ward: OrphanCandidate) -> dict[str, Any]:
    return {
        "run": ward.run.value,
        "tasks": dict(ward.tasks),
        "dag": ward.dag,
        "quiet_seconds": round(ward.quiet_seconds),
        "state": ward.state.value if ward.state else None,
        "pods": sorted(pod.name for pod in ward.pods),
    }
