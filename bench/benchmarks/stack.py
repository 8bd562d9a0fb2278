"""A platform of the benchmarks' own, with the environments that are prepared already. It is always ended.

Called by the figures. The stack of the checkout itself is never touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.machine import REPOSITORY
from updraft.client import Client, load_config
from updraft.stack.layout import Home

PREPARED = Path(os.environ.get("UPDRAFT_HOME") or REPOSITORY / ".updraft").absolute()
DAGS = REPOSITORY / "bench" / "dags"
UP_SECONDS, DOWN_SECONDS = 400, 180
POLL_SECONDS = 2.0  # asking costs the platform something
STACK = (sys.executable, "-m", "updraft.stack")


class BenchmarkError(Exception):
    """A figure could not be measured; says why."""


@dataclass(frozen=True)
class Stack:
    home: Home
    client: Client

    def completed(self, job_id: str, *, within_seconds: float) -> Any:
        """Return the job's detail after it has ended well. Raises BenchmarkError if it has not."""
        detail = self.client.wait(job_id, timeout_seconds=within_seconds, poll_seconds=POLL_SECONDS)
        if detail.state != "COMPLETED":
            raise BenchmarkError(f"{job_id} ended {detail.state}: {detail.reason}")
        return detail


def learner_python(image: str = "updraft-learner-pytorch-2-15") -> Path:
    """Return the Python of a learner's environment."""
    path = PREPARED / "images" / image / "bin" / "python"
    if not path.exists():
        raise BenchmarkError(f"{path} does not exist; build the environments: python -m updraft.stack prepare")
    return path


def fresh_home(name: str, *, environments: bool = True) -> Home:
    """Create an empty home; its environments are the prepared ones, unless it is to build its own."""
    home = Home(root=PREPARED / name, repository=REPOSITORY)
    down(home)
    shutil.rmtree(home.root, ignore_errors=True)
    home.root.mkdir(parents=True, mode=0o700)
    if environments:
        learner_python()
        for folder in (home.images, home.environments):
            folder.symlink_to(PREPARED / folder.name, target_is_directory=True)
    return home


def environment(home: Home) -> dict[str, str]:
    return {**os.environ, "UPDRAFT_HOME": str(home.root), "NO_COLOR": "1", "COLUMNS": "160"}


def up(home: Home, variables: Mapping[str, str] | None = None, gpus: int = 0) -> None:
    """Start the stack with two CPUs, whatever the machine has, so that all machines do the same, and so many imaginary
    GPUs."""
    done = subprocess.run(
        [*STACK, "up", "--cpus", "2", "--memory-mib", "12288", *(["--gpus", str(gpus)] if gpus else [])],
        env={**environment(home), **(variables or {})},
        capture_output=True,
        text=True,
        timeout=UP_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise BenchmarkError(f"the platform did not start:\n{done.stdout}{done.stderr}")


def down(home: Home) -> None:
    if home.root.exists():
        subprocess.run([*STACK, "down"], env=environment(home), capture_output=True, timeout=DOWN_SECONDS, check=False)


@contextmanager
def running_stack(
    name: str = "bench", *, dags: Path | None = None, variables: Mapping[str, str] | None = None, gpus: int = 0
) -> Iterator[Stack]:
    """Start a fresh platform, with the DAGs of another folder beside its own and more variables, if named; it is ended
    and removed afterwards."""
    home = fresh_home(name)
    if dags is not None:
        (home.root / "dags").symlink_to(dags, target_is_directory=True)
    try:
        up(home, variables, gpus)
        with Client(load_config({"UPDRAFT_HOME": str(home.root)})) as client:
            yield Stack(home, client)
    finally:
        down(home)
    shutil.rmtree(home.root, ignore_errors=True)  # after a failure it is kept, with its logs
