"""Run the tests of the adapters, each with the real library in an environment like that of its framework's image.

    python scripts/framework_tests.py [--turn N] [NAME ...]

Without names, all frameworks whose images are built on demand; with `--turn N`, the one that is in turn. Their
environments come from uv.lock, below `envs` of the platform's home.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from updraft.exceptions import UpdraftError
from updraft.stack.environments import build_framework_tests, framework_tests
from updraft.stack.layout import Home, find_home

REPOSITORY = Path(__file__).parents[1]


def chosen(arguments: list[str], known: list[str]) -> list[str]:
    """Return the names of the frameworks that are tested. Raises SystemExit for an unknown one."""
    if arguments[:1] == ["--turn"]:
        return [known[int(arguments[1]) % len(known)]]
    if unknown := sorted(set(arguments) - set(known)):
        raise SystemExit(f"error: no framework {', '.join(unknown)}; known are {', '.join(known)}")
    return arguments or known


def run(home: Home, name: str) -> bool:
    python = build_framework_tests(home, name, lambda _line: None)
    command = [str(python), "-m", "pytest", "-q", "-m", f"framework(name='{name}')", "-p", "no:cacheprovider"]
    return subprocess.run([*command, "tests/learner"], cwd=REPOSITORY, check=False).returncode == 0


def main(arguments: list[str]) -> int:
    home = find_home()
    if os.environ.get("UPDRAFT_TORCH_INDEX"):
        print("SKIPPED the tests of frameworks: with UPDRAFT_TORCH_INDEX their environments are not built", flush=True)
        return 0
    failed = []
    for name in chosen(arguments, sorted(framework_tests(home))):
        print(f"\n=== {name} ===", flush=True)
        started = time.monotonic()
        ok = run(home, name)
        print(f"{name}: {'passed' if ok else 'FAILED'} in {time.monotonic() - started:.0f} s", flush=True)
        failed += [] if ok else [name]
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UpdraftError as exc:
        raise SystemExit(f"error: {exc}") from exc
