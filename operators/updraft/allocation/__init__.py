"""Decisions about who may start: pure functions, no clock, no database, no cluster.

Called under the ledger's lock by `updraft.ledger` (`try_admit`); the capacity is read from the cluster by the
caller (`updraft.kubernetes.capacity`).
"""

from __future__ import annotations

from updraft.allocation.model import Capacity, Grant, Impossible, Node, Plan, Request, Waiting
from updraft.allocation.packing import fits, never_fits
from updraft.allocation.plan import plan_admissions

__all__ = [
    "Capacity",
    "Grant",
    "Impossible",
    "Node",
    "Plan",
    "Request",
    "Waiting",
    "fits",
    "never_fits",
    "plan_admissions",
]
