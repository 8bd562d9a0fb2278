"""The commands of docs/howto/cluster.md do what they say, in their order, on a cluster of their own."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubecluster import running
from kubecluster.layout import REPOSITORY, STATE_VARIABLE, Layout, find_layout
from kubecluster.leftovers import leftovers
from kubecluster.running import Cluster

pytestmark = pytest.mark.cluster
PAGE = REPOSITORY / "docs" / "howto" / "cluster.md"
SECTION = "## A cluster on your machine, for tests"
OURS = ".updraft/cluster"


@pytest.fixture
def place(own_cluster: Cluster, tmp_path: Path) -> Iterator[Layout]:
    layout = find_layout({**os.environ, STATE_VARIABLE: str(tmp_path / "howto")})
    try:
        yield layout
    finally:
        running.down(layout, print)


def commands() -> list[str]:
    """Of the blocks without a language; what is marked `sh` needs what no test has, or takes long."""
    section = PAGE.read_text().partition(SECTION)[2].partition("\n## ")[0]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return [line.removeprefix("sudo ") for language, block in blocks if not language for line in block.splitlines()]


def test_the_page_has_commands() -> None:
    assert {"make cluster", "make cluster-down"} <= set(commands())
    assert not [line for line in commands() if "bench" in line or "make test" in line or "make images" in line]


def test_each_command_of_the_page_works(place: Layout) -> None:
    at_the_end = [line for line in commands() if line == "make cluster-down"]
    before = [line for line in commands() if line not in at_the_end]
    # The tests that the page runs are these very tests: here they are only found.
    script = [f"{line} --collect-only -q" if "pytest" in line else line for line in before]
    text = "\n".join(["set -e", *script, *at_the_end]).replace(f"$PWD/{OURS}", str(place.root))
    environment = {**os.environ, STATE_VARIABLE: str(place.root)}
    environment.pop("KUBECONFIG", None)
    done = subprocess.run(
        ["bash", "-c", text.replace(OURS, str(place.root))],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The cluster runs" in done.stdout
    assert re.search(r"^node-b +Ready", done.stdout, re.MULTILINE)
    assert leftovers(place) == []
