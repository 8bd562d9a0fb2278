"""Fail a task of a job for good, with the reason as the last line of its log."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from airflow.sdk.exceptions import AirflowFailException

from updraft.airflow_seams.failure_log import show_reason_alone

LAST_LINES = 20

log = logging.getLogger(__name__)


class EndTaskError(AirflowFailException):
    """Ends the task without a retry. `reason` is written for the job's user, and is logged without a traceback."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        show_reason_alone(EndTaskError)


def say_last_lines(title: str, lines: Sequence[str]) -> None:
    """Log the program's last `lines` below `title`: the cause is often above the last line."""
    if lines:
        log.error("%s", title)
    for line in lines:
        log.error("  %s", line)
