"""What the sidecar writes for the program lands where it is meant to, whatever the program has put there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from updraft_learner import contract
from updraft_learner.pod import read_paths
from updraft_learner.record.files import NOT_UTF8, find_below, write_below


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "pod" / "io").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "pod"


def test_a_file_is_replaced_at_once(root: Path) -> None:
    for value in ([1], [1, 2]):
        write_below(root, "io/stored.json", value)
        assert json.loads((root / "io" / "stored.json").read_text()) == value
    assert os.listdir(root / "io") == ["stored.json"]


def test_a_name_that_is_not_utf8_is_found_by_a_name_that_can_be_stored(root: Path) -> None:
    (root / "io" / "plain").write_text("x")
    folder = os.fsencode(root / "io")
    os.mkdir(folder + b"/d\xff")
    for name in (b"/caf\xe9", b"/d\xff/a"):
        Path(os.fsdecode(folder + name)).write_text("y")
    os.symlink("nowhere", folder + b"/\xfe")
    found, refused = find_below(root, "io")
    assert {path: file.refused for path, file in found.items()} == {
        "plain": "",
        "caf\\xe9": NOT_UTF8,
        "d\\xff/a": NOT_UTF8,
    }
    assert os.fsencode(found["caf\\xe9"].source) == b"caf\xe9"
    assert refused == ["\\xfe"]


def test_a_folder_that_is_a_link_is_not_followed(root: Path, tmp_path: Path) -> None:
    (root / "io").rmdir()
    (root / "io").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with pytest.raises(OSError, match="io"):
        write_below(root, "io/stored.json", [1])
    assert os.listdir(tmp_path / "elsewhere") == []


@pytest.mark.parametrize("name", ["stored.json", ".stored.json.part"])
def test_a_file_that_is_a_link_is_replaced_and_what_it_names_is_not(root: Path, tmp_path: Path, name: str) -> None:
    secret = tmp_path / "elsewhere" / "secret"
    secret.write_text("kept")
    (root / "io" / name).symlink_to(secret)
    write_below(root, "io/stored.json", [1])
    assert secret.read_text() == "kept"
    assert not (root / "io" / "stored.json").is_symlink()


def test_the_sidecars_state_is_where_its_pod_says_and_else_below_the_root(tmp_path: Path) -> None:
    given = {contract.ROOT_ENV: str(tmp_path / "pod"), contract.PRIVATE_ENV: str(tmp_path / "own")}
    assert read_paths(given).private == tmp_path / "own"
    assert read_paths({contract.ROOT_ENV: str(tmp_path / "pod")}).private == tmp_path / "pod" / ".sidecar"
