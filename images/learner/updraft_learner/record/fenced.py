"""Define the error of an attempt that is no longer the newest."""

from __future__ import annotations


class Fenced(Exception):
    """A newer attempt exists; this one must not change anything any more."""
