"""Decide which jobs may start: pure functions without clock, database or cluster.

`updraft.ledger` calls them under the lock of the queue; its caller reads the capacity from the cluster
(`updraft.kubernetes.capacity`).
"""

from __future__ import annotations

from updraft.allocation.estimate import estimate_starts
from updraft.allocation.model import (
    AGEING,
    PRIORITIES,
    Capacity,
    GangRequest,
    Grant,
    Impossible,
    Node,
    Plan,
    Priority,
    Waiting,
)
from updraft.allocation.packing import fits, never_fits
from updraft.allocation.placement import Placement
from updraft.allocation.plan import learner_text, plan_admissions

__all__ = [
    "AGEING",
    "PRIORITIES",
    "Capacity",
    "GangRequest",
    "Grant",
    "Impossible",
    "Node",
    "Placement",
    "Plan",
    "Priority",
    "Waiting",
    "estimate_starts",
    "fits",
    "learner_text",
    "never_fits",
    "plan_admissions",
]
