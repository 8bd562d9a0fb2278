from __future__ import annotations

import pytest

from updraft.exceptions import NotFoundError, UnavailableError, UpdraftError
from updraft.localnode.images import build_environment, environment_path, is_current, is_ready, load_catalogue

TEXT = '[images."team/learner:1.0"]\npackage = "p"\nextras = ["x"]\n[images."team/shell:1"]\n'
# Stands for uv: notes how it was called, makes the environment.
UV = """#!/bin/sh
echo "$@" >> calls
echo resolving
[ -e fail ] && { echo "no network" >&2; exit 2; }
mkdir -p "$UV_PROJECT_ENVIRONMENT/bin"
"""


@pytest.fixture
def project(tmp_path):
    (tmp_path / "catalogue.toml").write_text(TEXT)
    (tmp_path / "uv.lock").write_text("lock 1")
    (tmp_path / "uv").write_text(UV)
    (tmp_path / "uv").chmod(0o755)
    return tmp_path


def build(project, name="team/learner:1.0", **options):
    catalogue = load_catalogue(project / "catalogue.toml")
    arguments = {"catalogue": catalogue, "images_dir": project / "images", "project_dir": project}
    return build_environment(name, uv=str(project / "uv"), **arguments, **options)


def calls(project):
    return (project / "calls").read_text().splitlines()


def test_the_environment_of_an_image_has_a_fixed_place(tmp_path):
    assert environment_path(tmp_path, "team/learner-a:1.0") == tmp_path / "team-learner-a-1-0"


def test_an_environment_is_built_once_and_again_when_the_lock_changes(project):
    lines = []
    target = build(project, progress=lines.append)
    assert target == project / "images" / "team-learner-1-0"
    assert calls(project) == ["sync --frozen --no-dev --package p --extra x"]
    assert lines == ["resolving"]
    assert is_ready(project / "images", "team/learner:1.0")
    build(project)
    assert len(calls(project)) == 1
    (project / "uv.lock").write_text("lock 2")
    build(project)
    assert len(calls(project)) == 2


def test_a_failed_build_is_not_ready_and_says_why(project):
    build(project)
    (project / "uv.lock").write_text("lock 2")
    (project / "fail").touch()
    with pytest.raises(UnavailableError, match="no network"):
        build(project)
    assert not is_ready(project / "images", "team/learner:1.0")


def test_an_image_without_a_package_needs_no_environment(project):
    assert build(project, "team/shell:1") is None
    catalogue = load_catalogue(project / "catalogue.toml")
    assert is_current(project / "images", "team/shell:1", catalogue.get("team/shell:1"), project / "uv.lock")
    assert catalogue.path_variable(project / "images", "team/shell:1") == "/usr/bin:/bin"
    python_first = catalogue.path_variable(project / "images", "team/learner:1.0")
    assert python_first.startswith(f"{project}/images/team-learner-1-0/bin:")


def test_an_unknown_image_lists_those_that_are_known(project):
    with pytest.raises(NotFoundError, match=r"team/learner:1\.0, team/shell:1"):
        build(project, "team/learner:2.0")


@pytest.mark.parametrize("text", ["images = [", '[images."x"]\npackages = "p"\n'])
def test_a_wrong_catalogue_is_named(tmp_path, text):
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(UpdraftError, match="catalogue"):
        load_catalogue(tmp_path / "c.toml")


def test_the_catalogue_of_the_repository_is_valid():
    from pathlib import Path

    catalogue = load_catalogue(Path(__file__).parents[3] / "images" / "catalogue.toml")
    assert "updraft/shell:1" in catalogue.images
