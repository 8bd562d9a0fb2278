"""Decide which checkpoints are kept, and which learner each belongs to. Pure."""

from __future__ import annotations

from updraft.checkpoints.owner import for_learner, learner_of
from updraft.checkpoints.retention import Kept, keep_of, retain

__all__ = ["Kept", "for_learner", "keep_of", "learner_of", "retain"]
