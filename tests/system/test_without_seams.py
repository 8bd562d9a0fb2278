"""Without every change to Airflow the platform trains a job: with Airflow's own executor, sleeps and sessions."""

from __future__ import annotations

import re

import pytest
from system_helpers import pretty, running_stack, shell_job

from updraft.airflow_seams.registry import SEAMS
from updraft.airflow_seams.switch import VARIABLE

pytestmark = [pytest.mark.system, pytest.mark.turn(1), pytest.mark.timeout(900)]

LEFT_OUT = re.compile(r"The Airflow seam (\w+) is left out")


def test_a_job_trains_without_any_seam() -> None:
    with running_stack("without-seams", {VARIABLE: "all"}) as stack:
        detail = stack.end(stack.submit(shell_job("plain", "echo 1 > $RESULT_DIR/result; echo trained")))
        assert detail.state == "COMPLETED", pretty(detail)
        assert "trained" in stack.log(detail.id)
        logs = "".join(path.read_text(errors="replace") for path in (stack.home / "logs").glob("airflow-*.log"))
    assert set(LEFT_OUT.findall(logs)) == SEAMS.keys() - {"failure_log"}  # no task failed
