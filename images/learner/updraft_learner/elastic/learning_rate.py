"""How the learning rate follows a batch that grows with the number of learners.

AdaScale (Johnson et al., AdaScale SGD, 2020): the gain of S learners over one is
`(noise / b + |G|^2) / (noise / (b S) + |G|^2)`, where `noise` is the variance of the gradient of a sample and `b` the
batch of one learner. It lies between 1, where the gradient has no noise, and S, where it has nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from updraft_learner.scaling import NoiseAverage

if TYPE_CHECKING:
    import torch

RULES = ("linear", "sqrt", "adascale")


class GrownRate:
    """The factor of the learning rate. It is part of the training state.

    Args:
        rule: One of `RULES`.
        batch: Samples of one learner.

    Raises:
        ValueError: there is no such rule.
    """

    def __init__(self, rule: str, batch: int) -> None:
        if rule not in RULES:
            raise ValueError(f"grow is {rule!r}; it must be one of {', '.join(RULES)}, or None for a fixed batch")
        self.rule, self._batch = rule, batch
        self._noise = NoiseAverage()

    def add(self, square_sum: float, square: float, learners: int) -> None:
        """Take note of a step's gradients.

        Args:
            square_sum: Sum of the squared norms of the learners' gradients.
            square: The squared norm of their mean.
        """
        if learners > 1:
            self._noise.add(square_sum / learners, square, self._batch, self._batch * learners)

    def factor(self, learners: int) -> float:
        """Return the factor for so many learners. With adascale it is 1 until there are enough estimates."""
        if self.rule == "linear":
            return float(learners)
        if self.rule == "sqrt":
            return math.sqrt(learners)
        scale = self._noise.scale()  # noise / |G|^2, in samples
        return 1.0 if scale is None else (scale / self._batch + 1) / (scale / (self._batch * learners) + 1)

    @contextmanager
    def applied(self, optimizer: torch.optim.Optimizer, learners: int) -> Iterator[None]:
        """Multiply the learning rates of an optimizer while its update is computed."""
        factor = self.factor(learners)
        rates = [group["lr"] for group in optimizer.param_groups]
        try:
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * factor
            yield
        finally:
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

    def state_dict(self) -> dict[str, Any]:
        return {"rule": self.rule, "noise": self._noise.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._noise.load_state_dict(state["noise"])
