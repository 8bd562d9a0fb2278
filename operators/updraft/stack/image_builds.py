"""Build the virtual environments that replace images on this machine, from the lock file. Called by `environments`.

uv environments cannot be moved, so each is built in its final place. The last step marks it ready, with the lock's
digest, so that a half-built one is never used.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from updraft.stack.layout import StackError
from updraft_learner.catalogue import READY_MARKER, Catalogue, Image, environment_path, slug


def environment_digest(image: Image, lock_file: Path, python: str) -> str:
    """Return what the environment is made of, as a digest: with another one it has to be built again."""
    recipe = json.dumps([image.package, sorted(image.extras), python])
    return hashlib.sha256(recipe.encode() + b"\0" + lock_file.read_bytes()).hexdigest()


def is_current(images_dir: Path, name: str, image: Image, lock_file: Path, python: str) -> bool:
    """Return whether the environment is ready and was built from this very lock file."""
    if image.package is None:
        return True
    try:
        digest = (environment_path(images_dir, name) / READY_MARKER).read_text().strip()
    except OSError:
        return False
    return digest == environment_digest(image, lock_file, python)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let two builders of one image wait for each other. The lock ends with its process."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _run(command: list[str], *, cwd: Path, environment: Mapping[str, str], progress: Callable[[str], None]) -> int:
    """Run to the end, handing each line of output to `progress`."""
    with subprocess.Popen(
        command, cwd=cwd, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            progress(line.rstrip())
    return process.returncode


def build_environment(
    name: str,
    *,
    catalogue: Catalogue,
    images_dir: Path,
    project_dir: Path,
    uv: str,
    python: str,
    progress: Callable[[str], None],
) -> Path | None:
    """Build the environment of image `name` from the lock file in `project_dir`, unless it is current.

    `uv` and `python` are programs; `progress` gets each line that uv prints. Returns the environment's folder, or None
    for an image that needs none.
    Raises CatalogueError for an unknown image, StackError if uv fails.
    """
    image = catalogue.get(name)
    if image.package is None:
        return None
    lock_file = project_dir / "uv.lock"
    target = environment_path(images_dir, name)
    images_dir.mkdir(parents=True, exist_ok=True)
    with _locked(images_dir / f".{slug(name)}.lock"):
        if is_current(images_dir, name, image, lock_file, python):
            return target
        (target / READY_MARKER).unlink(missing_ok=True)
        command = [uv, "sync", "--frozen", "--no-dev", "--package", image.package, "--python", python]
        for extra in image.extras:
            command += ["--extra", extra]
        environment = {k: v for k, v in os.environ.items() if k != "VIRTUAL_ENV"}
        environment["UV_PROJECT_ENVIRONMENT"] = str(target)
        last_lines: list[str] = []

        def note(line: str) -> None:
            last_lines.append(line)
            del last_lines[:-10]
            progress(line)

        status = _run(command, cwd=project_dir, environment=environment, progress=note)
        if status != 0:
            shown = "\n".join(last_lines)
            raise StackError(f"image {name!r} could not be built: uv sync ended with {status}:\n{shown}")
        marker = target / f"{READY_MARKER}.new"
        marker.write_text(environment_digest(image, lock_file, python) + "\n")
        marker.replace(target / READY_MARKER)
    return target
