"""`python -m updraft_localnode.leftovers STATE_DIR`: kill the containers that a dead local node left running.

It prints how many it killed. Called by `updraft.stack` when it ends a stack.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from updraft_localnode.processes import kill_leftovers


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m updraft_localnode.leftovers",
        description="Kills the containers that a dead local node left, and prints how many still ran.",
    )
    parser.add_argument("state_dir", type=Path, metavar="STATE_DIR", help="--state-dir of that local node")
    print(kill_leftovers(parser.parse_args().state_dir))
    return 0


if __name__ == "__main__":
    sys.exit(main())
