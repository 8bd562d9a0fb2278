"""Make the formats of an exported model, compare them with the saved program's output, and pack them for MLflow.

Called by `updraft_learner.export`. PyTorch, ONNX and MLflow are imported when used; no tracking server is contacted.
"""

from __future__ import annotations

import io
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from updraft_learner.model import (
    PROGRAM_FILE,
    WEIGHTS_FILE,
    Arrays,
    ModelError,
    SavedModel,
    TensorFacts,
    numpy_of,
    resize_batch,
    run,
)
from updraft_learner.program_file import UnsafeProgram, rewrite, takes_text

if TYPE_CHECKING:
    from mlflow.models import ModelSignature

# MLflow's default lists CUDA first, and then warns on every machine without it.
ONNX_PROVIDERS = ["CPUExecutionProvider"]
EXAMPLE_ROWS = 5  # of the input example that the registry shows
UNTIMED_CALLS, LEAST_CALLS, TIMED_CALLS, TIMED_SECONDS = 3, 20, 200, 3.0  # to measure the time of one call


def load(path: Path, saved: SavedModel, example: Arrays, scratch: Path) -> Any:
    """Return the saved program, loaded from a file in `scratch` that holds only what is plain data in the job's own.

    Raises:
        ModelError: the job's file holds anything else, or no program.
    """
    import torch

    samples = io.BytesIO()
    torch.save(((), example) if saved.keyword_inputs else (tuple(example.values()), {}), samples)
    checked = scratch / "checked.pt2"
    try:
        require_arithmetic(rewrite(path, checked, samples.getvalue()))
        return torch.export.load(checked)
    except UnsafeProgram as exc:
        raise ModelError(
            f"{path.name} is not taken: {exc}. Let updraft_learner.save_model write it, from a model without custom "
            "operators or classes"
        ) from exc
    except Exception as exc:
        raise ModelError(f"{path.name} cannot be loaded: {exc}") from exc
    finally:
        checked.unlink(missing_ok=True)


def require_arithmetic(operators: Iterable[str]) -> None:
    """Raise UnsafeProgram for an operator that does more than compute tensors of tensors and numbers.

    PyTorch finds builtins of TorchScript under `torch.ops.aten` too. `aten::chr` and `aten::add.str` make text, and
    `aten::from_file` writes the file of that name. Accepted are operators of its dispatcher, whose schema has no text,
    but for known options, and no storage or object.
    """
    import torch

    known = set(torch._C._dispatch_get_all_op_names())
    for operator in sorted(operators):
        name, _, overload = operator.partition(".")
        if operator not in known:
            raise UnsafeProgram(f"its graph calls {operator!r}, which is no operator on tensors")
        schema = torch._C._get_schema(name, overload)
        kinds = {str(value.type) for value in (*schema.arguments, *schema.returns)}
        text = any("str" in kind for kind in kinds) and not takes_text(operator)
        if text or any("Storage" in kind or "__torch__" in kind or "Dict" in kind for kind in kinds):
            raise UnsafeProgram(f"its graph calls {operator!r}, which takes more than tensors and numbers")


def write_torch(program: Any, weights: Path, folder: Path) -> Path:
    """Write the loaded program and the job's weights to `folder` again; return the program's file.

    Raises:
        ModelError: the weights are no safetensors file.
    """
    import safetensors.torch
    import torch

    folder.mkdir()
    try:
        safetensors.torch.save_file(safetensors.torch.load_file(weights), folder / WEIGHTS_FILE)
    except safetensors.SafetensorError as exc:
        raise ModelError(f"{weights.name} cannot be read: {exc}") from exc
    torch.export.save(program, folder / PROGRAM_FILE)
    return folder / PROGRAM_FILE


def reproduce(program: Any, saved: SavedModel, inputs: Arrays, outputs: Arrays, tolerance: float) -> float:
    """Run the program on its example; the largest difference from the output that the training process saw.

    Raises:
        ModelError: it is above the tolerance.
    """
    found = run(program.module(), inputs, saved.keyword_inputs)
    return _within("the saved program", max_difference(found, outputs), tolerance)


def trial_inputs(saved: SavedModel, example: Arrays) -> list[Arrays]:
    """Return the example, random inputs like it, and both in other batch sizes where the batch is free."""
    import torch

    generator = torch.Generator().manual_seed(0)
    random = {name: _random_like(tensor, generator) for name, tensor in example.items()}
    trials = [example, random]
    if saved.dynamic_batch:
        batch = next(iter(example.values())).shape[0]
        trials += [resize_batch(random, batch + 3), resize_batch(example, 1)]
    return trials


def to_onnx(program: Any, saved: SavedModel) -> tuple[Any, int]:
    """Return the program as one ONNX model, weights inside, and its opset.

    Raises:
        ModelError: the exporter refuses the program; the reason is the exporter's.
    """
    import onnx
    import torch

    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of every missing optional package
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's own deprecation warnings
            made = torch.onnx.export(
                program,
                input_names=[tensor.name for tensor in saved.inputs],
                output_names=[tensor.name for tensor in saved.outputs],
                dynamo=True,
                verbose=False,
            )
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.onnx")
            made.save(path)
            model = onnx.load(path)
    except Exception as exc:
        raise ModelError(f"the model cannot be written as ONNX: {exc}") from exc
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    return model, int(opset)


def compare_onnx(onnx_model: Any, program: Any, saved: SavedModel, trials: list[Arrays], tolerance: float) -> float:
    """Return the largest difference between onnxruntime and the program over all trials.

    Raises:
        ModelError: onnxruntime does not run the model, or the difference is above the tolerance.
    """
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(onnx_model.SerializeToString(), providers=ONNX_PROVIDERS)
    except Exception as exc:
        raise ModelError(f"onnxruntime does not load the ONNX model: {exc}") from exc
    module = program.module()
    names = [output.name for output in session.get_outputs()]
    worst = 0.0
    for inputs in trials:
        expected = run(module, inputs, saved.keyword_inputs)
        try:
            found = session.run(None, {name: numpy_of(tensor) for name, tensor in inputs.items()})
        except Exception as exc:
            raise ModelError(f"onnxruntime does not run the ONNX model: {exc}") from exc
        worst = max(worst, max_difference(dict(zip(names, found, strict=True)), expected))
    return _within("the ONNX model", worst, tolerance)


def onnx_latency(onnx_model: Any, saved: SavedModel, example: Arrays) -> dict[str, Any]:
    """Return how long onnxruntime needs for one row; `call_times` has the form."""
    import onnxruntime

    session = onnxruntime.InferenceSession(onnx_model.SerializeToString(), providers=ONNX_PROVIDERS)
    inputs = {name: numpy_of(tensor) for name, tensor in _one_row(saved, example).items()}
    return call_times(lambda: session.run(None, inputs))


def torch_latency(program: Any, saved: SavedModel, example: Arrays) -> dict[str, Any]:
    """Return how long PyTorch needs for one row; `call_times` has the form."""
    module, inputs = program.module(), _one_row(saved, example)
    return call_times(lambda: run(module, inputs, saved.keyword_inputs))


def call_times(call: Callable[[], Any]) -> dict[str, Any]:
    """Return `{"p50_ms", "p95_ms", "calls"}` of up to TIMED_CALLS calls, within about TIMED_SECONDS, after some calls
    that are not counted."""
    import numpy

    for _ in range(UNTIMED_CALLS):
        call()
    times: list[float] = []
    end = time.perf_counter() + TIMED_SECONDS
    while len(times) < TIMED_CALLS and (len(times) < LEAST_CALLS or time.perf_counter() < end):
        began = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - began))
    middle, high = numpy.quantile(times, [0.5, 0.95])
    return {"p50_ms": float(middle), "p95_ms": float(high), "calls": len(times)}


def _one_row(saved: SavedModel, example: Arrays) -> Arrays:
    """Return one row of the example, or all of it if the model takes its batch only."""
    return resize_batch(example, 1) if saved.dynamic_batch else example


def save_mlflow_onnx(onnx_model: Any, saved: SavedModel, example: Arrays, folder: Path) -> Path:
    """Write an MLflow model folder around the ONNX model; returns the ONNX file."""
    import mlflow.onnx

    mlflow.onnx.save_model(
        onnx_model,
        str(folder),
        signature=signature(saved),
        input_example={name: numpy_of(tensor) for name, tensor in _few(saved, example).items()},
        pip_requirements=_requirements("mlflow-skinny", "onnx", "onnxruntime", "numpy", "pandas"),
        onnx_execution_providers=ONNX_PROVIDERS,
        save_as_external_data=False,
        metadata=_metadata(saved),
    )
    return folder / "model.onnx"


def save_mlflow_torch(
    program: Any, saved: SavedModel, trials: list[Arrays], folder: Path, tolerance: float
) -> tuple[Path, float]:
    """Write an MLflow model folder around the program; returns its file and the largest difference after loading it.

    Raises:
        ModelError: the program takes several inputs, which this flavour cannot serve, or the difference is too large.
    """
    import mlflow.pytorch

    if len(saved.inputs) != 1:
        raise ModelError(
            f"the model takes {len(saved.inputs)} inputs; MLflow's PyTorch flavour serves one. Ask for `onnx` as well"
        )
    module = program.module()
    (facts,) = saved.inputs
    if saved.keyword_inputs:
        module = _positional(module, facts.name)
    example = _few(saved, trials[0])[facts.name]
    try:
        mlflow.pytorch.save_model(
            module,
            str(folder),
            signature=signature(
                saved, named=False
            ),  # MLflow passes a named tensor as a dict, which this flavour refuses
            # At least two samples: the tracer takes a single one for a fixed size.
            input_example=numpy_of(
                resize_batch({"x": example}, max(2, len(example)))["x"] if saved.dynamic_batch else example
            ),
            pip_requirements=_requirements("mlflow-skinny", "torch", "numpy", "pandas"),
            serialization_format="pt2",
            metadata=_metadata(saved),
        )
        loaded = mlflow.pytorch.load_model(str(folder))
    except Exception as exc:
        raise ModelError(f"the model cannot be written in MLflow's PyTorch flavour: {exc}") from exc
    original = program.module()
    worst = 0.0
    for inputs in trials:
        expected = run(original, inputs, saved.keyword_inputs)
        worst = max(worst, max_difference(run(loaded, inputs, by_keyword=False), expected))
    return folder / "data" / "model.pt2", _within("the PyTorch model", worst, tolerance)


def signature(saved: SavedModel, *, named: bool = True) -> ModelSignature:
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec
    from numpy import dtype

    def schema(tensors: tuple[TensorFacts, ...]) -> Any:
        # NumPy has no bfloat16, so callers send and get float32.
        kinds = [dtype("float32" if t.dtype == "bfloat16" else t.dtype) for t in tensors]
        keep = named or len(tensors) > 1
        specs: list[Any] = [
            TensorSpec(kind, t.shape, name=t.name if keep else None) for t, kind in zip(tensors, kinds, strict=True)
        ]
        return Schema(specs)

    return ModelSignature(inputs=schema(saved.inputs), outputs=schema(saved.outputs))


def max_difference(found: Arrays, expected: Arrays) -> float:
    """Return the largest absolute difference over all outputs. NaN equals NaN at the same place; elsewhere it is
    infinite.

    Raises:
        ModelError: names or shapes differ.
    """
    import numpy

    if set(found) != set(expected):
        raise ModelError(f"outputs are {sorted(found)} instead of {sorted(expected)}")
    worst = 0.0
    for name, tensor in expected.items():
        one = numpy.asarray(numpy_of(found[name]) if hasattr(found[name], "detach") else found[name])
        other = numpy_of(tensor)
        if one.shape != other.shape:
            raise ModelError(f"output {name} has the shape {one.shape} instead of {other.shape}")
        with numpy.errstate(invalid="ignore"):  # inf - inf
            difference = numpy.abs(one.astype("float64") - other.astype("float64"))
        difference[(numpy.isnan(one) & numpy.isnan(other)) | (one == other)] = 0.0
        difference[numpy.isnan(difference)] = numpy.inf
        worst = max(worst, float(difference.max(initial=0.0)))
    return worst


def _within(what: str, difference: float, tolerance: float) -> float:
    if difference > tolerance:
        raise ModelError(
            f"{what} differs by {difference:.3g} from the trained model's own output; allowed is {tolerance:g}. "
            "Is there randomness in forward() that eval() does not switch off?"
        )
    return difference


def _random_like(tensor: Any, generator: Any) -> Any:
    """Return random values in the example's own range, so that token ids and pixels stay legal."""
    import torch

    if tensor.numel() == 0:
        return tensor
    if tensor.dtype == torch.bool:
        return torch.rand(tensor.shape, generator=generator) < 0.5
    low, high = tensor.min(), tensor.max()
    if tensor.is_floating_point():
        return (low + (high - low) * torch.rand(tensor.shape, generator=generator)).to(tensor.dtype)
    return torch.randint(int(low), int(high) + 1, tensor.shape, generator=generator, dtype=tensor.dtype)


def _positional(module: Any, name: str) -> Any:
    import torch

    class Positional(torch.nn.Module):  # type: ignore[misc]  # torch is no dependency of the checker
        """A module with one positional input, as MLflow calls it; the program takes its input by name."""

        def __init__(self) -> None:
            super().__init__()
            self.program = module

        def forward(self, value: Any) -> Any:
            return self.program(**{name: value})

    return Positional()


def _few(saved: SavedModel, example: Arrays) -> Arrays:
    if not saved.dynamic_batch:
        return example
    return {name: tensor[:EXAMPLE_ROWS] for name, tensor in example.items()}


def _requirements(*packages: str) -> list[str]:
    """Return exact versions, without the local part (`+cu132`) that an index may not know."""
    return [f"{package}=={version(package).split('+')[0]}" for package in packages]


def _metadata(saved: SavedModel) -> dict[str, Any]:
    return {"model_class": saved.model_class, "parameters": saved.parameters, "dynamic_batch": saved.dynamic_batch}
