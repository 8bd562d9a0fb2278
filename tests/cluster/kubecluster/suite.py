"""Run the cluster tests: a platform's jobs on one cluster, and beside them, on a second one, tests that end clusters.

The jobs mostly wait, for nodes that are given up and for images that do not come; the others mostly start clusters.
Called by `python tests/cluster test`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from kubecluster.layout import REPOSITORY, STATE_VARIABLE, Layout
from kubecluster.running import Say, down
from kubecluster.target import KUBECONFIG_VARIABLE, kept_running, why_not

TESTS = Path("tests") / "cluster"
ENDS = TESTS / "test_cluster_ends.py"
PYTEST = (sys.executable, "-m", "pytest", "-v", "--no-header", "-m", "cluster", "--durations=15")
INTERRUPTED = 130


def run(layout: Layout, arguments: list[str], say: Say) -> int:
    """Exit code of the tests; with arguments for pytest, on a named cluster or where none can be started, one run."""
    if arguments or os.environ.get(KUBECONFIG_VARIABLE) or why_not(layout):
        return subprocess.run([*PYTEST, str(TESTS), *arguments], cwd=REPOSITORY, check=False).returncode
    with kept_running(layout, say), TemporaryFile("w+") as said:
        beside = _start(layout.beside, [str(ENDS)], said)
        try:
            code = _start(layout, [str(TESTS), f"--ignore={ENDS}"], None).wait()
            say(f"waiting for {ENDS}, which ran beside these" if beside.poll() is None else f"{ENDS}, beside these:")
            code = beside.wait() or code
        except KeyboardInterrupt:  # which both of them have got as well, and clean up
            beside.wait()
            code = INTERRUPTED
        finally:
            if beside.poll() is None:
                beside.kill()
            said.seek(0)
            print(said.read(), flush=True)
            if layout.beside.root.exists():  # its run has not come to that
                down(layout.beside, say)
    return code


def _start(layout: Layout, arguments: list[str], output: IO[str] | None) -> subprocess.Popen[bytes]:
    environment = {**os.environ, STATE_VARIABLE: str(layout.root)}
    return subprocess.Popen(
        [*PYTEST, *arguments],
        cwd=REPOSITORY,
        env=environment,
        stdout=output,
        stderr=subprocess.STDOUT if output else None,
    )
