"""Make the answers about rounds of sizes from the ledger's rows."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby

from updraft.api.reading import JobReader
from updraft.ledger.records import ResizeRow
from updraft.schemas import RoundList, SizeChange, SizingRound

SHOWN_ROUNDS = 100


def listed(reader: JobReader) -> RoundList:
    """Return the newest rounds as far as the caller may see their jobs."""
    tenants = reader.tenants()
    rows = reader.parts.deadline.call("ledger", lambda: reader.parts.ledger().queue.rounds(SHOWN_ROUNDS, tenants))
    rounds = []
    for number, found in groupby(rows, key=lambda row: row.round):
        changes = list(found)
        rounds.append(SizingRound(round=number, at=changes[0].at, changes=tuple(map(_change, changes))))
    return RoundList(rounds=tuple(rounds))


def _change(row: ResizeRow) -> SizeChange:
    return SizeChange(**asdict(row), job=row.job_id, waits=not row.closed)
