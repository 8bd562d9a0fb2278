"""Decide which jobs may start: pure functions without clock, database or cluster.

`updraft.ledger` calls them under the lock of the queue; its caller reads the capacity from the cluster
(`updraft.kubernetes.capacity`).
"""

from __future__ import annotations

from updraft.allocation.estimate import estimate_starts
from updraft.allocation.model import (
    AGEING,
    Capacity,
    Elasticity,
    GangRequest,
    Grant,
    Impossible,
    Node,
    Plan,
    Policy,
    Reclaim,
    Resized,
    Waiting,
)
from updraft.allocation.packing import fits, holds_one, never_fits
from updraft.allocation.placement import Placement
from updraft.allocation.plan import learner_text, plan_admissions
from updraft.tenants import PRIORITIES, Priority

__all__ = [
    "AGEING",
    "PRIORITIES",
    "Capacity",
    "Elasticity",
    "GangRequest",
    "Grant",
    "Impossible",
    "Node",
    "Placement",
    "Plan",
    "Policy",
    "Priority",
    "Reclaim",
    "Resized",
    "Waiting",
    "estimate_starts",
    "fits",
    "holds_one",
    "learner_text",
    "never_fits",
    "plan_admissions",
]
