"""Decisions about who may start: pure functions, no clock, no database, no cluster.

Called by `updraft.ledger` under the lock of the queue; the capacity is read from the cluster by the
caller (`updraft.kubernetes.capacity`).
"""

from __future__ import annotations

from updraft.allocation.model import Capacity, GangRequest, Grant, Impossible, Node, Plan, Waiting
from updraft.allocation.packing import fits, never_fits
from updraft.allocation.plan import plan_admissions

__all__ = [
    "Capacity",
    "GangRequest",
    "Grant",
    "Impossible",
    "Node",
    "Plan",
    "Waiting",
    "fits",
    "never_fits",
    "plan_admissions",
]
