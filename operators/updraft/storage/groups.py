"""Exchange with the coordinator of an attempt's learners through the store; see `updraft_learner.elastic.report`."""

from __future__ import annotations

from updraft.storage.errors import platform_errors
from updraft_learner.contract import Keys
from updraft_learner.elastic.report import REPORT_LIMIT_BYTES, GroupReport, Members
from updraft_learner.store import ObjectStore


def read_group(tenant: str, job_id: str, role: str, attempt: int, *, store: ObjectStore) -> GroupReport | None:
    """Return what the coordinator says of the learners; None if it has said nothing, or nothing that can be read."""
    with platform_errors():
        text = store.get_bytes(Keys(tenant).group(job_id, role, attempt), REPORT_LIMIT_BYTES)
    try:
        return None if text is None else GroupReport.from_json(text)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def write_members(tenant: str, job_id: str, role: str, attempt: int, members: Members, *, store: ObjectStore) -> None:
    """Tell the coordinator which learners shall train."""
    with platform_errors():
        store.put_bytes(Keys(tenant).members(job_id, role, attempt), members.to_json())
