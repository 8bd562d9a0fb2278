"""The seam `failure_log`: the log of a task that fails for good ends with the reason alone.

Airflow logs a raised exception as "Task failed with exception" with a traceback of Airflow's and the platform's frames,
below the reason and of no use to the user. A task can change this only in structlog's processors, which work with every
way of starting Airflow. Called by `operators.ending`.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from updraft.airflow_seams.switch import applies


class ReasonAlone:
    """A structlog processor that replaces the traceback of exceptions of one type by their text."""

    def __init__(self, error: type[Exception]) -> None:
        self._error = error

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReasonAlone) and other._error is self._error

    def __hash__(self) -> int:
        return hash(self._error)

    def __call__(self, _logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        raised = sys.exc_info()[1] if event.get("exc_info") else None
        if isinstance(raised, self._error):
            del event["exc_info"]
            event["event"] = str(raised)
        return event


def show_reason_alone(error: type[Exception]) -> None:
    """Have this process log exceptions of this type by their text alone."""
    if not applies("failure_log"):
        return
    processors = structlog.get_config()["processors"]  # the same list object that Airflow's loggers use
    if ReasonAlone(error) not in processors:
        processors.insert(0, ReasonAlone(error))
