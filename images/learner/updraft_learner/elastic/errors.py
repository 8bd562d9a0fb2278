"""What an elastic training raises."""

from __future__ import annotations


class LearnerFenced(RuntimeError):
    """The others went on without this learner, which was silent for too long. Its state is of no use."""


class StateLost(RuntimeError):
    """All learners that held a part of the optimizer's state were lost. The training goes on from a checkpoint."""
