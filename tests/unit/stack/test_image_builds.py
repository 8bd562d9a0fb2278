"""Environments of images: built once per lock file, ready only when whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from updraft.stack.image_builds import build_environment, is_current
from updraft.stack.layout import StackError
from updraft_learner.catalogue import CatalogueError, is_ready, load_catalogue

TEXT = '[images."team/learner:1.0"]\npackage = "p"\nextras = ["x"]\n[images."team/shell:1"]\n'
# Stands for uv: notes how it was called, makes the environment.
UV = """#!/bin/sh
echo "$@" >> calls
echo resolving
[ -e fail ] && { echo "no network" >&2; exit 2; }
mkdir -p "$UV_PROJECT_ENVIRONMENT/bin"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "catalogue.toml").write_text(TEXT)
    (tmp_path / "uv.lock").write_text("lock 1")
    (tmp_path / "uv").write_text(UV)
    (tmp_path / "uv").chmod(0o755)
    return tmp_path


def build(
    project: Path, name: str = "team/learner:1.0", progress: Callable[[str], None] = lambda line: None
) -> Path | None:
    return build_environment(
        name,
        catalogue=load_catalogue(project / "catalogue.toml"),
        images_dir=project / "images",
        project_dir=project,
        uv=str(project / "uv"),
        python="/python",
        progress=progress,
    )


def calls(project: Path) -> list[str]:
    return (project / "calls").read_text().splitlines()


def test_an_environment_is_built_once_and_again_when_the_lock_changes(project: Path) -> None:
    lines: list[str] = []
    target = build(project, progress=lines.append)
    assert target == project / "images" / "team-learner-1-0"
    assert calls(project) == ["sync --frozen --no-dev --package p --python /python --extra x"]
    assert lines == ["resolving"]
    assert is_ready(project / "images", "team/learner:1.0")
    build(project)
    assert len(calls(project)) == 1
    (project / "uv.lock").write_text("lock 2")
    build(project)
    assert len(calls(project)) == 2


def test_a_failed_build_is_not_ready_and_says_why(project: Path) -> None:
    build(project)
    (project / "uv.lock").write_text("lock 2")
    (project / "fail").touch()
    with pytest.raises(StackError, match="no network"):
        build(project)
    assert not is_ready(project / "images", "team/learner:1.0")


def test_an_image_without_a_package_needs_no_environment(project: Path) -> None:
    assert build(project, "team/shell:1") is None
    shell = load_catalogue(project / "catalogue.toml").get("team/shell:1")
    assert is_current(project / "images", "team/shell:1", shell, project / "uv.lock", "/python")


def test_an_unknown_image_is_refused(project: Path) -> None:
    with pytest.raises(CatalogueError, match=r"team/learner:2\.0"):
        build(project, "team/learner:2.0")
