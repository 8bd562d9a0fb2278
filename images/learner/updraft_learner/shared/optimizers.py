"""The optimizers of the server: PyTorch's formulas, in place on NumPy arrays. `train` takes one of them.

An update is elementwise, so it is the same whether it is done on the whole model or chunk by chunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
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

    def update(self, weights: Array, moments: Sequence[Array], gradient: Array, step: int) -> None:
        """Change weights and moments in place; `gradient` is overwritten. All are of the same length."""
        import numpy as np

        if self.weight_decay:
            gradient += self.weight_decay * weights
        if self.momentum:
            (velocity,) = moments
            velocity *= self.momentum
            velocity += gradient
            np.multiply(velocity, self.lr, out=gradient)
        else:
            gradient *= self.lr
        weights -= gradient


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

    def update(self, weights: Array, moments: Sequence[Array], gradient: Array, step: int) -> None:
        """Change weights and moments in place; `gradient` is overwritten. `step` is 1 at the first update."""
        import numpy as np

        first, second = moments
        of_first, of_second = self.betas
        if self.weight_decay:
            gradient += self.weight_decay * weights
        first *= of_first
        first += (1 - of_first) * gradient
        np.square(gradient, out=gradient)
        gradient *= 1 - of_second
        second *= of_second
        second += gradient
        np.sqrt(second, out=gradient)
        gradient /= math.sqrt(1 - of_second**step)
        gradient += self.eps
        np.divide(first, gradient, out=gradient)
        gradient *= self.lr / (1 - of_first**step)
        weights -= gradient


def _positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise InvalidSetting(f"{name} is {value!r}; give a number above 0")


def _not_negative(name: str, value: float) -> None:
    if not (value >= 0 and math.isfinite(value)):
        raise InvalidSetting(f"{name} is {value!r}; give 0 or a number above")


def _fraction(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise InvalidSetting(f"{name} is {value!r}; give 0 or a number below 1")
