"""The optimizers of the server, as PyTorch has them. `train` takes one of them. `kernels` does the arithmetic.

An update is elementwise, so it has the same bits whether it is done on the whole model or chunk by chunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from updraft_learner.shared.errors import InvalidSetting

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent, as torch.optim.SGD.

    Args:
        lr: The learning rate, above 0.
        momentum: 0 to below 1. Above 0, one copy of the weights is kept as moments.
        weight_decay: This times the weights is added to the gradient.

    Raises:
        InvalidSetting: a value is out of its range.
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _positive("lr", self.lr)
        _fraction("momentum", self.momentum)
        _not_negative("weight_decay", self.weight_decay)

    @property
    def moments(self) -> int:
        return 1 if self.momentum else 0

    def update(
        self, weights: Array, moments: Sequence[Array], first: Array, second: Array, step: int, divisor: int
    ) -> None:
        """Change weights and moments in place, in one pass over them. All arrays are of the same length.

        Args:
            weights: What is trained.
            moments: As many arrays as `moments` says.
            first: The gradient is the sum of this and of `second`, divided by `divisor`.
            second: For a single gradient, the same array as `first`.
            step: The number of this update, from 1.
            divisor: How many gradients are in that sum; 2 for a single one that is given twice.
        """
        kernels = _kernels()
        scalars = 1 / divisor, self.lr, self.weight_decay
        if moments:
            kernels.descend_with_momentum(weights, *moments, first, second, *scalars, self.momentum)
        else:
            kernels.descend(weights, first, second, *scalars)


@dataclass(frozen=True)
class Adam:
    """Adam, as torch.optim.Adam. Two copies of the weights are kept as moments.

    Args:
        lr: The learning rate, above 0.
        betas: The decay of the averages of the gradient and of its square, each 0 to below 1.
        eps: Added to the denominator, above 0.
        weight_decay: This times the weights is added to the gradient.

    Raises:
        InvalidSetting: a value is out of its range.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _positive("lr", self.lr)
        for number, beta in enumerate(self.betas):
            _fraction(f"betas[{number}]", beta)
        _positive("eps", self.eps)
        _not_negative("weight_decay", self.weight_decay)

    @property
    def moments(self) -> int:
        return 2

    def update(
        self, weights: Array, moments: Sequence[Array], first: Array, second: Array, step: int, divisor: int
    ) -> None:
        """Change weights and moments in place, as `SGD.update` does."""
        kernels = _kernels()
        keep_mean, keep_square = self.betas
        size, root = self.lr / (1 - keep_mean**step), 1 / math.sqrt(1 - keep_square**step)
        scalars = 1 / divisor, size, self.weight_decay, keep_mean, keep_square, 1 - keep_mean, 1 - keep_square
        kernels.adam(weights, *moments, first, second, *scalars, root, self.eps)


@cache
def _kernels() -> ModuleType:
    """Return the module that Numba compiles, for which the program that calls `train` has no need."""
    from updraft_learner.shared import kernels

    return kernels


def _positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise InvalidSetting(f"{name} is {value!r}; give a number above 0")


def _not_negative(name: str, value: float) -> None:
    if not (value >= 0 and math.isfinite(value)):
        raise InvalidSetting(f"{name} is {value!r}; give 0 or a number above")


def _fraction(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise InvalidSetting(f"{name} is {value!r}; give 0 or a number below 1")
