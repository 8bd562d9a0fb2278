"""Read the catalogue of images, `images/catalogue.toml`: which virtual environment replaces an image on one machine.

It maps the name of an image to a package of the uv workspace and its extras. An image without a package uses the host's
own programs. `updraft.stack` builds the environments, and the local node runs containers in them. Neither imports the
other, so what both need is here.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

READY_MARKER = ".updraft-ready"  # file in an environment whose build is complete


class CatalogueError(Exception):
    """The catalogue is unusable or does not contain the image. The message says which entry, and what to write."""


@dataclass(frozen=True)
class Image:
    """One entry of the catalogue."""

    package: str | None = None  # member of the uv workspace; None: the host's own programs
    extras: tuple[str, ...] = ()
    on_demand: bool = False  # built when a job needs it, not beforehand


@dataclass(frozen=True)
class Catalogue:
    """Images by name."""

    images: Mapping[str, Image]

    def get(self, name: str) -> Image:
        """Return the image of that name, with or without `docker.io/`. Raises CatalogueError that lists the names."""
        image = self.images.get(name) or self.images.get(name.removeprefix("docker.io/"))
        if image is None:
            known = ", ".join(sorted(self.images)) or "none"
            raise CatalogueError(f"image {name!r} is not in the local node's catalogue; known images: {known}")
        return image


def load_catalogue(path: Path) -> Catalogue:
    """Read the catalogue. Raises CatalogueError that names the wrong entry."""
    try:
        raw = tomllib.loads(path.read_text())
    except OSError as exc:
        raise CatalogueError(f"catalogue: {path} cannot be read ({exc.strerror}); give an existing TOML file") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise CatalogueError(f"catalogue: {path} is not valid TOML ({exc})") from exc
    try:
        return Catalogue({name: _image(name, entry) for name, entry in _table(raw.get("images", {}), "images").items()})
    except ValueError as exc:
        raise CatalogueError(f"catalogue: {path} is wrong: {exc}") from exc


def _table(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be a table")
    return value


def _image(name: str, entry: object) -> Image:
    where = f'images."{name}"'
    fields = dict(_table(entry, where))
    package, extras = fields.pop("package", None), fields.pop("extras", [])
    on_demand = fields.pop("on_demand", False)
    if fields:
        raise ValueError(f"{where} has no field {', '.join(sorted(fields))}; write package, extras and on_demand")
    if package is not None and not isinstance(package, str):
        raise ValueError(f"{where}: package must be a text")
    if not isinstance(extras, list) or not all(isinstance(extra, str) for extra in extras):
        raise ValueError(f"{where}: extras must be a list of texts")
    if not isinstance(on_demand, bool):
        raise ValueError(f"{where}: on_demand must be true or false")
    return Image(package, tuple(extras), on_demand)


def slug(image: str) -> str:
    """Return the name of an image's folder: `updraft-shell-1` of `updraft/shell:1`."""
    return re.sub(r"[^A-Za-z0-9]+", "-", image).strip("-")


def environment_path(images_dir: Path, image: str) -> Path:
    """Return the folder of the virtual environment that replaces `image`."""
    return images_dir / slug(image)


def is_ready(images_dir: Path, image: str) -> bool:
    """Return whether the environment was built to its end, from whichever lock file."""
    return (environment_path(images_dir, image) / READY_MARKER).is_file()
