"""The platform's images on the nodes of the test cluster: built from the checkout, saved, imported.

With UPDRAFT_TEST_IMAGE_ARCHIVES the archives of that folder are taken (`make images ARGS="--archives FOLDER"`), and no
engine is needed. PyTorch's image, of 6 GB, is brought only with UPDRAFT_TEST_PYTORCH_IMAGE, those of LightGBM and
XGBoost with UPDRAFT_TEST_PUBLIC_PROGRAMS. Called by the fixtures of the cluster tests.
"""

from __future__ import annotations

import os
from pathlib import Path

from containers import build, engine, places, recipes
from containers.recipes import Recipe
from kubecluster.running import Cluster, Say

ARCHIVES_VARIABLE = "UPDRAFT_TEST_IMAGE_ARCHIVES"
PYTORCH_VARIABLE = "UPDRAFT_TEST_PYTORCH_IMAGE"
PUBLIC_VARIABLE = "UPDRAFT_TEST_PUBLIC_PROGRAMS"
NEEDED = (recipes.SIDECAR, recipes.DATA, recipes.SHELL, recipes.SKLEARN)


def wanted() -> tuple[Recipe, ...]:
    pytorch = (recipes.PYTORCH,) if os.environ.get(PYTORCH_VARIABLE) else ()
    public = recipes.chosen(["learner-lightgbm", "learner-xgboost"]) if with_public_programs() else ()
    return (*NEEDED, *pytorch, *public)


def with_public_programs() -> bool:
    return bool(os.environ.get(PUBLIC_VARIABLE))


def why_not() -> str | None:
    """Why there can be no images here, in one line; None where there can."""
    folder = _given()
    if folder is not None:
        absent = [recipe.archive for recipe in wanted() if not (folder / recipe.archive).is_file()]
        return f"{ARCHIVES_VARIABLE}: {folder} lacks {', '.join(absent)}" if absent else None
    lacking = engine.missing()
    return f"no images can be built here; needed: {'; '.join(lacking)}" if lacking else None


def bring(cluster: Cluster, say: Say) -> None:
    """The images are on every node afterwards. An engine that is started for it ends again, with what it made."""
    folder = _given()
    if folder is not None:
        _load(cluster, [folder / recipe.archive for recipe in wanted()], say)
        return
    here = places.find_places()
    was_running = engine.answering(os.environ) is not None or engine.running(here) is not None
    docker = engine.find_or_start(here)
    try:
        build.build(docker, here, wanted(), say)
        _load(cluster, build.save(docker, wanted(), here.archives, say), say)
    finally:
        if not was_running:
            engine.end(here)


def _given() -> Path | None:
    named = os.environ.get(ARCHIVES_VARIABLE)
    return Path(named).expanduser().absolute() if named else None


def _load(cluster: Cluster, archives: list[Path], say: Say) -> None:
    for archive in archives:
        say(f"on the nodes: {', '.join(cluster.load_image(archive))}")
