"""An environment is built once for all who wait, with its progress and its failure told."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from updraft_localnode.builds import Builds

IMAGE = "updraft/learner-sklearn:1"


def builder(folder: Path, script: str) -> str:
    path = folder / "builder"
    path.write_text(f"echo $1 >> {folder}/calls\n{script}\n")
    # Read by a shell, not executed: a file that was just written may still be open in a process that another thread
    # has forked, and then cannot be executed ("Text file busy").
    return f"sh {shlex.quote(str(path))}"


def until(builds: Builds, word: str) -> tuple[str, bool]:
    deadline = time.monotonic() + 20
    while word not in (answer := builds.ask(IMAGE))[0]:
        assert time.monotonic() < deadline, answer
        time.sleep(0.01)
    return answer


def test_who_waits_shares_one_build_and_hears_how_far_it_is(tmp_path: Path) -> None:
    builds = Builds(builder(tmp_path, f"echo '40 % of 120 MiB'; until [ -e {tmp_path}/go ]; do sleep 0.05; done"))
    assert builds.ask(IMAGE) == ("building environment learner-sklearn", True)
    assert until(builds, "%") == ("building environment learner-sklearn: 40 %", True)
    assert builds.ask(IMAGE)[1]
    assert (tmp_path / "calls").read_text() == f"{IMAGE}\n"
    (tmp_path / "go").touch()


def test_a_failure_is_told_with_its_reason_and_tried_again_later(tmp_path: Path) -> None:
    now = [0.0]
    builds = Builds(builder(tmp_path, "echo 'error: no space left' >&2; exit 1"), clock=lambda: now[0])
    assert until(builds, "failed") == ("building environment learner-sklearn failed: error: no space left", False)
    assert not builds.ask(IMAGE)[1]
    now[0] = 61.0
    assert builds.ask(IMAGE)[1]
    until(builds, "failed")
    assert (tmp_path / "calls").read_text() == f"{IMAGE}\n" * 2


def test_a_build_is_bounded(tmp_path: Path) -> None:
    builds = Builds(builder(tmp_path, "exec sleep 60"), limit_seconds=0.2)
    assert "not ready after 0.2 s" in until(builds, "failed")[0]


def test_a_builder_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert "cannot be run" in until(Builds(str(tmp_path / "absent")), "failed")[0]
