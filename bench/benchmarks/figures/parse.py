"""How long Airflow's DAG processor needs for each DAG file: `bench/programs/parse_dags.py` does what it does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine import REPOSITORY
from benchmarks.options import Options
from benchmarks.results import Budget, Measured, Value
from benchmarks.stack import BenchmarkError
from updraft.bundle import dag_file

NAME, TITLE = "parse", "Parsing the DAG files"
BUDGET = Budget(at="most", value=0.05)
TENANTS = 20
PROGRAM = REPOSITORY / "bench" / "programs" / "parse_dags.py"


def measure(options: Options) -> Measured:
    rounds = options.pairs(20, 3)
    dags = REPOSITORY / "dags"
    ours, plain = parse(dags, rounds, "--as-stack"), parse(dags, rounds)
    with tempfile.TemporaryDirectory(prefix="updraft-bench-") as folder:
        for number in range(TENANTS):
            (Path(folder) / f"tenant-{number}.py").write_text(dag_file(f"tenant-{number}"))
        tenants = parse(Path(folder), rounds, "--as-stack")["seconds"].values()
    values = [
        Value(name=f"dags/{file}", unit="s", samples=tuple(seconds), budget=BUDGET)
        for file, seconds in ours["seconds"].items()
    ]
    of_tenants = tuple(max(samples) for samples in zip(*tenants, strict=True))
    values += [Value(name=f"The slowest file of {TENANTS} tenants", unit="s", samples=of_tenants, budget=BUDGET)]
    values += [
        Value(name=f"dags/{file}, CPU time of it", unit="s", samples=tuple(seconds))
        for file, seconds in ours["cpu_seconds"].items()
    ]
    values += [
        Value(name=f"dags/{file}, in a plain `airflow dag-processor`", unit="s", samples=tuple(seconds))
        for file, seconds in plain["seconds"].items()
    ]
    values += [Value(name="Imports of the processor, once", unit="s", samples=(ours["import_seconds"],))]
    return Measured(
        settings={"rounds": rounds},
        values=tuple(values),
        notes=(
            "Each sample is one fork of a process that has imported what the stack's DAG processor imports ahead: the "
            "file is imported, its DAGs are built and checked.",
            "A plain `airflow dag-processor` imports ahead only the `airflow.*` modules that a file names; what a file "
            "imports from `updraft` it pays at each parse.",
            "Files of tenants are those that `TenantDagBundle` writes.",
            *(f"dags/{file} defines {len(ids)} DAG(s): {', '.join(ids)}." for file, ids in ours["dags"].items()),
        ),
    )


def parse(dags: Path, rounds: int, *arguments: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="updraft-bench-") as folder:
        done = subprocess.run(
            [sys.executable, str(PROGRAM), str(dags), "--rounds", str(rounds), *arguments],
            cwd=folder,
            env=airflow_environment(Path(folder), dags),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    if done.returncode != 0:
        raise BenchmarkError(f"the DAG files were not parsed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def airflow_environment(home: Path, dags: Path) -> dict[str, str]:
    """Return the environment of an Airflow without a stack: an empty home, and no settings of this terminal."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "UPDRAFT_"))}
    return {
        **kept,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
        "PYTHONSAFEPATH": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
