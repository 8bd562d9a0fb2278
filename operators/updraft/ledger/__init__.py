"""The ledger: what the platform knows about jobs, in SQLite or PostgreSQL.

Facts and their order, nothing else: whether a transition is legal is decided by `updraft.lifecycle`, who may start
by `updraft.allocation`. Called by operators, triggers and the API, from several processes and threads; Airflow's own
database is never touched. Everything that comes out is a frozen dataclass.
"""

from __future__ import annotations

from updraft.ledger.ledger import Ledger, open_ledger
from updraft.ledger.migrate import upgrade
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
    Shift,
    Shown,
    Transition,
    Validation,
)

__all__ = [
    "Admission",
    "Attempt",
    "AttemptClosure",
    "Checkpoint",
    "Job",
    "Ledger",
    "ListedJob",
    "Message",
    "NewJob",
    "QueueNews",
    "Request",
    "RequestKind",
    "Revision",
    "Shift",
    "Shown",
    "Transition",
    "Validation",
    "open_ledger",
    "upgrade",
]
