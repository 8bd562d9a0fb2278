"""`python -m updraft.stack.migrate`: brings the ledger's tables up to date, before anything uses them."""

from __future__ import annotations

import importlib
import os


def main() -> None:
    # By name: the ledger is not a dependency of the stack, only of the process that runs here.
    importlib.import_module("updraft.ledger").upgrade(os.environ["UPDRAFT_LEDGER_URL"])


if __name__ == "__main__":
    main()
