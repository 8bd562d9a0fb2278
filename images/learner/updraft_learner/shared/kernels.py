"""What Numba compiles when this module is imported for the first time: a server's pass over its range, the arithmetic
of the optimizers, and a copy for learners.

All is float32, and nothing is reordered or fused, so an element has the same bits whatever it is computed with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numba import boolean, float32, int32, int64, njit, void
from numba.extending import intrinsic, overload

Array = np.ndarray[Any, np.dtype[np.float32]]
Bits = np.ndarray[Any, np.dtype[np.int32]]
Words = np.ndarray[Any, np.dtype[np.int64]]
_array, _bits, _words = float32[::1], int32[::1], int64[::1]
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


def store(words: Words, place: int, value: int) -> None:
    """Set a word; atomic. Earlier writes become visible before it, and later ones after it."""
    words[place] = value


def _store_code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    words = context.make_array(signature.args[0])(context, builder, arguments[0])
    builder.fence("acq_rel")
    builder.store_atomic(arguments[2], builder.gep(words.data, [arguments[1]]), "release", 8)
    builder.fence("acq_rel")
    return context.get_dummy_value()


# The compiler may reorder ordinary stores, and leave one out that another replaces; it does neither to this one. The
# processor keeps the order of stores (`memory.require_ordered_stores`).
_store = intrinsic(lambda typing, words, place, value: (void(words, int64, int64), _store_code))
overload(store)(lambda words, place, value: lambda words, place, value: _store(words, place, value))


@_compiled(void(_array, _array))
def _copy(target: Array, source: Array) -> None:
    for i in range(target.size):
        target[i] = source[i]


@_compiled(void(*[_array] * 4))
def _copy_two(target: Array, source: Array, other_target: Array, other_source: Array) -> None:
    for i in range(target.size):
        target[i] = source[i]
        other_target[i] = other_source[i]


@_compiled(void(_array, _words, int64, _words, int64, int64))
def _copy_all(values: Array, targets: Words, to: int, sources: Words, begin: int, size: int) -> None:
    """Copy `size` elements of each array, from its element `begin` to the other's element `to`; two arrays at once,
    so that more reads of the memory are in flight."""
    for each in range(0, sources.size - 1, 2):
        first, second = targets[each] + to, targets[each + 1] + to
        origin, other = sources[each] + begin, sources[each + 1] + begin
        _copy_two(
            values[first : first + size],
            values[origin : origin + size],
            values[second : second + size],
            values[other : other + size],
        )
    if sources.size % 2:
        first, origin = targets[-1] + to, sources[-1] + begin
        _copy(values[first : first + size], values[origin : origin + size])


@_compiled(void(_array, _array, _array))
def _add(total: Array, first: Array, second: Array) -> None:
    for i in range(total.size):
        total[i] = first[i] + second[i]


@_compiled(void(*[_array] * 4))
def descend(weights: Array, first: Array, second: Array, numbers: Array) -> None:
    """Do an update of stochastic gradient descent; `numbers` as `SGD.numbers` returns them."""
    scale, lr, decay = numbers[0], numbers[1], numbers[2]
    if decay == 0:
        for i in range(weights.size):
            weights[i] -= lr * ((first[i] + second[i]) * scale)
    else:
        for i in range(weights.size):
            weights[i] -= lr * ((first[i] + second[i]) * scale + decay * weights[i])


@_compiled(void(*[_array] * 5))
def descend_with_momentum(weights: Array, velocity: Array, first: Array, second: Array, numbers: Array) -> None:
    """Do an update of stochastic gradient descent with momentum; `numbers` as `SGD.numbers` returns them."""
    scale, lr, decay, momentum = numbers[0], numbers[1], numbers[2], numbers[3]
    if decay == 0:
        for i in range(weights.size):
            change = momentum * velocity[i] + (first[i] + second[i]) * scale
            velocity[i] = change
            weights[i] -= lr * change
    else:
        for i in range(weights.size):
            change = momentum * velocity[i] + ((first[i] + second[i]) * scale + decay * weights[i])
            velocity[i] = change
            weights[i] -= lr * change


@_compiled(void(*[_array] * 6))
def adam(weights: Array, mean: Array, square: Array, first: Array, second: Array, numbers: Array) -> None:
    """Do an update of Adam; `numbers` as `Adam.numbers` returns them."""
    scale, size, decay, root, eps = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    keep_mean, keep_square, new_mean, new_square = numbers[5], numbers[6], numbers[7], numbers[8]
    for i in range(weights.size):
        change = (first[i] + second[i]) * scale + decay * weights[i]
        mean[i] = keep_mean * mean[i] + new_mean * change
        square[i] = keep_square * square[i] + new_square * change * change
        weights[i] -= size * mean[i] / (math.sqrt(square[i]) * root + eps)


@_compiled(void(_words, _array, *[int64] * 4, *[_words] * 3, _array, _array))
def apply(
    words: Words,
    values: Array,
    progress: int,
    low: int,
    high: int,
    chunk: int,
    state: Words,
    undo: Words,
    gradients: Words,
    numbers: Array,
    scratch: Array,
) -> None:
    """Apply the sum of gradients to a range, chunk by chunk, from the chunk that `progress` names.

    A kill leaves a word as it was or as it became. Of what is written between two words, any part may be there. A chunk
    and its undo copy fit into the cache of a core, so the memory is read once and written once.

    Args:
        words: The words of the shared memory.
        values: Its float32 values.
        progress: Which word is the range's progress.
        low: The first element of the range.
        high: The element after its last one.
        chunk: How many elements are changed at once.
        state: Where in `values` the weights begin, and each array of moments; how many moments there are says which
            optimizer it is.
        undo: Where their undo copies begin, `chunk` long each.
        gradients: Where the gradients begin that are added up, in this order. A single one is added to itself; then its
            scale in `numbers` is half as large.
        numbers: What the optimizer's `numbers` returns for this update.
        scratch: `chunk` elements of this process.
    """
    done, torn = words[progress] >> 1, words[progress] & 1
    for number in range(done, (high - low + chunk - 1) // chunk):
        start = low + number * chunk
        stop = min(start + chunk, high)
        size = stop - start
        if torn:  # a killed server was changing this chunk
            _copy_all(values, state, start, undo, 0, size)
            torn = 0
        else:
            _copy_all(values, undo, 0, state, start, size)
            store(words, progress, 2 * number + 1)
        first = values[gradients[0] + start : gradients[0] + stop]
        second = values[gradients[-1] + start : gradients[-1] + stop]
        for each in range(1, gradients.size - 1):
            _add(scratch[:size], first, values[gradients[each] + start : gradients[each] + stop])
            first = scratch[:size]
        weights = values[state[0] + start : state[0] + stop]
        if state.size == 1:
            descend(weights, first, second, numbers)
        else:
            moment = values[state[1] + start : state[1] + stop]
            if state.size == 2:
                descend_with_momentum(weights, moment, first, second, numbers)
            else:
                square = values[state[2] + start : state[2] + stop]
                adam(weights, moment, square, first, second, numbers)
        store(words, progress, 2 * number + 2)


@_compiled(boolean(_bits, _bits))
def copy_finite(target: Bits, source: Bits) -> bool:
    """Copy float32 values as bits; return whether all are finite. It takes as long as a copy."""
    largest = 0
    for i in range(source.size):
        target[i] = source[i]
        largest = max(largest, source[i] & EXPONENT)
    return largest != EXPONENT
