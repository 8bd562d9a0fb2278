"""Images by name: which virtual environment of the host stands for one, and how it is built.

The catalogue (`images/catalogue.toml`) maps an image's name to a package of the uv workspace and its extras; an
image without a package is the host's own /usr/bin and /bin. `updraft.stack` and `updraft images build` build the
environments; the local node only looks whether one is ready.

uv environments cannot be moved, so one is built where it stays and marked ready, with the lock's
digest, as the last step: a half-built one is never used.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from updraft.exceptions import NotFoundError, UnavailableError, UpdraftError

READY_MARKER = ".updraft-ready"
HOST_PATH = "/usr/bin:/bin"
ENVIRONMENT_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


class Image(BaseModel):
    """One entry of the catalogue."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    package: str | None = None  # member of the uv workspace; None: the host's own programs
    extras: tuple[str, ...] = ()
    framework: str | None = None


@dataclass(frozen=True)
class Catalogue:
    """Images by name."""

    images: Mapping[str, Image]

    def get(self, name: str) -> Image:
        """Raises NotFoundError that lists what is known."""
        image = self.images.get(name) or self.images.get(name.removeprefix("docker.io/"))
        if image is None:
            known = ", ".join(sorted(self.images)) or "none"
            raise NotFoundError(f"image {name!r} is not in the local node's catalogue; known images: {known}")
        return image

    def path_variable(self, images_dir: Path, name: str) -> str:
        """PATH inside a container of this image."""
        if self.get(name).package is None:
            return HOST_PATH
        return f"{environment_path(images_dir, name) / 'bin'}:{ENVIRONMENT_PATH}"


def load_catalogue(path: Path) -> Catalogue:
    """Raises UpdraftError that names the wrong entry."""
    try:
        raw = tomllib.loads(path.read_text())
    except OSError as exc:
        raise UpdraftError(f"catalogue: {path} cannot be read ({exc.strerror}); give an existing TOML file") from exc
    except tomllib.TOMLDecodeError as exc:
        raise UpdraftError(f"catalogue: {path} is not valid TOML ({exc})") from exc
    images = {}
    for name, entry in raw.get("images", {}).items():
        try:
            images[name] = Image.model_validate(entry)
        except ValidationError as exc:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in exc.errors())
            raise UpdraftError(f'catalogue: images."{name}" in {path} is wrong: {wrong}') from exc
    return Catalogue(images)


def slug(image: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", image).strip("-")


def environment_path(images_dir: Path, image: str) -> Path:
    """Folder of the virtual environment that stands for `image`."""
    return images_dir / slug(image)


def environment_digest(image: Image, lock_file: Path, python: str | None = None) -> str:
    """What the environment is made of: another digest means that it has to be built again."""
    recipe = json.dumps([image.package, sorted(image.extras), python or ""])
    return hashlib.sha256(recipe.encode() + b"\0" + lock_file.read_bytes()).hexdigest()


def is_ready(images_dir: Path, name: str) -> bool:
    """True if the environment was built to its end, for whichever lock file."""
    return (environment_path(images_dir, name) / READY_MARKER).is_file()


def is_current(images_dir: Path, name: str, image: Image, lock_file: Path, python: str | None = None) -> bool:
    """True if the environment is ready and was built from this very lock file."""
    if image.package is None:
        return True
    try:
        digest = (environment_path(images_dir, name) / READY_MARKER).read_text().strip()
    except OSError:
        return False
    return digest == environment_digest(image, lock_file, python)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Two builders of one image wait for each other. The lock goes with its process."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _run(command: list[str], *, cwd: Path, environment: Mapping[str, str], progress: Callable[[str], None]) -> int:
    """Runs to the end, handing each line of output to `progress`."""
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
    uv: str | None = None,
    python: str | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Path | None:
    """Builds the environment of image `name` from the lock file in `project_dir`, unless it is current.

    `progress` gets each line that uv prints. Returns the environment's folder, or None for an image that needs none.
    Raises NotFoundError for an unknown image, UnavailableError if uv is absent or fails.
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
        binary = uv or shutil.which("uv")
        if binary is None:
            raise UnavailableError(f"image {name!r} cannot be built: uv is not on PATH; install uv or name its binary")
        (target / READY_MARKER).unlink(missing_ok=True)
        command = [binary, "sync", "--frozen", "--no-dev", "--package", image.package]
        for extra in image.extras:
            command += ["--extra", extra]
        if python is not None:
            command += ["--python", python]
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
            raise UnavailableError(f"image {name!r} could not be built: uv sync ended with {status}:\n{shown}")
        marker = target / f"{READY_MARKER}.new"
        marker.write_text(environment_digest(image, lock_file, python) + "\n")
        marker.replace(target / READY_MARKER)
    return target
