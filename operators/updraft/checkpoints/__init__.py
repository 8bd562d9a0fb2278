"""Which checkpoints are kept: a pure decision over what is known of them."""

from __future__ import annotations

from updraft.checkpoints.retention import Kept, retain

__all__ = ["Kept", "retain"]
