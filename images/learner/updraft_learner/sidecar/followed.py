"""Follow a file to which the program appends, in blocks of whole lines, each line once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from updraft_learner.record.files import open_below

READ_BYTES = 1 << 20  # also the longest line


class FollowedFile:
    """The end of one file. `position` is (generation, offset): the generation counts how often the file was cut.

    Args:
        path: below `root`.
        position: where to begin, as the journal has it.
        on_cut: called when the file has become shorter; it is read anew.
        on_long_line: called for each line longer than READ_BYTES, which is passed over.
    """

    def __init__(
        self,
        root: Path,
        path: str,
        position: tuple[int, int] = (0, 0),
        *,
        on_cut: Callable[[], None],
        on_long_line: Callable[[], None],
    ) -> None:
        self._root, self.path = root, path
        self.generation, self.offset = position
        self._on_cut, self._on_long_line = on_cut, on_long_line
        self._skipping = False

    def blocks(self, *, final: bool = False, limit_bytes: int | None = None) -> Iterator[bytes]:
        """Yield the new whole lines in blocks; with `final` also a last line without a newline.

        The position moves behind a block when the next is asked for: a consumer that fails is given the block again.
        At most about `limit_bytes` are read. Raises OSError if the file cannot be read; a missing file is empty.
        """
        try:
            file = open_below(self._root, self.path)
        except FileNotFoundError:
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            if size < self.offset:
                self._on_cut()
                self.generation, self.offset = self.generation + 1, 0
            end = size if limit_bytes is None else min(size, self.offset + limit_bytes)
            while self.offset < end:
                file.seek(self.offset)
                data = file.read(READ_BYTES) or b""
                whole = data.rfind(b"\n") + 1
                if self._skipping or (whole == 0 and len(data) == READ_BYTES):
                    self._skip(data)
                    continue
                if whole == 0 and not (final and self.offset + len(data) >= size):
                    return
                block = data[: whole or len(data)]
                yield block
                self.offset += len(block)

    def _skip(self, data: bytes) -> None:
        """Pass over a line that is too long, or over the rest of it."""
        if not self._skipping:
            self._on_long_line()
        ends = data.find(b"\n") + 1
        self._skipping = ends == 0
        self.offset += ends or len(data)


def lines_of(block: bytes) -> list[bytes]:
    """Return the lines of a block, each with its newline if it has one."""
    # Not splitlines(), which also splits at carriage returns.
    *whole, rest = block.split(b"\n")
    return [line + b"\n" for line in whole] + ([rest] if rest else [])
