"""Models that people log and register with MLflow, on the real stack (docs/howto/mlflow.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from system_helpers import Stack, pretty

pytestmark = [pytest.mark.system, pytest.mark.turn(2), pytest.mark.timeout(900)]

LOGS = """
import mlflow, numpy
from sklearn.linear_model import LogisticRegression

x = numpy.random.default_rng(0).normal(size=(40, 2)); y = (x[:, 0] > 0).astype(int)
with mlflow.start_run():
    for c in (0.1, 1.0):
        model = LogisticRegression(C=c).fit(x, y)
        info = mlflow.sklearn.log_model(model, name=f"model-{int(c * 10)}", input_example=x[:2], metadata={"c": c})
        if c == 0.1:
            mlflow.register_model(info.model_uri, "logged-people")
    mlflow.log_metric("accuracy", model.score(x, y))
"""
DRAWS = """
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot as plt
import mlflow, numpy, os

figure, axes = plt.subplots()
axes.plot([1, 2, 3])
pixels = numpy.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=numpy.uint8)
with mlflow.start_run() as run:
    mlflow.log_figure(figure, "figures/loss.png")
    mlflow.log_image(pixels, "pictures/noise.png")
    mlflow.log_image(pixels, key="live", step=1)
    mlflow.log_table({"a": [1, 2]}, "tables/t.json")
    print("rows", len(mlflow.load_table("tables/t.json")))
    client = mlflow.MlflowClient()
    print("artifacts", sorted(item.path for item in client.list_artifacts(run.info.run_id)))
"""
TRUSTED: dict[str, Any] = {"formats": ["mlflow"], "trust_code": True}


def job(name: str, export: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "name": name,
        "framework": {"name": "sklearn"},
        "code": ".",
        "command": "python train.py",
        "resources": {"learners": 1, "cpus": 0.5, "memory": "768MiB"},
        **({"export": export} if export else {}),
    }


def test_a_logged_model_is_registered_under_the_programs_name(stack: Stack, code: Path, tmp_path: Path) -> None:
    (code / "train.py").write_text(LOGS)
    detail = stack.end(stack.submit(job("registers", TRUSTED), base=code))
    assert detail.state == "COMPLETED", pretty(detail)
    assert (detail.model.name, detail.model.version) == ("logged-people", "1")
    files = {path.name: path for path in stack.client.download(detail.id, "model", tmp_path)}
    # The one that it registered, and not the one that it logged last.
    assert yaml.safe_load(files["MLmodel"].read_text())["metadata"] == {"c": 0.1}


def test_the_manifests_name_goes_before_the_programs(stack: Stack, code: Path, tmp_path: Path) -> None:
    (code / "train.py").write_text(LOGS.replace("if c == 0.1:", "if False:"))
    detail = stack.end(stack.submit(job("names", {**TRUSTED, "register_as": "named-people"}), base=code))
    assert detail.state == "COMPLETED", pretty(detail)
    assert detail.model.name == "named-people"
    files = {path.name: path for path in stack.client.download(detail.id, "model", tmp_path)}
    assert yaml.safe_load(files["MLmodel"].read_text())["metadata"] == {"c": 1.0}


def test_figures_pictures_and_tables_are_kept(stack: Stack, code: Path) -> None:
    (code / "train.py").write_text(DRAWS)
    detail = stack.end(stack.submit(job("draws", None), base=code))
    assert detail.state == "COMPLETED", pretty(detail)
    log = stack.log(detail.id)
    assert "rows 2" in log
    assert "artifacts ['figures', 'images', 'manifest.json', 'pictures', 'tables']" in log


def test_without_trust_the_request_is_a_warning(stack: Stack, code: Path) -> None:
    (code / "train.py").write_text(LOGS)
    detail = stack.end(stack.submit(job("held", None), base=code))
    assert detail.state == "COMPLETED", pretty(detail)
    assert detail.model is None
    (learner,) = [each for each in detail.learners if each.role == "train"]
    assert any("set export: {formats: [mlflow], trust_code: true}" in text for text in learner.warnings)
