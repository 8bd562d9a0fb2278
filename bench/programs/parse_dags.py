"""Parse the DAG files of a folder as Airflow's DAG processor does, and print the seconds as JSON.

    python parse_dags.py --rounds 20 [--as-stack] dags/

The processor imports, takes all of it out of the garbage collector's sight, imports the `airflow.*` modules that a file
names when it first meets the file, and parses each file in a fork of itself.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import time
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--as-stack", action="store_true", help="as the embedded stack starts the processor")
    options = parser.parse_args()
    files = sorted(options.folder.glob("*.py"))

    began = time.monotonic()
    # The processor itself runs on these.
    from airflow.dag_processing import processor  # noqa: F401
    from airflow.dag_processing.dagbag import BundleDagBag  # noqa: F401
    from airflow.utils.file import iter_airflow_imports

    if options.as_stack:
        from updraft.stack.airflow_dag_processor import prepare

        prepare()
    gc.freeze()
    for file in files:
        for name in iter_airflow_imports(str(file)):
            importlib.import_module(name)
    import_seconds = time.monotonic() - began

    seconds: dict[str, list[float]] = {file.name: [] for file in files}
    cpu_seconds: dict[str, list[float]] = {file.name: [] for file in files}
    dags: dict[str, list[str]] = {}
    for number in range(options.rounds + 1):
        for file in files:
            found = in_fork(options.folder, file)
            dags[file.name] = found["dags"]
            if number > 0:  # the first time, bytecode and the disk's cache may be cold
                seconds[file.name].append(found["seconds"])
                cpu_seconds[file.name].append(found["cpu_seconds"])
    answer = {"import_seconds": import_seconds, "seconds": seconds, "cpu_seconds": cpu_seconds, "dags": dags}
    print(json.dumps(answer))


def in_fork(folder: Path, file: Path) -> dict[str, Any]:
    """Parse in a child, so that nothing stays imported."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            with os.fdopen(writing, "w") as pipe:
                json.dump(parse(folder, file), pipe)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    if not said:
        raise SystemExit(f"{file} could not be parsed")
    answer: dict[str, Any] = json.loads(said)
    if answer["errors"]:
        raise SystemExit(f"{file}: {answer['errors']}")
    return answer


def parse(folder: Path, file: Path) -> dict[str, Any]:
    from airflow.dag_processing.dagbag import BundleDagBag

    began, cpu_began = time.monotonic(), time.process_time()
    bag = BundleDagBag(dag_folder=str(file), bundle_path=folder, bundle_name="dags-folder", load_op_links=False)
    span, cpu = time.monotonic() - began, time.process_time() - cpu_began
    return {"seconds": span, "cpu_seconds": cpu, "dags": sorted(bag.dag_ids), "errors": bag.import_errors}


if __name__ == "__main__":
    main()
