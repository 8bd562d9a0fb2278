"""The reference page of frameworks, made from the settings, the catalogue of images and uv.lock."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from updraft.settings import Settings
from updraft_learner.catalogue import Image, load_catalogue

REPOSITORY = Path(__file__).parents[3]
_PLATFORMS_OWN = {"mlflow-skinny", "onnx", "onnxruntime", "onnxscript", "safetensors"}  # for logging and export


def page() -> str:
    """Return docs/reference/frameworks.md."""
    return f"""\
<!-- Made by `make reference`; change images/catalogue.toml, images/learner/pyproject.toml or the settings. -->
# Frameworks

`framework: {{name: NAME}}` in a manifest chooses one of these images, as the setting `UPDRAFT_FRAMEWORK_IMAGES` says.
`version` is a version or a range of versions, in quotes: `"2.15"`, `">=2.10,<3"`; of the images that fit, the newest is
taken. Packages beside these are listed in [`environment`](../howto/dependencies.md); another image is named in `image`
in place of `framework`.

| framework | image | libraries |
|---|---|---|
{chr(10).join(_rows())}

The versions are those for the newest Python; for an older one, numpy or pandas may be older. Each image has Python,
`updraft_learner` and the MLflow client. A local node builds the environment of an image when the first job needs it;
`updraft images build NAME` does it beforehand, and `updraft images list` shows what is built.
FfDL's `custom` is written as `image`.
"""


def _rows() -> Iterator[str]:
    catalogue = load_catalogue(REPOSITORY / "images" / "catalogue.toml").images
    versions = _locked_versions()
    named: dict[str, list[str]] = {}
    for framework, image in Settings.model_fields["framework_images"].get_default().items():
        named.setdefault(image, []).append(f"`{framework}`")
    for image, names in named.items():
        yield f"| {', '.join(names)} | `{image}` | {_libraries(catalogue[image], versions)} |"


def _libraries(image: Image, versions: Mapping[str, str]) -> str:
    if image.package is None:
        return "the programs of a small Debian; on the local node, those of the machine"
    project = tomllib.loads((REPOSITORY / "images" / "learner" / "pyproject.toml").read_text())["project"]
    lines = [line for extra in reversed(image.extras) for line in project["optional-dependencies"][extra]]
    packages = dict.fromkeys(line.partition(">")[0] for line in lines)
    return ", ".join(f"{name} {versions[name]}" for name in packages if name not in _PLATFORMS_OWN)


def _locked_versions() -> dict[str, str]:
    """Return the newest version of each package: uv.lock may have one per version of Python."""
    lock = tomllib.loads((REPOSITORY / "uv.lock").read_text())
    return {str(each["name"]): str(each["version"]) for each in lock["package"] if "version" in each}
