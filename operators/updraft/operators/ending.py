"""How a task of a job fails for good: with its reason as the last line of its log.

Airflow logs a raised exception as "Task failed with exception" and a traceback of its own and the platform's frames,
which says nothing to the user and stands below the reason. structlog's processors are where that can be changed from
within a task, on any installation of Airflow.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping, Sequence
from typing import Any

import structlog
from airflow.sdk.exceptions import AirflowFailException

LAST_LINES = 20

log = logging.getLogger(__name__)


class EndTaskError(AirflowFailException):
    """Ends the task without a retry. `reason` is written for the job's user and is logged without a traceback."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        processors = structlog.get_config()["processors"]  # the list itself, which Airflow's loggers hold too
        if _reason_alone not in processors:
            processors.insert(0, _reason_alone)


def say_last_lines(title: str, lines: Sequence[str]) -> None:
    """Log the last `lines` that the program wrote, below `title`: the cause often stands above the last line."""
    if lines:
        log.error("%s", title)
    for line in lines:
        log.error("  %s", line)


def _reason_alone(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    raised = sys.exc_info()[1] if event.get("exc_info") else None
    if isinstance(raised, EndTaskError):
        del event["exc_info"]
        event["event"] = str(raised)
    return event
