"""A gate on held-out data, as docs/howto/models.md says: a better model becomes the champion, a worse one is rejected,
and the report is in MLflow. The evaluation is that of the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pages
import pytest
import yaml
from system_helpers import Stack, pretty

pytestmark = [pytest.mark.system, pytest.mark.turn(2), pytest.mark.timeout(900)]
PAGE = "docs/howto/models.md"
CLASSES, INPUTS, ROWS = 4, 16, 600
TRAIN = """
import os
import numpy as np, torch
import updraft_learner as updraft

examples = np.load(updraft.data_dir() / "held-out.npz")
rng = np.random.default_rng(0)
weights = np.load(updraft.data_dir() / "true.npy")
weights = (weights + updraft.params()["noise"] * rng.normal(size=weights.shape)).astype("float32")
np.save(updraft.result_dir() / "weights.npy", weights)
model = torch.nn.Linear(*weights.shape, bias=False)
model.weight.data = torch.from_numpy(weights.T.copy())
updraft.log_metrics({"noise": updraft.params()["noise"]}, step=1)
updraft.save_model(model, torch.from_numpy(examples["x"][:4]))
"""


def manifest(noise: float) -> dict[str, Any]:
    (text,) = [block.text for block in pages.blocks(PAGE) if "gate:" in block.text]
    found: dict[str, Any] = yaml.safe_load(text)
    found |= {"name": "gated", "framework": {"name": "pytorch"}, "code": ".", "command": "python train.py"}
    found |= {"params": {"noise": noise}, "data": [{"source": "s3://datasets/gated/"}]}
    found["resources"] = {"learners": 1, "cpus": 0.5, "memory": "1GiB"}
    found["export"] |= {"register_as": "gated-model", "formats": ["onnx"]}
    found["export"]["gate"]["latency_ms"] = 5_000  # this machine may be busy
    return found


@pytest.fixture
def program(stack: Stack, code: Path, tmp_path: Path) -> Path:
    """The program, and its data in the bucket."""
    (evaluate,) = [block.text for block in pages.blocks(PAGE) if "save_predictions" in block.text]
    (code / "evaluate.py").write_text(evaluate)
    (code / "train.py").write_text(TRAIN)
    rng = np.random.default_rng(1)
    weights, x = rng.normal(size=(INPUTS, CLASSES)), rng.normal(size=(ROWS, INPUTS)).astype("float32")
    writer = np.where(np.arange(ROWS) % 3 == 0, "anna", "bert")
    np.save(tmp_path / "true.npy", weights)
    np.savez(tmp_path / "held-out.npz", x=x, y=(x @ weights).argmax(axis=1), writer=writer)
    for name in ("true.npy", "held-out.npz"):
        stack.put_object("datasets", f"gated/{name}", (tmp_path / name).read_bytes())
    return code


def trained(stack: Stack, noise: float, code: Path) -> Any:
    detail = stack.end(stack.submit(manifest(noise), base=code))
    assert detail.state == "COMPLETED", pretty(detail)
    return detail


def test_a_gate_promotes_a_better_model_and_rejects_a_worse_one(stack: Stack, program: Path) -> None:
    first = trained(stack, 0.25, program)
    assert first.model.alias == "champion", pretty(first)
    assert "accuracy: accuracy" in first.reason

    better = trained(stack, 0.05, program)
    assert better.model.alias == "champion", pretty(better)
    assert "champion: better than version 1 by " in better.reason
    assert better.reason.endswith("3 more rules hold")  # of two slices, and of the signature

    worse = trained(stack, 0.25, program)
    assert worse.model.alias is None, pretty(worse)
    assert "not promoted: champion: worse than version 2 by " in worse.reason
    outcomes = [(run.version, run.outcome) for run in reversed(stack.client.series_of("gated").runs)]
    assert outcomes == [("1", "promoted"), ("2", "promoted"), ("3", "rejected")]

    login = json.loads((stack.home / "credentials.json").read_text())["mlflow"]
    base, _, page = better.links.mlflow_run.partition("/#/")
    run = page.rpartition("/runs/")[2].partition("?")[0]
    with httpx.Client(base_url=base, auth=(login["username"], login["password"]), timeout=60) as mlflow:
        report = mlflow.get("/get-artifact", params={"run_id": run, "path": "gate/report.html"})
        assert "the gate is <span" in report.text
        assert report.text.count("<svg") == 3
        assert "slice writer=anna" in report.text
        asked = {"name": "gated-model", "version": "2"}
        version = mlflow.get("/api/2.0/mlflow/model-versions/get", params=asked).json()["model_version"]
        tags = {tag["key"]: tag["value"] for tag in version["tags"]}
        assert tags["updraft.gate"].startswith("passed: ")
        assert tags["updraft.gate_report"].startswith(f"{base}/#/experiments/")
        found = mlflow.get("/api/2.0/mlflow/runs/get", params={"run_id": run}).json()["run"]
        assert {metric["key"] for metric in found["data"]["metrics"] if "/" not in metric["key"]} == {"noise"}
