"""Which checkpoints are kept, and whose they are: pure decisions over what is known of them."""

from __future__ import annotations

from updraft.checkpoints.owner import for_learner, learner_of
from updraft.checkpoints.retention import Kept, keep_of, retain

__all__ = ["Kept", "for_learner", "keep_of", "learner_of", "retain"]
