"""Two processes that work in turns. Used by `train`, on the platform and bare."""

from __future__ import annotations

import os
from collections.abc import Iterator

OVER = b"."


def my_turns(folder: str, side: int, count: int) -> Iterator[int]:
    """The numbers of the turns of side 0 or 1, each when it comes.

    A turn is handed over through a pipe that its owner reads (`folder`/0.pipe and 1.pipe): who waits uses no time of
    the core. The order is A B B A, so that no side profits from a machine that slows down."""
    # Open for writing too: a turn comes as a byte, never because the other side is not there yet or has left.
    pipes = [os.open(os.path.join(folder, f"{who}.pipe"), os.O_RDWR) for who in (0, 1)]
    for number in range(count):
        if owner(number) != side:
            continue
        if number == 0 or owner(number - 1) != side:
            os.read(pipes[side], 1)
        yield number
        if number + 1 < count and owner(number + 1) != side:
            os.write(pipes[1 - side], OVER)
    # What comes after the turns, such as a last checkpoint, must not disturb the last one.
    if owner(count - 1) == side:
        os.write(pipes[1 - side], OVER)
    else:
        os.read(pipes[side], 1)


def owner(number: int) -> int:
    return (number + 1) // 2 % 2
