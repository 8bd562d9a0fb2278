"""How long Airflow's DAG processor needs for each DAG file.

The processor imports the `airflow.*` modules that a file names once, then parses each file in a fork of itself. The
same is done here: `bench/programs/parse_dags.py` imports, forks, and times Airflow's own parser in the child.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.machine import REPOSITORY
from benchmarks.options import Options
from benchmarks.results import Budget, Measured, Value
from benchmarks.stack import BenchmarkError

NAME, TITLE = "parse", "Parsing the DAG files"
BUDGET = Budget(at="most", value=0.05)
PROGRAM = REPOSITORY / "bench" / "programs" / "parse_dags.py"


def measure(options: Options) -> Measured:
    rounds = options.pairs(20, 3)
    dags = REPOSITORY / "dags"
    with tempfile.TemporaryDirectory(prefix="updraft-bench-") as folder:
        done = subprocess.run(
            [sys.executable, str(PROGRAM), "--rounds", str(rounds), str(dags)],
            cwd=folder,
            env=airflow_environment(Path(folder), dags),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    if done.returncode != 0:
        raise BenchmarkError(f"the DAG files were not parsed:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    values = [
        Value(name=f"dags/{file}", unit="s", samples=tuple(seconds), budget=BUDGET)
        for file, seconds in found["seconds"].items()
    ]
    values += [Value(name="Importing airflow.*, once per processor", unit="s", samples=(found["import_seconds"],))]
    values += [
        Value(name=f"dags/{file}, first time in a processor", unit="s", samples=(seconds,))
        for file, seconds in found["first_seconds"].items()
    ]
    return Measured(
        settings={"rounds": rounds},
        values=tuple(values),
        notes=(
            "Each sample is one fork of a process that has imported what the DAG processor imports ahead: the file is "
            "imported, its DAGs are built and checked, as `airflow dag-processor` does it.",
            *(f"dags/{file} defines {len(ids)} DAGs: {', '.join(ids)}." for file, ids in found["dags"].items()),
        ),
    )


def airflow_environment(home: Path, dags: Path) -> dict[str, str]:
    """Airflow without a stack: an empty home, and no settings of this terminal."""
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
