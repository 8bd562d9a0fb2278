"""Compute what the environments cost in downloads and on disk, and whether they fit. Standard library only.

`scripts/bootstrap.py` loads this file by its path, before any package is installed; `environments` and `doctor`
import it.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

MB = 10**6
MARGIN_BYTES = 2_000 * MB  # for the stack's own data, logs, and the demo's checkpoints
READY_MARKER = ".updraft-ready"


@dataclass(frozen=True)
class Footprint:
    """One environment: its location below the home or checkout, and its size (measured, rounded up)."""

    key: str
    title: str
    download_bytes: int
    disk_bytes: int


_CUDA = platform.system() == "Linux"
AIRFLOW = Footprint("airflow", "Airflow and the platform", 300 * MB, 850 * MB)
MLFLOW = Footprint("mlflow", "MLflow server", 250 * MB, 700 * MB)
SIDECAR = Footprint("updraft/sidecar:0.1", "Sidecar of the learners", 20 * MB, 40 * MB)
DATA = Footprint("updraft/data:0.1", "Judging of data (Great Expectations)", 120 * MB, 430 * MB)
SKLEARN = Footprint("updraft/learner-sklearn:1", "scikit-learn learner", 120 * MB, 350 * MB)
PYTORCH = (
    Footprint("updraft/learner-pytorch:2.15", "PyTorch learner with CUDA", 3_200 * MB, 5_700 * MB)
    if _CUDA
    else Footprint("updraft/learner-pytorch:2.15", "PyTorch learner", 350 * MB, 1_500 * MB)
)
PYTORCH_CPU = Footprint(PYTORCH.key, "PyTorch learner without CUDA", 450 * MB, 1_800 * MB)
ON_DEMAND = (
    Footprint("updraft/learner-huggingface:5", "Hugging Face learner", 3_250 * MB, 6_000 * MB),
    Footprint("updraft/learner-lightning:2.6", "Lightning learner", 3_220 * MB, 5_800 * MB),
    Footprint("updraft/learner-jax:0.10", "JAX learner", 250 * MB, 800 * MB),
    Footprint("updraft/learner-tensorflow:2.21", "TensorFlow and Keras learner", 750 * MB, 2_300 * MB),
    Footprint("updraft/learner-xgboost:3.2", "XGBoost learner", 610 * MB, 1_100 * MB),
    Footprint("updraft/learner-lightgbm:4", "LightGBM learner", 125 * MB, 400 * MB),
)
DEMO = (AIRFLOW, MLFLOW, SIDECAR, DATA, PYTORCH)


def known(environment: Mapping[str, str] | None = None) -> dict[str, Footprint]:
    """Return all environments by key; UPDRAFT_TORCH_INDEX makes PyTorch's the small one."""
    environment = os.environ if environment is None else environment
    pytorch = PYTORCH_CPU if environment.get("UPDRAFT_TORCH_INDEX") else PYTORCH
    return {f.key: f for f in (AIRFLOW, MLFLOW, SIDECAR, DATA, SKLEARN, pytorch, *ON_DEMAND)}


def slug(key: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in key).strip("-")


def location(key: str, home: Path, repository: Path) -> Path:
    if key == AIRFLOW.key:
        return repository / ".venv"
    return home / "envs" / "mlflow" if key == MLFLOW.key else home / "images" / slug(key)


def present(key: str, home: Path, repository: Path) -> bool:
    """Return whether an environment seems to be there already (its builder still checks that it is current)."""
    folder = location(key, home, repository)
    marker = "bin/airflow" if key == AIRFLOW.key else READY_MARKER
    return (folder / marker).exists()


def announcement(keys: Iterable[str], home: Path, repository: Path, environment: Mapping[str, str]) -> str:
    """Return what will be downloaded and what it needs on disk, for people to read before it begins."""
    footprints = [known(environment)[key] for key in keys]
    lines = [f"  {'':34}{'download':>10}{'on disk':>10}"]
    for f in footprints:
        if present(f.key, home, repository):
            lines.append(f"  {f.title:34}{'—':>10}{'—':>10}   already there")
        else:
            lines.append(f"  {f.title:34}{size(f.download_bytes):>10}{size(f.disk_bytes):>10}")
    missing = [f for f in footprints if not present(f.key, home, repository)]
    if not missing:
        return "Nothing has to be downloaded: all environments are there."
    download = size(sum(f.download_bytes for f in missing))
    disk = size(sum(f.disk_bytes for f in missing))
    lines.append(f"  {'at most (less what uv has cached)':34}{download:>10}{disk:>10}")
    if any(f.key == PYTORCH.key for f in missing) and _CUDA and not environment.get("UPDRAFT_TORCH_INDEX"):
        lines.append(
            "  PyTorch comes with its CUDA libraries, which it needs to load. Where PyTorch's index of CPU builds is\n"
            "  reachable, UPDRAFT_TORCH_INDEX=<its URL> makes that part three times smaller."
        )
    return "This is what will be downloaded:\n" + "\n".join(lines)


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def missing_space(
    keys: Iterable[str],
    home: Path,
    repository: Path,
    environment: Mapping[str, str],
    *,
    free_bytes: Callable[[Path], int] = free_bytes,
) -> str | None:
    """Return None if everything fits, else one sentence that says where, how much is free, how much is needed and what
    to do."""
    footprints = known(environment)
    missing = [footprints[k] for k in keys if k in footprints and not present(k, home, repository)]
    cache = cache_folder(environment)
    # On the same file system, uv links files from its cache into environments; otherwise it copies them.
    needs: dict[int, list[tuple[Path, int]]] = {}
    for f in missing:
        folder = location(f.key, home, repository)
        needs.setdefault(_device(folder), []).append((folder, f.disk_bytes))
        if _device(cache) != _device(folder):
            needs.setdefault(_device(cache), []).append((cache, f.disk_bytes))
    needs.setdefault(_device(home), []).append((home, MARGIN_BYTES))
    for wanted in needs.values():
        folder = _existing(wanted[0][0])
        needed = sum(n for _, n in wanted)
        free = free_bytes(folder)
        if free < needed:
            return (
                f"Not enough disk: {folder} has {size(free)} free, {size(needed)} are needed. Free some space, or set "
                "UPDRAFT_HOME and UV_CACHE_DIR to folders on a larger disk (both on the same one)."
            )
    return None


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Return where uv keeps packages."""
    if named := environment.get("UV_CACHE_DIR"):
        return Path(named).expanduser()
    base = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "uv"


def size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _device(path: Path) -> int:
    return _existing(path).stat().st_dev
