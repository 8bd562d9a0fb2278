"""`python -m updraft.stack.migrate`: bring the ledger's tables up to date before anything uses them.

On a deployed platform it runs before every part. So it also refuses to start with tenants that are not declared to
trust each other, with an Airflow without a log-in, and with an unknown seam in the settings."""

from __future__ import annotations

import os

from updraft.airflow_seams.switch import switched_off
from updraft.exceptions import UpdraftError
from updraft.ledger import upgrade
from updraft.settings import OPEN_VARIABLE, is_true, refuse_open_login
from updraft.tenants import tenants_at_start


def main() -> None:
    try:
        tenants_at_start(os.environ)
        switched_off(os.environ)
        refuse_open_login(is_true(os.environ.get(OPEN_VARIABLE, "")))
    except UpdraftError as exc:
        raise SystemExit(str(exc)) from None
    upgrade(os.environ["UPDRAFT_LEDGER_URL"])


if __name__ == "__main__":
    main()
