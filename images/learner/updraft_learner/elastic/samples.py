"""Where a training gets its samples from: what `training` needs of a map-style data set and of one in shards."""

from __future__ import annotations

from typing import Any, Protocol


class SampleSource(Protocol):
    """The samples of one learner. A cursor says where a step begins; it is part of the training state.

    A step has *parts*: those of this learner, each with a batch of its own. A cursor may be compared, and is moved only
    by `after`, so all learners have the same one.
    """

    def first(self) -> Any:
        """Return the cursor of the first step."""

    def finished(self, cursor: Any) -> bool:
        """Return whether all epochs are over."""

    def regroup(self, rank: int, learners: int) -> None:
        """Become the source of this rank. What was fetched ahead is fetched again, by whoever has it now."""

    def parts(self, cursor: Any) -> list[int]:
        """Return the parts that this learner has of the step at `cursor`; those that have no samples may be missing."""

    def get(self, cursor: Any, part: int) -> tuple[Any, float]:
        """Return a part's batch and its weight; None and 0 if there are no samples. Parts are asked for in order."""

    def facts(self) -> list[float]:
        """Return numbers to sum over the learners with the gradients of this step. They are as many on all learners."""

    def divisor(self, facts: list[float]) -> float:
        """Return what to divide the sum of the weighted gradients by, from the summed facts."""

    def after(self, cursor: Any, facts: list[float]) -> Any:
        """Return the cursor of the next step, from the summed facts."""

    def epoch(self, cursor: Any) -> int:
        """Return the epoch of a cursor, from 0."""

    def to_json(self, cursor: Any) -> Any:
        """Return a cursor as numbers and lists."""

    def from_json(self, value: Any) -> Any:
        """Return the cursor that `to_json` made a value of."""

    def as_json(self) -> dict[str, Any]:
        """Return what must be the same on all learners, and when a training goes on."""

    def close(self) -> None:
        """End threads and processes."""
