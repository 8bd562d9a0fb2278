"""`make demo` with nothing built: seconds of each stage, environments included."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.demo_runs import FIRST_STEP, TOTAL, run_demo
from benchmarks.figures.demo import moment_table, stage_table
from benchmarks.machine import REPOSITORY
from benchmarks.options import Options
from benchmarks.results import Measured, Value
from benchmarks.stack import BenchmarkError, down, fresh_home
from updraft.stack import footprint
from updraft.stack.environments import find_uv
from updraft.stack.layout import Home

NAME, TITLE = "demo_cold", "The demo, cold"


def measure(options: Options) -> Measured:
    home = fresh_home("bench-cold", environments=False)
    if problem := footprint.missing_space([f.key for f in footprint.DEMO], home.root, REPOSITORY, os.environ):
        raise BenchmarkError(problem)
    extra = {"UV_CACHE_DIR": str(home.root / "uv-cache")} if options.empty_cache else {}
    try:
        platform_seconds = build_platform(home, extra)
        run = run_demo(home, extra)
        disk = {f.title: folder_megabytes(footprint.location(f.key, home.root, REPOSITORY)) for f in footprint.DEMO}
    finally:
        down(home)
        shutil.rmtree(home.root, ignore_errors=True)
    runs = {"cold": [run]}
    return Measured(
        settings={"package cache": "empty" if options.empty_cache else "as it was"},
        values=(
            Value(name="Environment of the platform, before the demo begins", unit="s", samples=(platform_seconds,)),
            Value(
                name="Cold start to the first training step",
                unit="s",
                samples=(platform_seconds + run.moments[FIRST_STEP],),
            ),
            Value(name="Cold demo, whole", unit="s", samples=(platform_seconds + run.moments[TOTAL],)),
            *(Value(name=f"Disk: {title}", unit="MB", samples=(size,)) for title, size in disk.items()),
        ),
        tables=(stage_table(runs), moment_table(runs)),
        notes=(
            "All environments are built in this run. With the package cache as it was, what it holds is linked and not "
            "downloaded; `--empty-cache` downloads all of it.",
            "The learner's environment is built while the stack starts; what is left of it then is waited for.",
        ),
    )


def build_platform(home: Home, extra: dict[str, str]) -> float:
    """Build the environment that `make demo` makes first, in a folder aside; return the seconds."""
    environment = {k: v for k, v in os.environ.items() if k != "VIRTUAL_ENV"}
    environment |= {"UV_PROJECT_ENVIRONMENT": str(home.root / "platform"), **extra}
    began = time.monotonic()
    done = subprocess.run(
        [find_uv(home), "sync", "--frozen", "--no-dev", "--extra", "platform", "--python", sys.executable],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BenchmarkError(f"the platform's environment was not built:\n{done.stderr[-2000:]}")
    return time.monotonic() - began


def folder_megabytes(folder: Path) -> float:
    """Sum of the files' sizes; what the package cache shares with them is counted."""
    return round(sum(f.lstat().st_size for f in folder.rglob("*") if f.is_file() and not f.is_symlink()) / 1e6)
