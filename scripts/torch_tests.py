"""Run the tests marked `torch` in the PyTorch learner's environment, which `python -m updraft.stack prepare` builds.

With UPDRAFT_TORCH_INDEX that environment is not built, and this says so: the tests are skipped, not passed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def main() -> int:
    home = Path(os.environ.get("UPDRAFT_HOME") or REPOSITORY / ".updraft")
    python = home / "envs" / "torch-tests" / "bin" / "python"
    if not python.exists():
        print(f"SKIPPED the tests marked torch: {python} does not exist (UPDRAFT_TORCH_INDEX is set)")
        return 0
    command = [str(python), "-m", "pytest", "-q", "-m", "torch", "tests/learner", "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=REPOSITORY, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
