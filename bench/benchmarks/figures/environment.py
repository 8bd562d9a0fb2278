"""How long a job's packages take: built for the first time, beside `uv pip install` by hand, and once known."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from learner.package_index import package_mirror

from benchmarks.options import Options
from benchmarks.results import Budget, Comparison, Measured, Value
from benchmarks.stack import BenchmarkError, Stack, learner_python, running_stack

NAME, TITLE = "environment", "Packages of a job"
COLD = Budget(at="most", value=1.2)
WARM = Budget(at="most", value=1.0)
# Neither they nor what they need is in the image of scikit-learn (a few hundred kilobytes are), so that both sides
# download the same.
PACKAGES = ("duckdb", "networkx", "nltk", "plotly", "polars", "pymupdf", "ruff", "sympy")
QUICK = ("networkx",)
LINK_MBITS = 100  # of a company's or a home's connection; the mirrors of data centres are faster than a disk
JOB_SECONDS = 900


def measure(options: Options) -> Measured:
    packages = QUICK if options.quick else PACKAGES
    require_new(packages)
    cold: list[tuple[float, float]] = []
    linked: list[tuple[float, float]] = []
    warm: list[tuple[float, float]] = []
    for number in range(options.pairs(3, 1)):
        with package_mirror("127.0.0.1", LINK_MBITS * 1e6 / 8) as index, running_stack("bench-environment") as stack:
            installed_by_hand(packages, index)  # the mirror has fetched all files afterwards
            by_hand = installed_by_hand(packages, index)
            warm_up(stack)
            built = started(stack, f"linked-{number}", packages, index)
            linked.append((seconds_of_build(stack, built), by_hand))
        by_hand = installed_by_hand(packages)
        with running_stack("bench-environment") as stack:  # a new one each time: the last one's store knows the files
            warm_up(stack)
            built = started(stack, f"cold-{number}", packages)
            cold.append((seconds_of_build(stack, built), by_hand))
            for again in range(options.pairs(3, 1)):
                known = started(stack, f"warm-{number}-{again}", packages)
                plain = started(stack, f"plain-{number}-{again}", ())
                warm.append((seconds_to_start(stack, known), seconds_to_start(stack, plain)))
    return Measured(
        settings={"packages": " ".join(packages)},
        comparisons=(
            Comparison(
                name=f"Packages that nobody had before, over a link of {LINK_MBITS} Mbit/s", unit="s",
                a="built by a pod of the job and stored",
                b="`uv venv` and `uv pip install` by hand, without a cache", pairs=tuple(linked), budget=COLD,
            ),
            Comparison(
                name="The same from this machine's index, which is as fast as its disk", unit="s",
                a="built by a pod of the job and stored",
                b="`uv venv` and `uv pip install` by hand, without a cache", pairs=tuple(cold), budget=COLD,
            ),
            Comparison(
                name="From submission to the program's start, packages known", unit="s", a="with them", b="without any",
                pairs=tuple(warm),
            ),
        ),
        values=(
            Value(
                name="What known packages add to a job's start", unit="s",
                samples=tuple(a - b for a, b in warm), budget=WARM,
            ),
        ),
        notes=(
            "The build is the attempt of the role `build`: the pod's start, resolving, locking, downloading and "
            "installing, and storing the files in the object store. Each pair has a new platform without a cache.",
            "Known packages lie on the node, and the learner's pod links to them.",
            f"The link of {LINK_MBITS} Mbit/s is a mirror on the loopback address that sends no faster. Both sides of "
            "a pair ask the same index.",
        ),
    )  # fmt: skip


def require_new(packages: Sequence[str]) -> None:
    """Raise BenchmarkError for a package that the image has: only one of the two sides would download it."""
    program = (
        "import sys; from importlib.metadata import distributions as d; "
        "print(*{each.name.lower() for each in d()} & set(sys.argv[1:]))"
    )
    python = learner_python("updraft-learner-sklearn-1")
    found = subprocess.run([str(python), "-c", program, *packages], capture_output=True, text=True, check=True)
    if known := found.stdout.strip():
        raise BenchmarkError(f"the image of scikit-learn has {known} already; measure with another package")


def installed_by_hand(packages: Sequence[str], index: str | None = None) -> float:
    """Return the seconds of making a virtual environment with the packages, as a person would."""
    uv = shutil.which("uv")
    if uv is None:
        raise BenchmarkError("uv is not on the PATH")
    python = learner_python("updraft-learner-sklearn-1")
    with tempfile.TemporaryDirectory(prefix="updraft-bench-") as folder:
        target = Path(folder) / "venv"
        began = time.monotonic()
        commands = (
            [uv, "venv", "--quiet", "--no-cache", "--python", str(python), str(target)],
            [
                *(uv, "pip", "install", "--quiet", "--no-cache", "--python", str(target / "bin" / "python")),
                *(("--default-index", index) if index else ()),
                *packages,
            ],
        )
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, timeout=JOB_SECONDS, check=False)
            if done.returncode != 0:
                raise BenchmarkError(f"{' '.join(command[:3])} failed:\n{done.stderr[-2000:]}")
        return time.monotonic() - began


def started(stack: Stack, name: str, packages: Sequence[str], index: str | None = None) -> str:
    """Run a job to its end; return its id."""
    manifest: dict[str, Any] = {
        "name": name,
        "framework": {"name": "sklearn"},
        "command": "sleep 5",  # long enough for its start to be seen
        "resources": {"learners": 1, "cpus": 1, "memory": "1GiB"},
    }
    if packages:
        manifest["environment"] = {"requirements": list(packages), **({"index": {"url": index}} if index else {})}
    job_id = stack.client.submit(manifest).id
    stack.completed(job_id, within_seconds=JOB_SECONDS)
    return job_id


def warm_up(stack: Stack) -> None:
    """Run a job and a build, so that no image is built and no module is imported for the first time later."""
    started(stack, "first", ())
    started(stack, "first-build", ("six",))


def seconds_of_build(stack: Stack, job_id: str) -> float:
    (attempt,) = [each for each in stack.client.attempts(job_id).attempts if each.role == "build"]
    if attempt.ended_at is None:
        raise BenchmarkError(f"the build of {job_id} has not ended")
    return (attempt.ended_at - attempt.started_at).total_seconds()


def seconds_to_start(stack: Stack, job_id: str) -> float:
    """Return the seconds from the submission to the state PROCESSING."""
    transitions = stack.client.transitions(job_id).transitions
    begun = next(each.at for each in transitions if each.state == "PROCESSING")
    return float((begun - stack.client.job(job_id).created_at).total_seconds())
