"""The frameworks of the settings, the catalogue's images and the locked versions are one and the same."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from updraft.client.project import FRAMEWORKS
from updraft.manifest.submission import tag_of
from updraft.settings import Settings
from updraft.stack import footprint
from updraft_learner.catalogue import load_catalogue

REPOSITORY = Path(__file__).parents[3]
CATALOGUE = load_catalogue(REPOSITORY / "images" / "catalogue.toml").images
IMAGES = Settings.model_fields["framework_images"].get_default()
LIBRARIES = {
    "pytorch": "torch",
    "huggingface": "transformers",
    "lightning": "lightning",
    "jax": "jax",
    "tensorflow": "tensorflow",
    "sklearn": "scikit-learn",
    "xgboost": "xgboost",
    "lightgbm": "lightgbm",
}


def locked(package: str) -> list[str]:
    lock = tomllib.loads((REPOSITORY / "uv.lock").read_text())
    return [str(each["version"]) for each in lock["package"] if each["name"] == package]


def test_each_framework_has_an_image_of_the_catalogue_and_each_image_a_framework() -> None:
    learners = {name for name in CATALOGUE if "learner-" in name or "shell" in name}
    assert set(IMAGES.values()) == learners
    assert set(FRAMEWORKS.values()) <= set(IMAGES)


@pytest.mark.parametrize(("framework", "library"), LIBRARIES.items())
def test_the_tag_of_an_image_is_the_locked_version(framework: str, library: str) -> None:
    versions = locked(library)
    tag = tag_of(IMAGES[framework])
    assert versions
    assert [v for v in versions if not f"{v}.".startswith(f"{tag}.")] == []


def test_the_disk_space_of_each_image_is_known() -> None:
    assert set(CATALOGUE) - set(footprint.known()) == {IMAGES["shell"]}
