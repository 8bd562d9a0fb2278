"""Removes what this checkout has made: environments, caches and the platform's home. Standard library only.

    python3 scripts/clean.py ask      says what would be lost, with sizes, and asks; 1: no
    python3 scripts/clean.py remove

The home is UPDRAFT_HOME, or `.updraft`. Without a terminal, YES=1 has to be set. Called by `make clean`.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
CACHES = (".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".import_linter_cache")
LOST = {
    "s3": "data, checkpoints, results and models of all jobs",
    "mlflow": "runs and the model registry",
    "ledger.db": "the ledger: what every job was and how it ended",
}
MARKS = ("config.json", "secrets.json", "run", "images", "envs")


def home() -> Path:
    named = os.environ.get("UPDRAFT_HOME")
    return Path(named).expanduser().absolute() if named else REPOSITORY / ".updraft"


def targets() -> list[Path]:
    """Return the folders to remove. Raises SystemExit when UPDRAFT_HOME names a folder that is no home of the
    platform."""
    root = home()
    if root.is_dir() and any(root.iterdir()) and not any((root / name).exists() for name in MARKS):
        raise SystemExit(f"error: UPDRAFT_HOME: {root} is no home of Updraft; nothing was removed")
    folders = dict.fromkeys([REPOSITORY / ".venv", REPOSITORY / ".tools", root, REPOSITORY / ".updraft"])
    return [path for path in (*folders, *(REPOSITORY / name for name in CACHES)) if path.exists()]


def size_bytes(path: Path) -> int:
    """Return the size on disk; files that several names share count once."""
    seen: dict[tuple[int, int], int] = {}
    for root, _, files in os.walk(path):
        for name in files:
            try:
                facts = os.lstat(os.path.join(root, name))
            except OSError:
                continue
            seen[facts.st_dev, facts.st_ino] = facts.st_blocks * 512
    return sum(seen.values()) if path.is_dir() else path.stat().st_size


def shown(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def ask() -> int:
    found = targets()
    if not found:
        print("There is nothing to remove.")
        return 0
    print("This removes:")
    for path in found:
        print(f"  {shown(size_bytes(path)):>8}  {path}")
    for root in dict.fromkeys([home(), REPOSITORY / ".updraft"]):
        for name, what in LOST.items():
            if (root / name).exists():
                print(f"            {root / name}: {what}")
    if os.environ.get("YES") == "1":
        return 0
    if not sys.stdin.isatty():
        print("error: nothing was removed; `make clean YES=1` removes it without asking", file=sys.stderr)
        return 1
    try:
        answer = input("Remove all of it? [y/N] ")
    except (EOFError, KeyboardInterrupt):
        answer = ""
    if answer.strip().lower() in ("y", "yes"):
        return 0
    print("Nothing was removed.")
    return 1


def remove() -> int:
    for path in targets():
        shutil.rmtree(path, ignore_errors=True)
        if path.exists():
            print(f"error: {path} could not be removed entirely", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    if sys.argv[1:] not in (["ask"], ["remove"]):
        print(__doc__)
        sys.exit(2)
    sys.exit(ask() if sys.argv[1] == "ask" else remove())
