"""Pass a trained model to the platform as a program that runs without the user's code.

`save_model` writes RESULT_DIR/<name>/: `program.pt2` (torch.export), `weights.safetensors`, `example.npz` (an input and
the model's own output for it) and `model.json` (signature, digests, versions). `updraft_learner.export` reads it in
another pod and makes ONNX and an MLflow model from it. PyTorch is imported when a model is saved or loaded.
"""

from __future__ import annotations

import copy
import inspect
import json
import math
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat

from updraft_learner import checkpoint_format as fmt
from updraft_learner import runtime
from updraft_learner.checkpoint_format import FileFacts

if TYPE_CHECKING:
    import torch

MODEL_FILE = "model.json"
PROGRAM_FILE = "program.pt2"
WEIGHTS_FILE = "weights.safetensors"
EXAMPLE_FILE = "example.npz"
CLASS_CHARACTERS = 250
DTYPES = {
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "float32", "float64", "bfloat16", "complex64", "complex128"),
}
BATCH = -1  # in a shape: any size

Arrays = dict[str, Any]  # name -> torch.Tensor, in the order of the signature


class ModelError(Exception):
    """The model cannot be exported, or an exported model cannot be used."""


@dataclass(frozen=True)
class TensorFacts:
    name: str
    dtype: str  # torch's name without "torch.": float32
    shape: tuple[int, ...]  # -1 if the size is free


@dataclass(frozen=True)
class SavedModel:
    """The content of `model.json`."""

    model_class: str
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    keyword_inputs: bool  # whether the program takes its inputs by name
    dynamic_batch: bool
    parameters: int
    metrics: Mapping[str, float | None]  # None: the value was not a finite number
    versions: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    files: Mapping[str, FileFacts] = field(default_factory=dict)
    created: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> SavedModel:
        raw = json.loads(text)
        for key in ("inputs", "outputs"):
            raw[key] = tuple(TensorFacts(t["name"], t["dtype"], tuple(t["shape"])) for t in raw[key])
        raw["warnings"] = tuple(raw["warnings"])
        raw["files"] = {name: FileFacts(**facts) for name, facts in raw["files"].items()}
        if unknown := sorted({t.dtype for t in (*raw["inputs"], *raw["outputs"])} - DTYPES):
            raise ValueError(f"{unknown[0]!r} is no type of a tensor")
        raw["model_class"] = str(raw["model_class"])[:CLASS_CHARACTERS]
        return cls(**raw)


def save_model(
    model: torch.nn.Module,
    example_input: torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor],
    *,
    metrics: Mapping[str, SupportsFloat] | None = None,
    name: str = "model",
) -> Path:
    """Export the model as a self-contained program into the folder RESULT_DIR/`name`, and return that folder.

    Args:
        model: is not changed; a DistributedDataParallel wrapper is taken off. In a gang, call this on rank 0 alone.
        example_input: a tensor, a tuple of tensors (positional) or a dict of tensors (by name), with the batch as
            dimension 0, as in (batch, 1, 8, 8). The program takes any batch size where the model allows it.
        metrics: the training's own figures, kept with the model.
        name: name of the folder. The platform exports `model`.

    Raises:
        ModelError: the model cannot be exported; the reason is PyTorch's.

    Example:
        save_model(model, torch.zeros(2, 64), metrics={"val_accuracy": accuracy})
    """
    import safetensors.torch
    import torch

    example, by_keyword = _named_inputs(model, example_input)
    unwrapped = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
    assert isinstance(unwrapped, torch.nn.Module)
    ready = copy.deepcopy(unwrapped).to("cpu").eval()
    program, dynamic, warnings = _export(ready, example, by_keyword)

    outputs = run(ready, example, by_keyword)
    other = resize_batch(example, _batch_size(example) + 1) if dynamic else example
    other_outputs = run(program.module(), other, by_keyword)

    folder = runtime.result_dir() / name
    temporary = folder.with_name(f".tmp-{name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    torch.export.save(program, temporary / PROGRAM_FILE)
    safetensors.torch.save_model(ready, str(temporary / WEIGHTS_FILE))
    write_example(temporary / EXAMPLE_FILE, example, outputs)
    saved = SavedModel(
        model_class=_class_name(type(unwrapped)),
        inputs=_facts(example, other),
        outputs=_facts(outputs, other_outputs),
        keyword_inputs=by_keyword,
        dynamic_batch=dynamic,
        parameters=sum(parameter.numel() for parameter in unwrapped.parameters()),
        metrics={key: _finite(value) for key, value in (metrics or {}).items()},
        versions={"torch": torch.__version__, "python": platform.python_version()},
        warnings=tuple(warnings),
        files=fmt.hash_folder(temporary, flush=True),
        created=fmt.now(),
    )
    (temporary / MODEL_FILE).write_text(saved.to_json(), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)
    return folder


def read_model(folder: Path) -> SavedModel:
    """Read `model.json` and verify the files beside it.

    Raises:
        ModelError: a file is missing or does not match its digest.
    """
    try:
        saved = SavedModel.from_json((folder / MODEL_FILE).read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError) as exc:
        raise ModelError(f"{folder / MODEL_FILE} is unreadable: {exc}") from exc
    found = fmt.hash_folder(folder)
    for name, expected in saved.files.items():
        if name not in found:
            raise ModelError(f"file {name} of the saved model is missing in {folder}")
        if found[name] != expected:
            raise ModelError(f"file {name} of the saved model does not match its digest in {MODEL_FILE}")
    return saved


def load_program(folder: Path) -> Any:
    """Return the saved program as a callable module; runs without the user's code."""
    import torch

    return torch.export.load(folder / PROGRAM_FILE).module()


def run(module: Any, inputs: Arrays, by_keyword: bool) -> Arrays:
    """Run the module and return its outputs by name: `output` for one tensor, `output_0...` for a sequence, the keys of
    a dict."""
    import torch

    with torch.no_grad():
        result = module(**inputs) if by_keyword else module(*inputs.values())
    if isinstance(result, torch.Tensor):
        return {"output": result}
    if isinstance(result, Mapping):
        named = dict(result)
    elif isinstance(result, (tuple, list)):
        named = {f"output_{index}": value for index, value in enumerate(result)}
    else:
        named = {"output": result}
    # In ONNX, inputs and outputs share one set of names, so an output must not be named like an input.
    named = {f"{key}_output" if key in inputs else str(key): value for key, value in named.items()}
    for key, value in named.items():
        if not isinstance(value, torch.Tensor):
            raise ModelError(f"the model's {key} is a {type(value).__name__}; outputs must be tensors")
    return named


def resize_batch(inputs: Arrays, size: int) -> Arrays:
    """Return the same samples, repeated or cut to `size` along dimension 0."""
    import torch

    resized = {}
    for name, tensor in inputs.items():
        index = torch.arange(size) % tensor.shape[0]
        resized[name] = tensor[index]
    return resized


def write_example(path: Path, inputs: Arrays, outputs: Arrays) -> None:
    import numpy

    arrays = {f"input.{name}": numpy_of(tensor) for name, tensor in inputs.items()}
    arrays |= {f"output.{name}": numpy_of(tensor) for name, tensor in outputs.items()}
    numpy.savez(path, **arrays)


def read_example(path: Path, saved: SavedModel) -> tuple[Arrays, Arrays]:
    import numpy
    import torch

    def tensors(kind: str, facts: tuple[TensorFacts, ...]) -> Arrays:
        return {t.name: torch.from_numpy(stored[f"{kind}.{t.name}"]).to(getattr(torch, t.dtype)) for t in facts}

    with numpy.load(path, allow_pickle=False) as stored:
        return tensors("input", saved.inputs), tensors("output", saved.outputs)


def numpy_of(tensor: Any) -> Any:
    import torch

    tensor = tensor.detach().to("cpu")
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()  # NumPy has no bfloat16


def _named_inputs(model: Any, example: Any) -> tuple[Arrays, bool]:
    import torch

    if isinstance(example, torch.Tensor):
        example = (example,)
    if isinstance(example, Mapping):
        named = {str(name): value for name, value in example.items()}
    elif isinstance(example, (tuple, list)):
        target = getattr(model, "module", model)
        accepted = [p.name for p in inspect.signature(target.forward).parameters.values() if p.kind <= 1]
        accepted += [f"input_{index}" for index in range(len(accepted), len(example))]
        named = dict(zip(accepted, example, strict=False))
    else:
        raise ModelError(f"example_input is a {type(example).__name__}; it is a tensor, or a tuple or dict of tensors")
    for name, value in named.items():
        if not isinstance(value, torch.Tensor):
            raise ModelError(f"example_input {name!r} is a {type(value).__name__}; it must be a tensor")
    if not named:
        raise ModelError("example_input is empty; pass at least one tensor")
    return {name: value.detach().to("cpu") for name, value in named.items()}, isinstance(example, Mapping)


def _batch_size(inputs: Arrays) -> int:
    """Return the common size of dimension 0, or 0 if there is none."""
    sizes = {tensor.shape[0] if tensor.ndim else 0 for tensor in inputs.values()}
    return int(sizes.pop()) if len(sizes) == 1 else 0


def _export(model: Any, example: Arrays, by_keyword: bool) -> tuple[Any, bool, list[str]]:
    """Return the exported program, whether its batch size is free, and warnings."""
    import torch

    def export(inputs: Arrays, shapes: Any) -> Any:
        args, kwargs = ((), inputs) if by_keyword else (tuple(inputs.values()), None)
        return torch.export.export(model, args, kwargs, dynamic_shapes=shapes)

    warnings: list[str] = []
    batch = _batch_size(example)
    if batch:
        per_input = {0: torch.export.Dim("batch", min=1)}
        shapes: Any = dict.fromkeys(example, per_input) if by_keyword else tuple(per_input for _ in example)
        try:
            # The tracer treats sizes 0 and 1 in a special way, so a single sample is doubled.
            return export(resize_batch(example, max(batch, 2)), shapes), True, warnings
        except Exception as exc:  # noqa: BLE001 - the tracer may raise anything; the export below is the fallback
            reason = str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__
            warnings.append(
                f"the batch size is fixed at {batch}, because the model does not export with a free one: {reason}"
            )
    else:
        warnings.append("shapes are fixed, because the inputs have no common dimension 0")
    print(f"updraft: save_model: {warnings[0]}", file=sys.stderr, flush=True)
    try:
        return export(example, None), False, warnings
    except Exception as exc:
        raise ModelError(f"torch.export cannot export {type(model).__name__}: {exc}") from exc


def _facts(one: Arrays, other: Arrays) -> tuple[TensorFacts, ...]:
    """Describe the tensors; sizes that differ between two batch sizes are free."""
    return tuple(
        TensorFacts(
            name,
            str(tensor.dtype).removeprefix("torch."),
            tuple(a if a == b else BATCH for a, b in zip(tensor.shape, other[name].shape, strict=True)),
        )
        for name, tensor in one.items()
    )


def _class_name(kind: type) -> str:
    """Return module and class; a class of the program itself has the program's file name in place of `__main__`."""
    module = kind.__module__
    if module == "__main__":
        module = Path(getattr(sys.modules["__main__"], "__file__", None) or module).stem
    return f"{module}.{kind.__qualname__}"


def _finite(value: SupportsFloat) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None
