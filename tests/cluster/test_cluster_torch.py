"""PyTorch's examples on a real Kubernetes. Their image is large, so they run only where it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from kubecluster.machines import NODES
from platform_helpers import Platform, cpus_apart
from system_helpers import REPOSITORY

pytestmark = pytest.mark.cluster
JOBS = REPOSITORY / "jobs"
SHORT = {"digits-cnn": {"epochs": 6}, "digits-ddp": {"epochs": 3}}
EXAMPLES = (*SHORT, "ffdl-digits")


@pytest.fixture(scope="module")
def jobs(pytorch_image: None, platform: Platform) -> dict[str, str]:
    """All at once: they wait in the queue for two nodes."""
    return {name: platform.submit(manifest(platform, name), base=JOBS / name) for name in EXAMPLES}


def manifest(platform: Platform, name: str) -> dict[str, Any]:
    raw: dict[str, Any] = yaml.safe_load((JOBS / name / "manifest.yaml").read_text())
    if name in SHORT:
        raw["params"].update(SHORT[name])
    if raw.get("resources", {}).get("learners") == len(NODES):  # more than half of a node for each
        raw["resources"]["cpus"] = cpus_apart(platform.nodes)
    return raw


def test_the_cnn_becomes_a_registered_and_promoted_model(
    platform: Platform, jobs: dict[str, str], tmp_path: Path
) -> None:
    detail = platform.completed(jobs["digits-cnn"])
    assert detail.model is not None
    assert detail.model.name == "digits-cnn"
    assert platform.client.checkpoints(jobs["digits-cnn"]).checkpoints
    files = platform.client.download(jobs["digits-cnn"], "model", tmp_path)
    assert any(file.suffix == ".onnx" for file in files), files
    for role in ("train", "evaluate", "export"):
        assert len(platform.witness.pods(jobs["digits-cnn"], role)) == 1, role
    platform.nothing_is_left(jobs["digits-cnn"])


def test_two_learners_on_two_nodes_train_one_model(platform: Platform, jobs: dict[str, str], tmp_path: Path) -> None:
    platform.completed(jobs["digits-ddp"])
    assert sorted(platform.witness.nodes(jobs["digits-ddp"])) == list(NODES)
    files = platform.client.download(jobs["digits-ddp"], "results", tmp_path)
    digests = [file.read_text().split()[0] for file in files if file.name == "params.sha256"]
    assert len(digests) == 2, files
    assert len(set(digests)) == 1
    platform.nothing_is_left(jobs["digits-ddp"])


def test_ffdls_example_runs_as_its_users_wrote_it(platform: Platform, jobs: dict[str, str]) -> None:
    platform.completed(jobs["ffdl-digits"])
    platform.nothing_is_left(jobs["ffdl-digits"])
