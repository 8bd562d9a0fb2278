"""An elastic job on the cluster of `make cluster`: it shrinks for a newcomer, and takes its room again."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_helpers import eventually
from elastic_helpers import elastic_job, trained, written
from platform_helpers import OwnPlatform
from system_helpers import shell_job

pytestmark = pytest.mark.cluster
SAMPLES = 600_000
H100 = {"gpus": 1, "gpu_type": "nvidia-h100"}  # the cluster has two of them


def test_an_elastic_job_shrinks_and_grows_on_the_cluster(own_platform: OwnPlatform, tmp_path: Path) -> None:
    client = own_platform.client

    def sizes() -> list[int]:
        return [each.learners for each in client.attempts(job).attempts if each.role == "train"]

    manifest = elastic_job("stretches", SAMPLES, {"cpus": 0.1, "memory": "128MiB", **H100}, max_learners=2)
    job = own_platform.submit(manifest, written(tmp_path, "stretches"))
    eventually(lambda: sizes()[-1:] == [2] and client.job(job).state == "PROCESSING", within_seconds=300)
    eventually(lambda: client.checkpoints(job).checkpoints, within_seconds=120)
    comes = shell_job("comes", "sleep 5", resources={"cpus": 0.1, "memory": "64MiB", **H100})
    newcomer = own_platform.submit(comes, tmp_path)
    eventually(lambda: sizes()[-1:] == [1], within_seconds=300)
    assert own_platform.end(newcomer).state == "COMPLETED", own_platform.explained(newcomer)
    eventually(lambda: sizes()[-1:] == [2], within_seconds=300)
    assert own_platform.end(job).state == "COMPLETED", own_platform.explained(job)
    states = [each.state for each in client.transitions(job).transitions]
    assert "RESIZING" in states
    assert "RECOVERING" not in states
    result = trained(client.download(job, "results", tmp_path / "results"))
    assert result["samples"] >= SAMPLES
    assert [learners for learners, _, _ in result["sizes"]] == sizes()
    for change in (each for found in client.sizes().rounds for each in found.changes if each.job == job):
        assert change.reason
        assert change.waits is False
    own_platform.nothing_is_left(job)
