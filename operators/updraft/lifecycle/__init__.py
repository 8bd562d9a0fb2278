"""Describe the life of a job: states, legal transitions, verdicts, ids. Pure; used by all layers above."""

from __future__ import annotations

from updraft.lifecycle.names import is_job_id, job_id, job_id_of_run
from updraft.lifecycle.states import MLFLOW_STATUS, TERMINAL, TRANSITIONS, State, check, is_legal
from updraft.lifecycle.verdict import Evidence, Verdict

__all__ = [
    "MLFLOW_STATUS",
    "TERMINAL",
    "TRANSITIONS",
    "Evidence",
    "State",
    "Verdict",
    "check",
    "is_job_id",
    "is_legal",
    "job_id",
    "job_id_of_run",
]
