"""Simulate a pool of devices in virtual time under different policies, among them the platform's own sizing.

No process runs, and no time passes: a job is its speed (`updraft.allocation.scalability`) and its work.
"""

from __future__ import annotations

from updraft.simulation.engine import Course, Policy, Run, Size, TrainingJob, View, simulate
from updraft.simulation.outcome import Outcome

__all__ = ["Course", "Outcome", "Policy", "Run", "Size", "TrainingJob", "View", "simulate"]
