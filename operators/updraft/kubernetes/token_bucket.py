"""Limit how fast logs are read: programs write at any speed, and all learners' logs pass through one process.

Lines that are not read wait in the cluster. Its API serves only the newest file of a container's log (10 MiB by
default, the kubelet's `containerLogMaxSize`), so a program that keeps writing faster than this loses lines there. Used
by `logs`, which waits in the triggerer's event loop, and by `updraft.controller.final_logs`, which waits in threads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

# For one learner: more than a person can read, and a tenth of what the event loop can process.
BYTES_PER_SECOND = 1 << 20
LINES_PER_SECOND = 5_000
# For all learners together: each line is decoded, logged by the task and stored, which costs 50 to 100 us.
ALL_BYTES_PER_SECOND = 8 << 20
ALL_LINES_PER_SECOND = 10_000
BURST_SECONDS = 2.0  # this much passes at once: a traceback of all ranks, the end of a log
LEAST_PAUSE_SECONDS = 0.02


class TokenBucket:
    """Two buckets of tokens, one for bytes and one for lines. Lines pass first and are paid for afterwards, by waiting.

    Args:
        shared: The bucket of all logs that are read in the same process, which is charged as well.
    """

    def __init__(
        self,
        bytes_per_second: float | None = None,
        lines_per_second: float | None = None,
        *,
        shared: TokenBucket | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._rates = (float(bytes_per_second or BYTES_PER_SECOND), float(lines_per_second or LINES_PER_SECOND))
        self._left = [rate * BURST_SECONDS for rate in self._rates]
        self.shared, self._clock, self._sleep, self._at = shared, clock, sleep, clock()

    def owed_seconds(self, size_bytes: int, lines: int) -> float:
        """Return how long to wait after reading this many bytes and lines."""
        now = self._clock()
        passed, self._at = max(0.0, now - self._at), now
        owed = 0.0
        for index, (rate, taken) in enumerate(zip(self._rates, (size_bytes, lines), strict=True)):
            self._left[index] = min(rate * BURST_SECONDS, self._left[index] + rate * passed) - taken
            owed = max(owed, -self._left[index] / rate)
        if self.shared is not None:
            owed = max(owed, self.shared.owed_seconds(size_bytes, lines))
        return owed if owed >= LEAST_PAUSE_SECONDS else 0.0

    async def pass_on(self, size_bytes: int, lines: int) -> None:
        """Wait until this many bytes and lines may pass; other callers get their turns in the meantime."""
        await self._sleep(self.owed_seconds(size_bytes, lines))
