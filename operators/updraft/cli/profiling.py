"""Measure an elastic job with each number of learners, by scaling it in step by step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from updraft.exceptions import RefusedError
from updraft.wording import counted

if TYPE_CHECKING:
    from updraft.client import Client
    from updraft.schemas import JobSize

POLL_SECONDS = 2.0
RETRY_SECONDS = 120.0  # for a resize that is under way, and for room
MEASURE_SECONDS = 600.0  # for a size to be reached and measured


def measured_sizes(
    client: Client, job: str, least: int | None, most: int | None, *, say: Callable[[str], object]
) -> list[JobSize]:
    """Give the job the most learners, then one fewer after each measurement; then leave its size to the platform.

    Args:
        client: Of the platform.
        job: Its id.
        least, most: The fewest and the most learners; None: as the manifest allows.
        say: Is told what happens.

    Returns:
        The sizes that were measured, from the smallest.

    Raises:
        RefusedError: the job is not elastic, has ended, there is no room for the most learners, or a size was not
            measured in time.
    """
    detail = client.job(job)
    if detail.min_learners is None or detail.max_learners is None:
        raise RefusedError(f"job: {job!r} is not elastic; give its manifest the section elastic")
    least, most = least or detail.min_learners, most or detail.max_learners
    if least > most:
        raise RefusedError(f"--min: {least} is above --max, which is {most}")
    try:
        for learners in range(most, least - 1, -1):
            _scale(client, job, learners)
            say(f"measuring {counted(learners)} …")
            _wait_until_measured(client, job, learners)
    finally:
        _scale(client, job, None)
    return [each for each in client.job(job).sizes if least <= each.learners <= most and each.step_seconds is not None]


def _scale(client: Client, job: str, learners: int | None) -> None:
    """Scale the job, and retry while it, or another one, is being resized."""
    until = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            client.scale(job, learners)
        except RefusedError as exc:
            if "retry" not in str(exc).lower() or time.monotonic() > until:
                raise
        else:
            return
        time.sleep(POLL_SECONDS)


def _wait_until_measured(client: Client, job: str, learners: int) -> None:
    until = time.monotonic() + MEASURE_SECONDS
    while True:
        detail = client.job(job)
        if any(each.current and each.learners == learners and each.step_seconds is not None for each in detail.sizes):
            return
        if detail.state not in ("PROCESSING", "RESIZING", "DEPLOYING", "DOWNLOADING", "RECOVERING"):
            raise RefusedError(f"{job} is {detail.state}: {detail.reason}")
        if time.monotonic() > until:
            raise RefusedError(
                f"{job} did not report the time of a step with {learners} learners within {MEASURE_SECONDS / 60:g} "
                "minutes; log a metric with each step (log_metrics)"
            )
        time.sleep(POLL_SECONDS)
