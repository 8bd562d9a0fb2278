"""The Promela model of the shared-memory protocol, checked by spin: no deadlock, each gradient once, an end.

Needs spin and a C compiler (`apt-get install spin gcc`); skipped, loudly, without them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
MODEL = REPOSITORY / "docs" / "design" / "models" / "shared_memory.pml"
SOURCE = REPOSITORY / "images" / "learner" / "updraft_learner" / "shared" / "memory.py"
WORDS = ("pushed", "applied", "intent", "intent_update", "progress", "updates")
MISTAKES = ("SLOT", "PUSH", "INTENT", "RESTORE", "UNDO", "UPDATES")


@pytest.fixture(scope="module")
def _spin() -> None:
    if missing := [tool for tool in ("spin", "cc") if shutil.which(tool) is None]:
        message = f"THE SHARED-MEMORY PROTOCOL IS NOT PROVED HERE: there is no {' and no '.join(missing)}"
        warnings.warn(message, stacklevel=1)
        pytest.skip(message)


def errors(folder: Path, *flags: str) -> int:
    """Check the model; return how many errors spin found."""
    ends = "-DENDS" in flags
    for command in (
        ["spin", "-a", *flags, str(MODEL)],
        ["cc", "-O1", "-DCOLLAPSE", "-DMEMLIM=1500", "-DNFAIR=4" if ends else "-DSAFETY", "-o", "pan", "pan.c"],
    ):
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
    checker = ["./pan", "-m100000", *(("-a", "-f") if ends else ())]
    done = subprocess.run(checker, cwd=folder, capture_output=True, text=True, timeout=110, check=True)
    assert "max search depth too small" not in done.stdout
    assert "Search not completed" not in done.stdout or "errors: 1" in done.stdout, done.stdout[-2000:]
    found = re.search(r"errors: (\d+)", done.stdout)
    assert found is not None, done.stdout[-2000:]
    return int(found[1])


@pytest.mark.usefixtures("_spin")
@pytest.mark.parametrize("flags", ["", "-DSTALENESS=0", "-DSYNC -DCRASHES=4", "-DENDS -DSTEPS=2", "-DENDS -DSYNC"])
def test_nothing_is_lost_doubled_or_stuck(flags: str, tmp_path: Path) -> None:
    assert errors(tmp_path, *flags.split()) == 0


@pytest.mark.usefixtures("_spin")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_protocol_is_found(mistake: str, tmp_path: Path) -> None:
    assert errors(tmp_path, f"-DBROKEN_{mistake}") == 1


def test_the_model_has_the_words_of_the_code() -> None:
    model, source = MODEL.read_text(), SOURCE.read_text()
    for word in WORDS:
        assert re.search(rf"^byte {word}\b", model, re.MULTILINE), word
        assert f"def {word}(self" in source, word
    assert {each[7:] for each in re.findall(r"BROKEN_\w+", model)} >= set(MISTAKES)
