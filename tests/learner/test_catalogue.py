"""The catalogue of images: what it may say, and where an image's environment lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from updraft_learner.catalogue import READY_MARKER, CatalogueError, Image, environment_path, is_ready, load_catalogue

TEXT = '[images."team/learner:1.0"]\npackage = "p"\nextras = ["x"]\n[images."team/shell:1"]\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "catalogue.toml"
    path.write_text(text)
    return path


def test_an_image_is_found_by_its_name_with_and_without_docker_io(tmp_path: Path) -> None:
    catalogue = load_catalogue(written(tmp_path, TEXT))
    assert dict(catalogue.images) == {"team/learner:1.0": Image("p", ("x",)), "team/shell:1": Image()}
    assert catalogue.get("docker.io/team/learner:1.0") == Image("p", ("x",))


def test_an_unknown_image_lists_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match=r"team/learner:1\.0, team/shell:1"):
        load_catalogue(written(tmp_path, TEXT)).get("team/learner:2.0")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("images = [", "is not valid TOML"),
        ("images = 1", "images must be a table"),
        ('images."x" = 1', r'images."x" must be a table'),
        ('[images."x"]\npackages = "p"\n', r'images."x" has no field packages; write package, extras and on_demand'),
        ('[images."x"]\npackage = 1\n', r'images."x": package must be a text'),
        ('[images."x"]\npackage = "p"\nextras = "y"\n', r'images."x": extras must be a list of texts'),
        ('[images."x"]\npackage = "p"\nextras = [1]\n', r'images."x": extras must be a list of texts'),
    ],
)
def test_a_wrong_catalogue_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(CatalogueError, match=said) as refused:
        load_catalogue(path)
    assert str(refused.value).startswith(f"catalogue: {path} ")


def test_an_absent_catalogue_is_named(tmp_path: Path) -> None:
    with pytest.raises(CatalogueError, match="cannot be read"):
        load_catalogue(tmp_path / "none.toml")


def test_the_environment_of_an_image_has_a_fixed_place_and_is_ready_when_marked(tmp_path: Path) -> None:
    path = environment_path(tmp_path, "team/learner-a:1.0")
    assert path == tmp_path / "team-learner-a-1-0"
    path.mkdir()
    assert not is_ready(tmp_path, "team/learner-a:1.0")
    (path / READY_MARKER).touch()
    assert is_ready(tmp_path, "team/learner-a:1.0")


def test_the_catalogue_of_the_repository_is_valid() -> None:
    catalogue = load_catalogue(Path(__file__).parents[2] / "images" / "catalogue.toml")
    assert catalogue.get("updraft/shell:1") == Image()
