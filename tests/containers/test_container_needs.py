"""What the container tools ask of a machine, and what they say when it is not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from containers import build, compose_program, leftovers, recipes
from containers import engine as engines
from containers.places import REPOSITORY, ContainersError, Places, find_places

from updraft_learner.catalogue import load_catalogue

BARE = {"PATH": ""}


def test_a_person_without_root_is_told_so() -> None:
    needs = engines.missing(BARE, system=lambda: "Linux", user=lambda: 1000)
    assert needs[0] == "root, to start an engine; or a running one in DOCKER_HOST"


def test_another_system_is_told_to_bring_an_engine() -> None:
    assert engines.missing(BARE, system=lambda: "Darwin") == [
        "Linux (this is Darwin); or name a running engine in DOCKER_HOST"
    ]


def test_an_engine_that_does_not_answer_is_none(tmp_path: Path) -> None:
    client = tmp_path / "docker"
    client.write_text("#!/bin/sh\nexit 1\n")
    client.chmod(0o755)
    assert engines.answering({"PATH": str(tmp_path), "DOCKER_HOST": "unix:///nowhere"}) is None
    client.write_text("#!/bin/sh\necho 27.0.0\n")
    found = engines.answering({"PATH": str(tmp_path), "DOCKER_HOST": "unix:///somewhere"})
    assert found is not None
    assert (found.host, found.own) == ("unix:///somewhere", False)


def test_an_unknown_image_is_told_those_that_exist() -> None:
    with pytest.raises(ContainersError, match=r"image 'sidecat' is not known; there are shell, sidecar,"):
        recipes.chosen(["sidecat"])


def test_what_an_image_starts_from_is_built_before_it() -> None:
    assert [r.short for r in recipes.chosen(["localnode"])] == ["sidecar", "data", "learner-sklearn", "localnode"]
    assert recipes.PYTORCH not in recipes.chosen([])


def test_each_image_of_a_framework_is_built_from_its_extras_of_the_catalogue() -> None:
    catalogue = load_catalogue(REPOSITORY / "images" / "catalogue.toml").images
    learners = {name: " ".join(image.extras) for name, image in catalogue.items() if "/learner-" in name}
    built = {r.name: dict(r.arguments)["EXTRA"] for r in recipes.RECIPES if "/learner-" in r.name}
    assert built == learners


def test_a_state_folder_that_is_too_deep_for_sockets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContainersError, match=r"UPDRAFT_CONTAINERS_STATE: .* is too long a path for sockets"):
        find_places({"UPDRAFT_CONTAINERS_STATE": f"/tmp/{'x' * 90}"})
    assert find_places({"XDG_CACHE_HOME": "/c"}) == Places(
        Path("/c/updraft/containers"), Path("/c/updraft/containers/engine")
    )


def test_authorities_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ContainersError, match=r"absent\.pem cannot be read"):
        build.extra_authorities({"UPDRAFT_EXTRA_CA": str(tmp_path / "absent.pem")})
    assert build.extra_authorities({}) is None


def test_a_stale_process_number_is_nobodys_engine(tmp_path: Path) -> None:
    places = Places(tmp_path, tmp_path)
    assert leftovers.daemon(places) is None
    places.pid_file.write_text(str(os.getpid()))
    assert leftovers.daemon(places) is None


def test_compose_is_the_version_that_the_module_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compose_program.version() == "v2.40.3"
    monkeypatch.setenv("PATH", "")
    assert compose_program.missing() == ["Go 1.24 or later, to build Docker Compose; or an engine with Compose 2.20"]


def test_a_full_disk_is_told_before_images_are_built(tmp_path: Path) -> None:
    recorded = tmp_path / "images.json"
    recorded.write_text('[{"name": "updraft/large:1", "own_bytes": 6100000000}]')
    places = Places(tmp_path, tmp_path)

    def check(names: list[str], free_bytes: int) -> None:
        build.check_room(places, names, recorded, free_bytes=lambda _: free_bytes)

    with pytest.raises(ContainersError, match=r"5\.0 GB free; 13\.7 GB are needed to build updraft/large:1, own:1\."):
        check(["updraft/large:1", "own:1"], free_bytes=5 * 10**9)
    check(["own:1"], free_bytes=5 * 10**9)
    check([], free_bytes=0)  # all are there
