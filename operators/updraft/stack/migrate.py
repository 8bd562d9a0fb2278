"""`python -m updraft.stack.migrate`: brings the ledger's tables up to date, before anything uses them."""

from __future__ import annotations

import os

from updraft.ledger import upgrade


def main() -> None:
    upgrade(os.environ["UPDRAFT_LEDGER_URL"])


if __name__ == "__main__":
    main()
