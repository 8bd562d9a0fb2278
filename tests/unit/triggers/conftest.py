from __future__ import annotations

from unit.operators.conftest import empty_ledger, environment

__all__ = ["empty_ledger", "environment"]
