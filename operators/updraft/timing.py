"""Set how often triggers look at what they wait for, how long they wait, and by which clock."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from updraft_learner.backoff import Backoff


class RateLimiter:
    """Spread the looks of all watchers of a process over time.

    No look comes sooner than `least_seconds` after its watcher asked for it, and looks are at least
    `1 / most_per_second` apart. Call it from one thread.
    """

    def __init__(
        self, least_seconds: float, most_per_second: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._least_seconds = least_seconds
        self._apart_seconds = 1 / most_per_second
        self._clock = clock
        self._last = -math.inf

    def turn_seconds(self) -> float:
        """Return the seconds until the caller's next look, which is no other caller's turn. Call it once before each
        look."""
        now = self._clock()
        self._last = max(now + self._least_seconds, self._last + self._apart_seconds)
        return self._last - now


RETRY = Backoff(1.0, 30.0)
# A look at the store costs some milliseconds of a core. A thousand jobs that each look every few seconds, or all at
# once because their triggerer was started again, would leave it no time for what matters, the ends of learners.
PROGRESS_LOOKS = RateLimiter(least_seconds=10.0, most_per_second=10.0)
CHECKPOINT_LOOKS = RateLimiter(least_seconds=4.0, most_per_second=5.0)
TRAINING_END_LOOKS = RateLimiter(least_seconds=4.0, most_per_second=50.0)


@dataclass(frozen=True)
class Timing:
    """The pauses and time limits of triggers, and the clock that measures them.

    Args:
        clock: returns seconds of a clock that never goes back.
        sleep: waits for so many seconds.
        tick_seconds: between looks at the requests and deadlines of a running, halted or backing-off job.
        retry: pauses after a step of a job that failed because something cannot be reached.
        admit_retry_seconds: the same while a job waits for its first admission.
        requests_seconds: between looks of a process at what users ask of its jobs.
        ledger_patience_seconds: with a slower ledger, pods are still looked at.
        queue_turn_seconds: between looks of a process at the queue.
        queue_away_seconds: between them while the ledger cannot be reached.
        place_log_seconds: between log lines about one job's place in the queue. Of a thousand jobs in the queue each
            has another place whenever one is granted; as many lines at once would hold up the event of the granted
            job, which passes through the same pipe of Airflow's triggerer.
        log_end_seconds: for the rest of a container's log after its end.
        log_retry_seconds: between tries to open a log in the store.
        mlflow_seconds: between looks whether MLflow answers.
        answer_seconds: between looks whether a request was answered.
        schedule_seconds: between looks whether a series trains again.
        removal_seconds: until a pod has to be gone after its grace period.
        reaper_seconds: between looks for jobs without a controller.
        airflow_answer_seconds: within which Airflow has to answer a question of the reaper.
        progress_looks: turns of the process's looks at the learners' status in the store.
        checkpoint_looks: turns of the process's looks at the checkpoints in the store.
        training_end_looks: turns of its questions to Airflow whether a training has ended.
    """

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    tick_seconds: float = 2.0
    retry: Backoff = RETRY
    admit_retry_seconds: float = 1.5
    requests_seconds: float = 1.0
    ledger_patience_seconds: float = 2.0
    queue_turn_seconds: float = 0.25
    queue_away_seconds: float = 1.0
    place_log_seconds: float = 30.0
    log_end_seconds: float = 20.0
    log_retry_seconds: float = 3.0
    mlflow_seconds: float = 5.0
    answer_seconds: float = 1.5
    schedule_seconds: float = 15.0
    removal_seconds: float = 30.0
    reaper_seconds: float = 15.0
    airflow_answer_seconds: float = 30.0
    progress_looks: RateLimiter = PROGRESS_LOOKS
    checkpoint_looks: RateLimiter = CHECKPOINT_LOOKS
    training_end_looks: RateLimiter = TRAINING_END_LOOKS


TIMING = Timing()
