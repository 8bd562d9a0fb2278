"""Which checkpoints are kept, and whose they are: pure decisions over what is known of them."""

from __future__ import annotations

from updraft.checkpoints.retention import Kept, keep_of, retain
from updraft.checkpoints.whose import for_learner, learner_of

__all__ = ["Kept", "for_learner", "keep_of", "learner_of", "retain"]
