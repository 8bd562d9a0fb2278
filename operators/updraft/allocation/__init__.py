"""Decide which jobs may start: pure functions without clock, database or cluster.

`updraft.ledger` calls them under the lock of the queue; its caller reads the capacity from the cluster
(`updraft.kubernetes.capacity`).
"""

from __future__ import annotations

from updraft.allocation.model import Capacity, GangRequest, Grant, Impossible, Node, Plan, Waiting
from updraft.allocation.packing import fits, never_fits
from updraft.allocation.placement import Placement
from updraft.allocation.plan import plan_admissions

__all__ = [
    "Capacity",
    "GangRequest",
    "Grant",
    "Impossible",
    "Node",
    "Placement",
    "Plan",
    "Waiting",
    "fits",
    "never_fits",
    "plan_admissions",
]
