"""Check that an exported model folder is one that the platform's export writes, so that loading it runs no job's code.

The export pod runs the platform's own program, so this normally finds nothing. It is checked again because people load
registered models with their own credentials. Called by `updraft.storage.objects`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import yaml

from updraft.exceptions import DataError

TRUSTED_FORMAT = "mlflow"  # the job's own model folder, of any flavour

FILES = {
    *("MLmodel", "model.onnx", "data/model.pt2", "torch/program.pt2", "torch/weights.safetensors"),
    *("conda.yaml", "python_env.yaml", "requirements.txt", "input_example.json", "serving_input_example.json"),
}
LOADERS = {"onnx": "mlflow.onnx", "pytorch": "mlflow.pytorch"}
_REQUIREMENT = re.compile(r"(mlflow-skinny|numpy|onnx|onnxruntime|pandas|torch)==[0-9A-Za-z.]+", re.ASCII)
MODEL_FILE_LIMIT_BYTES = 4 << 20


def require_names(names: Iterable[str]) -> None:
    """Raise DataError when a file of the export is none of those that the platform writes."""
    for name in names:
        if name.removeprefix("model/") not in FILES:
            raise DataError(
                f"export: {name!r} is no file that the platform's export writes; nothing was registered. Run the "
                "export again, or set export.trust_code if the job's own model folder is meant"
            )


def require_data_only(folder: Path) -> None:
    """Raise DataError when the model in the folder says that loading it runs anything but MLflow's own loaders."""
    try:
        if (folder / "MLmodel").stat().st_size > MODEL_FILE_LIMIT_BYTES:
            raise ValueError("too large")
        flavors = yaml.safe_load((folder / "MLmodel").read_text(encoding="utf-8"))["flavors"]
        own = flavors.keys() - {"python_function"}
        generic = flavors.get("python_function") or {}
        lines = (folder / "requirements.txt").read_text(encoding="utf-8").split()
        code = [flavor["code"] for flavor in flavors.values() if flavor.get("code")]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as exc:
        raise DataError(f"export: MLmodel or requirements.txt cannot be read ({type(exc).__name__})") from exc
    loader = generic.get("loader_module")
    wrong = [line for line in lines if not _REQUIREMENT.fullmatch(line)]
    if len(own) != 1 or not own <= LOADERS.keys():
        raise DataError(
            f"export: MLmodel has the flavours {sorted(flavors)}; the platform's export writes onnx or pytorch"
        )
    if code or (generic and loader not in {LOADERS[name] for name in own}):
        raise DataError(
            f"export: MLmodel brings code or the loader {loader!r}, which would run when the model is loaded"
        )
    if wrong:
        raise DataError(f"export: requirements.txt names {wrong[0]!r}, which the platform's export does not")
