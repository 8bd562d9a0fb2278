"""What only tests ask of a ledger."""

from __future__ import annotations

from updraft.allocation import Grant
from updraft.ledger import Ledger, admission
from updraft.ledger.engine import reading


def grants(ledger: Ledger) -> list[Grant]:
    """Granted and not released, oldest first."""
    with reading(ledger._engine) as connection:
        return admission.live_grants(connection)
