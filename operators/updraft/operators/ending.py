"""How a task of a job fails for good: with its reason as the last line of its log."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from airflow.sdk.exceptions import AirflowFailException

from updraft.airflow_seams.failure_log import show_reason_alone

LAST_LINES = 20

log = logging.getLogger(__name__)


class EndTaskError(AirflowFailException):
    """Ends the task without another try. Its text is the reason, written for the job's user, and logged alone."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        show_reason_alone(EndTaskError)


def say_last_lines(title: str, lines: Sequence[str]) -> None:
    """What the program said before it failed, as errors: the reason often stands some lines above the last one."""
    if lines:
        log.error("%s", title)
    for line in lines:
        log.error("  %s", line)
