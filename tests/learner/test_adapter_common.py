"""What all adapters share: versions, whose checkpoint it is, and the agreement of several processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from updraft_learner.adapters import common
from updraft_learner.checkpoint import CheckpointError


@pytest.fixture(autouse=True)
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    monkeypatch.setenv("UPDRAFT_CHECKPOINT_SECONDS", "0")


def test_a_version_outside_of_what_is_supported_is_named() -> None:
    common.need("pytest", "7", "100")
    with pytest.raises(common.AdapterError, match=r"^pytest \d.* is installed; updraft_learner.adapters supports pyt"):
        common.need("pytest", "2.0", "3")
    with pytest.raises(common.AdapterError, match=r"^no-such-library is not installed; .* no-such-library >=1,<2$"):
        common.need("no-such-library", "1", "2")


def save(library: str, step: int) -> None:
    def write(folder: Path) -> None:
        (folder / "file").write_text(str(step))

    common.FolderCheckpoints(library).save(write, step, facts={"epochs": 3}, block=True)


def test_the_newest_checkpoint_comes_back_with_its_facts() -> None:
    assert common.FolderCheckpoints("one").latest() is None
    save("one", 5)
    save("one", 10)
    found = common.FolderCheckpoints("one").latest()
    assert found is not None
    assert (found.step, found.facts["epochs"], (found.path / "file").read_text()) == (10, 3, "10")


def test_the_step_that_a_program_continued_from_is_not_saved_again() -> None:
    save("one", 5)
    again = common.FolderCheckpoints("one")
    again.latest()

    def refuse(_: Path) -> None:
        raise AssertionError

    assert again.save(refuse, 5, block=True)


def test_a_checkpoint_of_another_library_is_refused() -> None:
    save("one", 5)
    with pytest.raises(CheckpointError, match="was written by one, and other cannot continue from it"):
        common.FolderCheckpoints("other").latest()


def test_only_numbers_are_metrics() -> None:
    assert common.numbers({"loss": "0.5", "name": "bert", "rows": [1], "epoch": 2}) == {"loss": 0.5, "epoch": 2.0}


def test_a_process_alone_decides_at_once() -> None:
    agreement = common.Agreement()
    assert agreement.ask(1, due=False, stop=False) == (False, False)
    assert agreement.ask(2, due=True, stop=False) == (True, False)
    assert agreement.ask(3, due=False, stop=True) == (True, True)
