"""The arithmetic of the optimizers, compiled by Numba when this module is imported for the first time.

Each goes over its arrays once: it adds two gradients up, and changes weights and moments in place. All is float32, and
nothing is reordered or fused, so an element has the same bits whatever it is computed with. `copy_finite` is for
learners.

A gradient is `(first + second) * scale`. Of a single one, `second` is `first`, and `scale` is half as large.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numba import boolean, float32, int32, njit, void

Array = np.ndarray[Any, np.dtype[np.float32]]
Bits = np.ndarray[Any, np.dtype[np.int32]]
_array, _bits = float32[::1], int32[::1]
Kernel = Callable[..., Any]
EXPONENT = 0x7F800000  # of a float32; all of its bits are set in infinities and NaN


def _compiled(signature: Any) -> Callable[[Kernel], Kernel]:
    """Compile a function, and keep the result beside this file or in the user's cache, if one of them can be written
    to."""

    def compiled(function: Kernel) -> Kernel:
        try:
            return cast(Kernel, njit(signature, error_model="numpy", cache=True)(function))
        except (RuntimeError, OSError):  # no such folder, or it is full
            return cast(Kernel, njit(signature, error_model="numpy")(function))

    return compiled


@_compiled(void(_array, _array, _array, *[float32] * 3))
def descend(weights: Array, first: Array, second: Array, scale: float, lr: float, decay: float) -> None:
    """Do an update of stochastic gradient descent."""
    for i in range(weights.size):
        gradient = (first[i] + second[i]) * scale + decay * weights[i]
        weights[i] -= lr * gradient


@_compiled(void(*[_array] * 4, *[float32] * 4))
def descend_with_momentum(
    weights: Array, velocity: Array, first: Array, second: Array, scale: float, lr: float, decay: float, momentum: float
) -> None:
    """Do an update of stochastic gradient descent with momentum."""
    for i in range(weights.size):
        gradient = (first[i] + second[i]) * scale + decay * weights[i]
        velocity[i] = momentum * velocity[i] + gradient
        weights[i] -= lr * velocity[i]


@_compiled(void(*[_array] * 5, *[float32] * 9))
def adam(
    weights: Array,
    mean: Array,
    square: Array,
    first: Array,
    second: Array,
    scale: float,
    size: float,
    decay: float,
    keep_mean: float,
    keep_square: float,
    new_mean: float,
    new_square: float,
    root: float,
    eps: float,
) -> None:
    """Do an update of Adam.

    Args:
        size: The learning rate over the correction of the mean's bias.
        keep_mean: How much of the mean stays; `keep_square`: of the mean of squares.
        new_mean: 1 less that, and `new_square`.
        root: 1 over the root of the correction of the bias of the mean of squares.
    """
    for i in range(weights.size):
        gradient = (first[i] + second[i]) * scale + decay * weights[i]
        mean[i] = keep_mean * mean[i] + new_mean * gradient
        square[i] = keep_square * square[i] + new_square * gradient * gradient
        weights[i] -= size * mean[i] / (math.sqrt(square[i]) * root + eps)


@_compiled(boolean(_bits, _bits))
def copy_finite(target: Bits, source: Bits) -> bool:
    """Copy float32 values as bits; return whether all are finite. It takes as long as a copy."""
    largest = 0
    for i in range(source.size):
        target[i] = source[i]
        largest = max(largest, source[i] & EXPONENT)
    return largest != EXPONENT
