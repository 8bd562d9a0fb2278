"""What a job's GPUs do comes from its pod into MLflow; a script stands for nvidia-smi."""

from __future__ import annotations

import pytest
from system_helpers import ITS_VALUES, Stack, gpu_job, pretty, values_of_gpus

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]


def test_what_gpus_do_is_among_a_jobs_metrics(stack: Stack) -> None:
    job_id = stack.submit(gpu_job("with-gpu", {"learners": 1, "cpus": 0.5, "memory": "256MiB", "gpus": 1}))
    detail = stack.end(job_id)
    assert detail.state == "COMPLETED", pretty(detail)
    assert values_of_gpus(stack.client, job_id) == ITS_VALUES
    assert stack.log(job_id) == ""
