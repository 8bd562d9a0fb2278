"""A program of bench/programs in Airflow's environment that is asked by lines and answers by lines of JSON.

Called by the figures that need what only Airflow's own process can make.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

from kubecluster.running import Cluster

from benchmarks.machine import REPOSITORY
from benchmarks.stack import BenchmarkError
from benchmarks.testcluster import PartHome
from updraft.stack.parts import CONNECTION

AIRFLOW_PART = "airflow-triggerer"  # whose environment it gets


class Feeder:
    """From `with` to its end. It acts on the cluster as administrator, so that the platform's own requests can be told
    from its."""

    def __init__(self, program: str, home: PartHome, cluster: Cluster, extra: Mapping[str, str]) -> None:
        part = home.parts[AIRFLOW_PART]
        admin = {"conn_type": "kubernetes", "extra": {"kube_config_path": str(cluster.layout.kubeconfig)}}
        self._environment = {**part.environment, **extra, CONNECTION: json.dumps(admin)}
        self._program = REPOSITORY / "bench" / "programs" / program
        self._folder, self._log = part.cwd, home.home.log_of("feeder")

    def __enter__(self) -> Feeder:
        # PYTHONSAFEPATH would keep the programs from each other.
        environment = {name: value for name, value in self._environment.items() if name != "PYTHONSAFEPATH"}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(self._program)],
                env=environment,
                cwd=self._folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._answer()
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait()

    def ask(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(ValueError):  # what libraries print
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise BenchmarkError(f"{self._program.name} has ended; see {self._log}")
