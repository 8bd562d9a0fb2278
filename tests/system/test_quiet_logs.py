"""A stack that starts and trains writes nothing that looks like a fault, so that a fault is seen in its logs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from system_helpers import Stack, log_sizes, pretty, shell_job

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

LOUD = re.compile(r"warning|error|critical|traceback|deprecat|async thread was blocked", re.IGNORECASE)
# A library's own words, which no setting of it takes away.
KNOWN = {
    r" ERROR : .*: Dir\.Remove not empty$": "rclone, after each delete, tries to remove every folder above the object",
    r"mlflow\.server\.auth: This feature is still experimental": "MLflow, once at each start",
    r"SimpleAuthManager is active but the deployment shape": "Airflow, of any executor whose name it does not know",
    r"Starting call to 'airflow\.sdk\.api\.client\.Client\.request'": "Airflow, when it asks its busy api-server again",
}


def loud(sizes: dict[Path, int], until: dict[Path, int]) -> Iterator[str]:
    """The loud lines that were written between two moments."""
    for path, end in until.items():
        with path.open("rb") as file:
            file.seek(sizes.get(path, 0))
            text = file.read(end - sizes.get(path, 0)).decode(errors="replace")
        for line in text.splitlines():
            if LOUD.search(line) and not any(re.search(known, line) for known in KNOWN):
                yield f"{path.name}: {line[:400]}"


def test_a_stack_that_starts_and_trains_says_nothing_loud(stack: Stack) -> None:
    # Airflow starts tasks while its api-server still loads: on a busy machine their requests time out, the scheduler
    # says so and starts them again. A job that has ended shows that this is over.
    stack.end(stack.submit(shell_job("first", "true")))
    before = log_sizes(stack.home)
    script = "echo begun; mkdir c; touch c/COMPLETE; mv c $CHECKPOINT_DIR/step-1; echo 1 > $RESULT_DIR/result; sleep 3"
    detail = stack.end(stack.submit(shell_job("quiet", script, checkpoints={"every": "1s"})))
    assert detail.state == "COMPLETED", pretty(detail)
    started = {path: size for path, size in stack.started.items() if path.name != "airflow-scheduler.log"}
    found = [*loud({}, started), *loud(before, log_sizes(stack.home))]
    assert not found, "\n".join(found)
