"""The optimizers of the server, as PyTorch has them. `train` takes one of them. `kernels` does the arithmetic.

An update is elementwise, so it has the same bits whether it is done on the whole model or chunk by chunk.
`numbers` is what `kernels` takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from updraft_learner.shared.errors import InvalidSetting

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

    def numbers(self, step: int, gradients: int) -> Array:
        """Return 1 over the number of gradients that are added up, the learning rate, the decay, and the momentum.

        Args:
            step: The number of this update, from 1.
            gradients: How many gradients are added up; 2 for a single one, which is given twice.
        """
        return _float32(1 / gradients, self.lr, self.weight_decay, self.momentum)


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

    def numbers(self, step: int, gradients: int) -> Array:
        """Return what `kernels.adam` reads.

        In its order: 1 over the number of gradients; the learning rate over the bias correction of the mean; the weight
        decay; 1 over the root of the bias correction of the square; eps; both betas; 1 less each of them.

        Args:
            step: The number of this update, from 1.
            gradients: How many gradients are added up; 2 for a single one, which is given twice.
        """
        mean, square = self.betas
        size, root = self.lr / (1 - mean**step), 1 / math.sqrt(1 - square**step)
        return _float32(1 / gradients, size, self.weight_decay, root, self.eps, mean, square, 1 - mean, 1 - square)


def _float32(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


def _positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise InvalidSetting(f"{name} is {value!r}; give a number above 0")


def _not_negative(name: str, value: float) -> None:
    if not (value >= 0 and math.isfinite(value)):
        raise InvalidSetting(f"{name} is {value!r}; give 0 or a number above")


def _fraction(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise InvalidSetting(f"{name} is {value!r}; give 0 or a number below 1")
