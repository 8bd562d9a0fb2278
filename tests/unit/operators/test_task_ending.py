"""What the log of a task says when it ends for good."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator

import pytest
import structlog
from unit.operators.airflow_fakes import Platform, until

from updraft.operators.ending import EndTaskError
from updraft.storage.objects import LogBook


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What a logger writes that is set up as Airflow sets up a task's: JSON, with tracebacks."""
    kept = structlog.get_config()
    file = io.StringIO()
    structlog.configure(
        processors=[structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(file),
        cache_logger_on_first_use=True,
    )
    yield file
    structlog.configure(**kept)


def end_with(error: Callable[[str], Exception]) -> None:
    """As Airflow's task runner does with what a task raises. Its logger was made before."""
    log = structlog.get_logger("task")
    log.info("Task starts")
    try:
        try:
            raise OSError("no route to the ledger")
        except OSError as exc:
            raise error("data[0].source: nothing-here is empty; put a file there") from exc
    except Exception:
        log.exception("Task failed with exception")


def test_a_task_that_ends_for_good_logs_its_reason_alone(written: io.StringIO) -> None:
    end_with(EndTaskError)
    end_with(EndTaskError)
    assert [json.loads(line) for line in written.getvalue().splitlines()][1::2] == [
        {"event": "data[0].source: nothing-here is empty; put a file there"}
    ] * 2


def test_any_other_error_keeps_its_tracebacks(written: io.StringIO) -> None:
    end_with(EndTaskError)
    end_with(ValueError)
    last = json.loads(written.getvalue().splitlines()[-1])
    assert last["event"] == "Task failed with exception"
    assert [stack["exc_type"] for stack in last["exception"]] == ["ValueError", "OSError"]


def test_the_last_lines_of_the_learner_that_failed_are_errors_of_its_task(
    make_platform: Callable[..., Platform], caplog: pytest.LogCaptureFixture
) -> None:
    platform = until(make_platform(), "train")

    def end(platform: Platform, job_id: str) -> dict[str, object]:
        book = LogBook.open("default", job_id, "train", 1, 1, store=platform.store)
        said = [f"step {n}" for n in range(30)] + ["Traceback (most recent call last):", "KeyError: 'labels'"]
        book.append([{"n": n, "t": f"2026-01-01T00:00:{n:02}Z", "line": line} for n, line in enumerate(said, 1)])
        return Platform.pods_fail(platform, job_id)

    platform.pods_end = end
    assert platform.run("train") == "failed"
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == [
        "Last lines of learner 1:",
        *(f"  step {n}" for n in range(12, 30)),
        "  Traceback (most recent call last):",
        "  KeyError: 'labels'",
    ]
