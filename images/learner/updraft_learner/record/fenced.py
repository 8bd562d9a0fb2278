"""The error of an attempt that is not the newest any more."""

from __future__ import annotations


class Fenced(Exception):
    """A newer attempt exists; nothing of this one may have an effect."""
