"""Run all tests: quick ones on every core, then those of the ledger on a PostgreSQL that they start, then those with
real processes, then PyTorch's in its own environment.

    python scripts/tests.py [pytest arguments, for all of them]

The environments are those that `python -m updraft.stack prepare` builds. With UPDRAFT_TORCH_INDEX the last one is not
built, and this says so: its tests are skipped, not passed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
QUICK = "not system and not cluster and not containers"
NO_TESTS = 5  # pytest's exit code when everything was deselected


LEDGER = "tests of the ledger on PostgreSQL"
ENVIRONMENT = {LEDGER: {"UPDRAFT_TEST_POSTGRES": "own"}}


def suites(home: Path) -> list[tuple[str, list[str]]]:
    """Name and command of each; a suite without a command is skipped, and its name says why."""
    pytest = [sys.executable, "-m", "pytest"]
    torch = home / "envs" / "torch-tests" / "bin" / "python"
    found = [
        ("quick tests", [*pytest, "-q", "-n", str(os.cpu_count() or 2), "--dist", "worksteal", "-m", QUICK]),
        (LEDGER, [*pytest, "-q", "-p", "no:cacheprovider", "tests/unit/ledger"]),
        (
            "tests with real processes",
            [
                *pytest,
                "-v",
                "--no-header",
                "--durations=25",
                "-m",
                "system and not pages and not public and not large and not story",
            ],
        ),
    ]
    if torch.exists():
        options = ["-q", "-m", "torch and not large", "-p", "no:cacheprovider", "tests/learner"]
        found.append(("tests in the PyTorch learner's environment", [str(torch), "-m", "pytest", *options]))
    else:
        found.append((f"SKIPPED the tests marked torch: there is no {torch}", []))
    return found


def main(arguments: list[str]) -> int:
    home = Path(os.environ.get("UPDRAFT_HOME") or REPOSITORY / ".updraft")
    summary, failed = [], False
    for name, command in suites(home):
        print(f"\n=== {name} ===", flush=True)
        if not command:
            summary.append(name)
            continue
        started = time.monotonic()
        code = subprocess.run(
            [*command, *arguments], cwd=REPOSITORY, env=os.environ | ENVIRONMENT.get(name, {}), check=False
        ).returncode
        ok = code == 0 or (code == NO_TESTS and bool(arguments))
        failed = failed or not ok
        summary.append(f"{name}: {'passed' if ok else f'FAILED ({code})'} in {time.monotonic() - started:.0f} s")
    print("\n" + "\n".join(summary), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
