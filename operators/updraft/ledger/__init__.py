"""The ledger: the platform's facts about jobs, in SQLite or PostgreSQL.

It stores facts and their order, nothing else. `updraft.lifecycle` decides which transitions are legal, and
`updraft.allocation` which jobs start. Operators, triggers and the API call it, from several processes and threads. It
does not use Airflow's own database. All records that it returns are frozen dataclasses.
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
    NewNotice,
    NewSeriesEvent,
    Notice,
    QueueNews,
    Request,
    RequestKind,
    Revision,
    Schedule,
    Series,
    SeriesEvent,
    Shift,
    Shown,
    Transition,
    Use,
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
    "NewNotice",
    "NewSeriesEvent",
    "Notice",
    "QueueNews",
    "Request",
    "RequestKind",
    "Revision",
    "Schedule",
    "Series",
    "SeriesEvent",
    "Shift",
    "Shown",
    "Transition",
    "Use",
    "Validation",
    "open_ledger",
    "upgrade",
]
