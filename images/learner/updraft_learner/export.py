"""Convert a saved model to what the registry stores. Run as `python -I -m updraft_learner.export --formats onnx,torch`.

It runs as a pod with one learner in an image of the platform, without the job's code, environment and data; only the
training's RESULT_DIR is restored. It reads what `save_model` wrote to RESULT_DIR/model as data, checks that the model
reproduces its own example, makes and compares the formats, and writes RESULT_DIR/export/model (an MLflow model folder)
and RESULT_DIR/export/export.json. It copies no file of the job, except for the format `mlflow`: if the manifest sets
`trust_code`, the MLflow model folder that the program wrote to RESULT_DIR/model is copied unchecked. The platform
registers the model.
Exit codes: 0 done, 64 nothing to export or an unknown format, 65 files do not match their digests, 1 the model is not
reproduced within the tolerance.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import stat
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from updraft_learner import checkpoint_format as fmt
from updraft_learner import export_formats as formats
from updraft_learner import runtime
from updraft_learner.contract import ExitCode
from updraft_learner.model import (
    EXAMPLE_FILE,
    MODEL_FILE,
    PROGRAM_FILE,
    WEIGHTS_FILE,
    ModelError,
    SavedModel,
    read_example,
    read_model,
)

FORMATS = ("onnx", "torch")
MLFLOW = "mlflow"  # the job's own MLflow model folder, which is trusted, and is never combined with other formats
MLFLOW_FILE = "MLmodel"
DEFAULT_TOLERANCE = 1e-4
REPORT_FILE = "export.json"


class ExportError(Exception):
    """The export ends with this exit code and message."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m updraft_learner.export", description=__doc__)
    parser.add_argument("--formats", required=True, help=f"comma-separated: {', '.join(FORMATS)}; or {MLFLOW}")
    parser.add_argument("--model", type=Path, help="folder written by save_model (default: RESULT_DIR/model)")
    parser.add_argument(
        "--tolerance", type=float, default=DEFAULT_TOLERANCE, help="largest absolute difference allowed"
    )
    options = parser.parse_args(arguments)
    # MLflow warns that it found no pip whose version it could write to conda.yaml; the images have none.
    logging.getLogger("mlflow.utils.environment").setLevel(logging.ERROR)
    try:
        export(
            wanted=tuple(part.strip() for part in options.formats.split(",") if part.strip()),
            model=options.model or runtime.result_dir() / "model",
            target=runtime.result_dir() / "export",
            tolerance=options.tolerance,
        )
    except ExportError as exc:
        print(f"export: {exc}", file=sys.stderr, flush=True)
        return exc.code
    return int(ExitCode.DONE)


def export(*, wanted: tuple[str, ...], model: Path, target: Path, tolerance: float) -> Path:
    """Export the model saved in `model` to the folder `target`; returns the path of the report.

    Raises:
        ExportError: for every reason that this module's docstring lists.
    """
    if wanted == (MLFLOW,):
        temporary = _fresh(target)
        return _finish(target, temporary, _copy_mlflow(model, temporary))
    unknown = [name for name in wanted if name not in FORMATS]
    if unknown or not wanted:
        what = ", ".join(map(repr, unknown)) or "empty"
        raise ExportError(f"--formats is {what}; allowed are {', '.join(FORMATS)}", ExitCode.CONFIGURATION)
    saved = _read(model)
    temporary = _fresh(target)
    try:
        inputs, outputs = read_example(model / EXAMPLE_FILE, saved)
        started = time.monotonic()
        program = formats.load(model / PROGRAM_FILE, saved, inputs, temporary)
        difference = formats.reproduce(program, saved, inputs, outputs, tolerance)
        _say(f"the saved program reproduces its example within {difference:.1e} ({_seconds(started)})")
        trials = formats.trial_inputs(saved, inputs)
        made: dict[str, Any] = {}
        if "onnx" in wanted:
            made["onnx"] = _export_onnx(program, saved, trials, temporary, tolerance)
            if "torch" in wanted:
                made["torch"] = _write_torch(program, model, temporary, difference, tolerance)
        else:
            made["torch"] = _export_torch(program, saved, trials, temporary, model, tolerance)
    except ModelError as exc:
        raise ExportError(str(exc), 1) from exc
    facts = {
        "formats": made,
        "signature": {"inputs": [asdict(t) for t in saved.inputs], "outputs": [asdict(t) for t in saved.outputs]},
        "dynamic_batch": saved.dynamic_batch,
        "model_class": saved.model_class,
        "parameters": saved.parameters,
        "training_metrics": dict(saved.metrics),
        "versions": dict(saved.versions),
        "warnings": list(saved.warnings),
    }
    return _finish(target, temporary, facts)


def _fresh(target: Path) -> Path:
    temporary = target.with_name(f".tmp-{target.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    return temporary


def _finish(target: Path, temporary: Path, facts: dict[str, Any]) -> Path:
    """Add the files' digests and the attempt that wrote them, and put all of it in its place."""
    files = {name: asdict(file) for name, file in fmt.hash_folder(temporary, flush=True).items()}
    report = {**facts, "attempt": runtime.attempt(), "files": files}
    (temporary / REPORT_FILE).write_text(json.dumps(report, indent=1, sort_keys=True), encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)
    _say(f"wrote {len(files)} files for {', '.join(facts['formats'])}")
    return target / REPORT_FILE


def _copy_mlflow(model: Path, temporary: Path) -> dict[str, Any]:
    if not (model / MLFLOW_FILE).is_file():
        raise ExportError(
            f"there is no MLflow model: the program logged none (mlflow.sklearn.log_model(model, name=...)), and "
            f"{model / MLFLOW_FILE} does not exist "
            '(mlflow.sklearn.save_model(model, os.path.join(os.environ["RESULT_DIR"], "model")))',
            ExitCode.CONFIGURATION,
        )
    _require_plain(model)
    shutil.copytree(model, temporary / "model")
    size_bytes = sum(path.stat().st_size for path in model.rglob("*") if path.is_file())
    _say("the job's own MLflow model is taken unchecked, as its manifest says (export.trust_code)")
    return {"formats": {MLFLOW: {"path": "model", "bytes": size_bytes}}, "model_class": ""}


def _require_plain(model: Path) -> None:
    """Raise an error for anything but folders and regular files: a link would name a file of this pod."""
    for path in (model, *model.rglob("*")):
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise ExportError(f"{path} is a link or no regular file; save files only", ExitCode.DATA)


def _read(model: Path) -> SavedModel:
    if not (model / MODEL_FILE).is_file():
        raise ExportError(
            f"there is no saved model: {model / MODEL_FILE} does not exist. Let the program call "
            "updraft_learner.save_model(model, example_input) when it is trained, or take `export` out of the manifest",
            ExitCode.CONFIGURATION,
        )
    _require_plain(model)
    try:
        saved = read_model(model)
    except ModelError as exc:
        raise ExportError(str(exc), ExitCode.DATA) from exc
    _say(f"{saved.model_class}, {saved.parameters:,} parameters, saved by torch {saved.versions.get('torch')}")
    for warning in saved.warnings:
        _say(f"note: {warning}")
    return saved


def _export_onnx(program: Any, saved: SavedModel, trials: Any, folder: Path, tolerance: float) -> dict[str, Any]:
    started = time.monotonic()
    onnx_model, opset = formats.to_onnx(program, saved)
    difference = formats.compare_onnx(onnx_model, program, saved, trials, tolerance)
    path = formats.save_mlflow_onnx(onnx_model, saved, trials[0], folder / "model")
    _say(f"ONNX opset {opset} made; differs by at most {difference:.1e} on {_sizes(trials)} ({_seconds(started)})")
    latency = formats.onnx_latency(onnx_model, saved, trials[0])
    _say(f"one call takes {latency['p50_ms']:.2g} ms, 95th percentile {latency['p95_ms']:.2g} ms")
    return _entry(path, folder, difference, tolerance) | {"opset": opset, "latency": latency}


def _export_torch(
    program: Any, saved: SavedModel, trials: Any, folder: Path, model: Path, tolerance: float
) -> dict[str, Any]:
    started = time.monotonic()
    path, difference = formats.save_mlflow_torch(program, saved, trials, folder / "model", tolerance)
    _write_torch(program, model, folder, difference, tolerance)
    _say(f"PyTorch model made; differs by at most {difference:.1e} on {_sizes(trials)} ({_seconds(started)})")
    latency = formats.torch_latency(program, saved, trials[0])
    _say(f"one call takes {latency['p50_ms']:.2g} ms, 95th percentile {latency['p95_ms']:.2g} ms")
    return _entry(path, folder, difference, tolerance) | {"latency": latency}


def _write_torch(program: Any, model: Path, folder: Path, difference: float, tolerance: float) -> dict[str, Any]:
    path = formats.write_torch(program, model / WEIGHTS_FILE, folder / "model" / "torch")
    return _entry(path, folder, difference, tolerance)


def _entry(path: Path, folder: Path, difference: float, tolerance: float) -> dict[str, Any]:
    return {
        "path": path.relative_to(folder).as_posix(),
        "bytes": path.stat().st_size,
        "max_abs_difference": difference,
        "tolerance": tolerance,
    }


def _sizes(trials: Any) -> str:
    sizes = sorted({next(iter(inputs.values())).shape[0] for inputs in trials if next(iter(inputs.values())).ndim})
    return f"batches of {', '.join(map(str, sizes))}"


def _seconds(started: float) -> str:
    return f"{time.monotonic() - started:.1f} s"


def _say(text: str) -> None:
    print(f"export: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
