"""Run the cluster tests: a platform's jobs on one cluster; beside them, on a second one, what the local node is held to
(tests/conformance), then tests that end clusters.

The jobs mostly wait, for nodes that are given up and for images that do not come; the others mostly wait for pods and
start clusters. Called by `python tests/cluster test`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from kubecluster.layout import REPOSITORY, STATE_VARIABLE, Layout
from kubecluster.running import Cluster, Say
from kubecluster.target import KUBECONFIG_VARIABLE, kept_running, why_not

TESTS = Path("tests") / "cluster"
ENDS = TESTS / "test_cluster_ends.py"
CONFORMANCE = Path("tests") / "conformance"
PYTEST = (sys.executable, "-m", "pytest", "-v", "--no-header", "--durations=15")
INTERRUPTED = 130
Process = subprocess.Popen[bytes]


def run(
    layout: Layout,
    arguments: list[str],
    say: Say,
    *,
    pytest: Sequence[str] = PYTEST,
    keep_running: Callable[[Layout, Say], AbstractContextManager[Cluster]] = kept_running,
    why_not: Callable[[Layout], str | None] = why_not,
) -> int:
    """Exit code of the tests; with arguments for pytest, on a named cluster or where none can be started, one run."""

    def begin(layout: Layout, arguments: list[str], output: IO[str] | None = None, **variables: str) -> Process:
        return _start([*pytest, *arguments], layout, output, variables)

    # A job in a shell's background ignores SIGINT, and so would its pytest.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    if os.environ.get(KUBECONFIG_VARIABLE):
        return _ended(begin(layout, [str(TESTS), str(CONFORMANCE), *arguments]))
    if arguments or why_not(layout):
        return _ended(begin(layout, [str(TESTS), *arguments]))
    second = layout.beside
    with (
        keep_running(layout, say) as cluster,
        keep_running(second, say),
        TemporaryFile("w+", errors="replace") as said,
    ):
        cluster.load_python_image(say)  # into the cache, where both find it
        on_second = {KUBECONFIG_VARIABLE: str(second.kubeconfig)}
        beside = begin(second, [str(CONFORMANCE), str(ENDS)], said, **on_second)
        code = _ended(begin(layout, [str(TESTS), f"--ignore={ENDS}"]), beside)
        said.seek(0)
        print(f"\n{CONFORMANCE} and {ENDS}, beside these:\n{said.read()}", flush=True)
    return code


def _start(command: Sequence[str], layout: Layout, output: IO[str] | None, variables: Mapping[str, str]) -> Process:
    # In a session of its own: Ctrl-C reaches only this process, which passes it on once. Twice would end the clean-up.
    return subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env={**os.environ, STATE_VARIABLE: str(layout.root), **variables},
        stdout=output,
        stderr=output and subprocess.STDOUT,
        start_new_session=True,
    )


def _ended(*processes: Process) -> int:
    """The first code that is not 0, when all have ended. Interrupted, they clean up first, whatever is pressed."""
    try:
        codes = [process.wait() for process in processes]
    except KeyboardInterrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        print("\nInterrupted: the tests clean up.", flush=True)
        for process in processes:
            process.send_signal(signal.SIGINT)  # nothing, where it has ended
        for process in processes:
            process.wait()
        return INTERRUPTED
    return next((code for code in codes if code), 0)
