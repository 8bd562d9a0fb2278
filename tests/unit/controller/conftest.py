from __future__ import annotations

from unit.operators.conftest import dag, empty_ledger, environment, form_values, make_platform
from unit.triggers.conftest import outside, store

__all__ = ["dag", "empty_ledger", "environment", "form_values", "make_platform", "outside", "store"]
