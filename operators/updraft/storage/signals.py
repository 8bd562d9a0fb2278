"""Signal a pod through the store: stop, dump your stacks, and which attempt is the newest (the fence).

Sidecars read these objects; `updraft.controller` writes them. Every object may be written twice.
"""

from __future__ import annotations

import json

from updraft.storage.errors import platform_errors
from updraft_learner.contract import SIGNAL_LIMIT_BYTES, Keys
from updraft_learner.store import ObjectStore


def raise_fence(tenant: str, job_id: str, role: str, attempt: int, *, store: ObjectStore) -> None:
    """Refuse earlier attempts of this role from now on. A fence is never lowered."""
    key = Keys(tenant).fence(job_id)
    with platform_errors():
        fence = _numbers(store.get_bytes(key, SIGNAL_LIMIT_BYTES))
        if fence.get(role, 0) < attempt:
            store.put_bytes(key, json.dumps({**fence, role: attempt}, sort_keys=True).encode())


def request_stop(tenant: str, job_id: str, role: str, attempt: int, learner: int, *, store: ObjectStore) -> None:
    """Ask the learner's program to save a checkpoint and to exit."""
    key = Keys(tenant).stop(job_id, role, attempt, learner)
    with platform_errors():
        store.put_bytes(key, b"stop\n")


def request_dump(
    tenant: str, job_id: str, role: str, attempt: int, learner: int, number: int, *, store: ObjectStore
) -> None:
    """Ask the learner's program to write the stacks of its threads; each number is obeyed once."""
    key = Keys(tenant).dump(job_id, role, attempt, learner)
    with platform_errors():
        store.put_bytes(key, f"{number}\n".encode())


def _numbers(text: bytes | None) -> dict[str, int]:
    try:
        read = json.loads(text or b"{}")
        return {str(role): int(number) for role, number in read.items()}
    except (ValueError, TypeError, AttributeError):  # a read may see half of it; the next attempt rewrites it
        return {}
