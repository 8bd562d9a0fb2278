"""What an ended job stored is exported by a new job, without training again."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from updraft.client.export_again import COMMAND, MOUNT, export_again, from_results, lay_out
from updraft.exceptions import DataError, RefusedError
from updraft.manifest import parse

RAW = {
    "name": "digits",
    "framework": {"name": "pytorch"},
    "command": "python train.py --epochs ${params.epochs}",
    "params": {"epochs": 3},
    "resources": {"learners": 2},
    "checkpoints": {"every": "60s"},
    "evaluate": {"command": "python evaluate.py"},
    "export": {"formats": ["onnx"], "register_as": "digits"},
}


class Asked(Exception):
    """The platform was asked: nothing was refused before."""


def ended(paths: list[str], state: str = "FAILED", own: dict[str, Any] | None = None) -> Any:
    files = tuple(SimpleNamespace(path=path) for path in paths)
    return SimpleNamespace(
        job=lambda job_id: SimpleNamespace(state=state),
        files=lambda job_id, kind: SimpleNamespace(files=files),
        manifest=lambda job_id: own or RAW,
        check_health=lambda: (_ for _ in ()).throw(Asked),
    )


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "manifest.yaml"
    path.write_text(json.dumps({**RAW, **changes}))
    return path


def test_the_new_job_keeps_what_judges_and_registers_and_trains_nothing() -> None:
    made = from_results(parse(RAW), "digits-1", "ab" * 32)
    assert (made.command, made.resources.learners, made.checkpoints) == (COMMAND, 1, None)
    assert made.data[-1].source == f"tree:{'ab' * 32}"
    assert (made.evaluate, made.export) == (parse(RAW).evaluate, parse(RAW).export)
    assert made.annotations == {"exported_from": "digits-1"}


def test_its_program_lays_out_the_results_and_repeats_the_last_metrics(tmp_path: Path) -> None:
    for learner, text in ((1, "first"), (2, "second")):
        folder = tmp_path / "stored" / f"learner-{learner}" / "model"
        folder.mkdir(parents=True)
        (folder / "model.json").write_text(text)
        (folder / f"{learner}").touch()
    (tmp_path / "stored" / "evaluate").mkdir()
    source = lay_out(tmp_path, {"val_accuracy": 0.9, "loss": float("nan"), "system/node_0/x": 1.0, "gone": None})
    (tmp_path / "data").mkdir()
    source.rename(tmp_path / "data" / MOUNT)
    result, metrics = tmp_path / "result", tmp_path / "metrics.jsonl"
    result.mkdir()
    places = {"DATA_DIR": f"{tmp_path}/data", "RESULT_DIR": str(result), "UPDRAFT_METRICS_FILE": str(metrics)}
    subprocess.run(["/bin/sh", "-c", COMMAND], env={"PATH": "/usr/bin:/bin", **places}, check=True)
    assert (result / "model" / "model.json").read_text() == "first"
    assert {path.name for path in (result / "model").iterdir()} == {"model.json", "1", "2"}
    assert json.loads(metrics.read_text())["metrics"] == {"val_accuracy": 0.9}


def test_what_cannot_be_exported_is_told_before_anything_is_started(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"did not call save_model.*updraft download digits-1 results"):
        export_again(ended(["learner-1/notes.txt"]), "digits-1", write(tmp_path))
    with pytest.raises(RefusedError, match="job digits-1 is PROCESSING"):
        export_again(ended([], "PROCESSING"), "digits-1", write(tmp_path))
    with pytest.raises(RefusedError, match=r"manifest\.yaml has neither `export` nor `evaluate`"):
        export_again(ended([]), "digits-1", write(tmp_path, export=None, evaluate=None))
    with pytest.raises(DataError, match="wrote nothing to RESULT_DIR"):
        export_again(ended(["evaluate/report.json"]), "digits-1", write(tmp_path))


def test_without_a_manifest_the_jobs_own_says_what_follows() -> None:
    model = ended(["learner-1/model/model.json"])
    with pytest.raises(Asked):
        export_again(model, "digits-1")
    bare = {name: value for name, value in RAW.items() if name not in ("export", "evaluate")}
    with pytest.raises(RefusedError, match=r"of job digits-1 has neither .*`updraft export digits-1 MANIFEST`"):
        export_again(ended([], own=bare), "digits-1")


def test_an_evaluation_alone_needs_any_result(tmp_path: Path) -> None:
    with pytest.raises(Asked):
        export_again(ended(["learner-1/predictions.csv"]), "digits-1", write(tmp_path, export=None))


def test_a_job_that_was_exported_after_the_fact_can_be_exported_again() -> None:
    once = from_results(parse(RAW), "digits-1", "ab" * 32)
    again = from_results(once, "digits-2", "cd" * 32)
    assert [item.source for item in again.data] == [f"tree:{'cd' * 32}"]
    assert again.annotations == {"exported_from": "digits-2"}
