"""Build the environments of the stack and its learners from the lock file. Called by `control` and `demo`.

`image_builds` builds images of the catalogue; this module adds MLflow's server, and PyTorch from another index.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from updraft.stack import footprint, image_builds, processes
from updraft.stack.layout import MARK_VARIABLE, Home, StackError
from updraft_learner.catalogue import Catalogue, CatalogueError, Image, environment_path, load_catalogue

TORCH_INDEX_VARIABLE = "UPDRAFT_TORCH_INDEX"
TORCH_ONLY_PREFIXES = ("nvidia-", "cuda-", "triton")  # packages that only a CUDA build of torch needs

# The local node builds an environment when a job needs it, with the same indexes and cache as `make demo`.
BUILDER_VARIABLES = frozenset(
    {"UPDRAFT_TORCH_INDEX", "UV_CACHE_DIR", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL", "UV_INDEX", "UV_INDEX_URL"}
)

Progress = Callable[[str], None]


_DOWNLOAD = re.compile(r"Download(ing|ed) (\S+)(?: \(([\d.]+)([KMG])iB\))?")
_MIB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}


def downloads(say: Callable[[str], None]) -> Progress:
    """Return a reader of the lines that uv prints: `say` gets how much of the large downloads is there, such as `40 %
    of 300 MiB`."""
    sizes: dict[str, float] = {}
    there: set[str] = set()
    told = -1

    def progress(line: str) -> None:
        nonlocal told
        found = _DOWNLOAD.search(line)
        if found is None:
            return
        if found[1] == "ing" and found[3]:
            sizes[found[2]] = float(found[3]) * _MIB[found[4]]
        elif found[1] == "ed":
            there.add(found[2])
        total = sum(sizes.values())
        percent = int(100 * sum(size for name, size in sizes.items() if name in there) / total) if total else 0
        if percent != told:
            told = percent
            say(f"{percent} % of {total:.0f} MiB downloaded")

    return progress


def find_uv(home: Home, environment: Mapping[str, str] | None = None) -> str:
    """Return the uv of the bootstrap, of the PATH or of `.tools`. Raises StackError when there is none."""
    environment = os.environ if environment is None else environment
    named = environment.get("UPDRAFT_UV")
    local = home.repository / ".tools" / "bin" / "uv"
    found = named or shutil.which("uv", path=environment.get("PATH")) or (str(local) if local.is_file() else None)
    if found is None:
        raise StackError("uv was not found; run `make` targets, which install it, or put uv on the PATH.")
    return found


def image_names(home: Home, *, on_demand: bool = True) -> tuple[str, ...]:
    """Return the images of the catalogue that need an environment; `on_demand`: also those that wait for a job."""
    images = {name: image for name, image in _catalogue(home).images.items() if image.package is not None}
    return tuple(name for name, image in images.items() if on_demand or not image.on_demand)


def build_mlflow(home: Home, progress: Progress) -> None:
    """Build MLflow's own environment, unless it is already as the lock file says. Raises StackError."""
    options = ["--package", "updraft-mlflow-server", "--no-dev"]
    _build(home, home.mlflow_environment, options, progress, "MLflow server")


def build_torch_tests(home: Home, progress: Progress) -> None:
    """Build the PyTorch learner's environment with the test tools in it; its files are those of the learner's image."""
    options = ["--package", "updraft-learner", "--extra", "pytorch", "--no-default-groups", "--group", "test"]
    _build(home, home.environments / "torch-tests", options, progress, "PyTorch learner with test tools")


def framework_tests(home: Home) -> dict[str, tuple[str, ...]]:
    """Return the frameworks whose images are built on demand, with the extras of `updraft-learner` in each."""
    images = _catalogue(home).images.items()
    return {_framework(name): image.extras for name, image in images if image.on_demand and image.package is not None}


def _framework(image: str) -> str:
    return image.rpartition("learner-")[2].partition(":")[0]


def build_framework_tests(home: Home, framework: str, progress: Progress) -> Path:
    """Build a framework's environment with the test tools in it, and return its Python. Raises StackError."""
    extras = framework_tests(home)[framework]
    options = ["--package", "updraft-learner", "--no-default-groups", "--group", "test"]
    options += [part for extra in extras for part in ("--extra", extra)]
    target = home.environments / f"tests-{framework}"
    home.root.mkdir(parents=True, exist_ok=True)
    _build(home, target, options, progress, f"{framework} learner with test tools")
    return target / "bin" / "python"


def _build(home: Home, target: Path, options: list[str], progress: Progress, what: str) -> None:
    marker = target / footprint.READY_MARKER
    digest = hashlib.sha256((home.repository / "uv.lock").read_bytes()).hexdigest()
    if marker.is_file() and marker.read_text() == digest:
        return
    marker.unlink(missing_ok=True)
    command = [find_uv(home), "sync", "--frozen", *options, "--python", sys.executable]
    _run(home, command, {"UV_PROJECT_ENVIRONMENT": str(target)}, progress, what)
    marker.write_text(digest)


def build_image(home: Home, name: str, progress: Progress) -> None:
    """Build the environment of one image of the catalogue, unless it is current. Raises StackError."""
    catalogue = _catalogue(home)
    index = os.environ.get(TORCH_INDEX_VARIABLE)
    os.environ[MARK_VARIABLE] = str(home.root)  # marks uv as a process of this home, so that `down` finds it
    os.environ["UV_PYTHON_DOWNLOADS"] = "never"
    try:
        if index and "pytorch" in catalogue.get(name).extras:
            _build_with_torch_from(home, name, catalogue.get(name), index, progress)
            return
        image_builds.build_environment(
            name,
            catalogue=catalogue,
            images_dir=home.images,
            project_dir=home.repository,
            uv=find_uv(home),
            python=sys.executable,
            progress=progress,
        )
    except CatalogueError as exc:
        raise StackError(str(exc)) from exc


def _catalogue(home: Home) -> Catalogue:
    try:
        return load_catalogue(home.repository / "images" / "catalogue.toml")
    except CatalogueError as exc:
        raise StackError(str(exc)) from exc


def end_builds(home: Home) -> None:
    """End the installers that this process has started for a home: uv does not notice that its caller is gone."""
    children = psutil.Process().children(recursive=True)
    processes.end([p for p in children if p.name().startswith("uv")], grace_seconds=5)


def _build_with_torch_from(home: Home, name: str, image: Image, index: str, progress: Progress) -> None:
    """Install everything but torch from the lock file, then the locked version of torch from `index`."""
    lock_file = home.repository / "uv.lock"
    if image_builds.is_current(home.images, name, image, lock_file, sys.executable):
        return
    target = environment_path(home.images, name)
    marker = target / footprint.READY_MARKER
    marker.unlink(missing_ok=True)
    uv = find_uv(home)
    locked = {p["name"]: p["version"] for p in tomllib.loads(lock_file.read_text())["package"] if "version" in p}
    left_out = ["torch", *(n for n in locked if n.startswith(TORCH_ONLY_PREFIXES))]
    command = [uv, "sync", "--frozen", "--no-dev", "--package", str(image.package), "--python", sys.executable]
    command += [part for extra in image.extras for part in ("--extra", extra)]
    command += [part for package in left_out for part in ("--no-install-package", package)]
    _run(home, command, {"UV_PROJECT_ENVIRONMENT": str(target)}, progress, name)
    python = str(target / "bin" / "python")
    install = [uv, "pip", "install", "--python", python, f"torch=={locked['torch']}", "--index-url", index]
    _run(home, install, {}, progress, name)
    marker.write_text(image_builds.environment_digest(image, lock_file, sys.executable) + "\n")


def _run(home: Home, command: list[str], extra: Mapping[str, str], progress: Progress, what: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "VIRTUAL_ENV"}
    environment |= {MARK_VARIABLE: str(home.root), "UV_PYTHON_DOWNLOADS": "never", **extra}
    lines: list[str] = []
    try:
        with subprocess.Popen(
            command, cwd=home.repository, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines = [*lines[-9:], line.rstrip()]
                progress(line.rstrip())
    except OSError as exc:
        raise StackError(f"{what}: {command[0]} cannot be run ({exc.strerror}).") from exc
    if process.returncode != 0:
        said = "\n".join(lines)
        raise StackError(f"{what}: its environment could not be built; uv ended with {process.returncode}:\n{said}")


def is_built(home: Home, key: str) -> bool:
    return footprint.present(key, home.root, home.repository)


def missing_space(home: Home, keys: tuple[str, ...]) -> str | None:
    return footprint.missing_space(keys, home.root, home.repository, os.environ)
