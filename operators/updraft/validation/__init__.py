"""Judges data by a Great Expectations suite before a learner starts.

    suite.py    what a suite is, its digest, and what Great Expectations would drop silently
    table.py    files of a data set become one pandas table
    judge.py    the suite's verdict on the table

Great Expectations and pandas take seconds to import and are imported only inside the calls; the operator asks the
ledger first whether this data was judged by this suite before.
"""

from __future__ import annotations

from updraft.validation.judge import ValidationResult, validate
from updraft.validation.suite import suite_digest

__all__ = ["ValidationResult", "suite_digest", "validate"]
