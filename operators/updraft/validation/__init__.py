"""Judges data by a Great Expectations suite before a learner starts.

Tables (CSV, Parquet, JSON, NPZ) are read as they are; of images and other files a table of path, size, digest and label
is made. A result belongs to the data's digest and the suite's: the caller asks the ledger first, and Great Expectations
is imported only when there is something new to judge.
"""

from __future__ import annotations

from updraft.validation.result import ValidationResult
from updraft.validation.run import validate, validate_stored
from updraft.validation.select import needed_paths
from updraft.validation.suite import suite_digest

__all__ = ["ValidationResult", "needed_paths", "suite_digest", "validate", "validate_stored"]
