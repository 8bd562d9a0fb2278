"""Fixtures of the system tests live in system_helpers.py, so that tests can import its helpers by name."""

from __future__ import annotations

from system_helpers import code, stack

__all__ = ["code", "stack"]
