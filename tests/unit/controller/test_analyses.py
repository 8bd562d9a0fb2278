"""What a pod's status says of the scaling of its program is read with care."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from updraft.controller.analyses import analysis_of
from updraft.ledger.records import Analysis


def test_what_is_right_is_kept() -> None:
    said = {"follows_batch": 1, "noise": 12.5, "gradient_bytes": 4e6, "timings": [[8, 0.1]], "exchange": [[1024, 0.01]]}
    assert analysis_of(said) == Analysis(((8.0, 0.1),), 4e6, 12.5, True, ((1024.0, 0.01),))
    assert analysis_of({}) == Analysis()


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, 0, True, "12", None, [], 1e30])
def test_what_cannot_be_is_left_out(value: object) -> None:
    assert analysis_of({"noise": value, "timings": [[8, value], [value, 0.1]], "exchange": value}) == Analysis()


NAMES = ("follows_batch", "noise", "gradient_bytes", "timings", "exchange")
scalars = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5)
values = st.recursive(scalars, lambda each: st.lists(each, max_size=20))


@given(st.dictionaries(st.sampled_from(NAMES), values))
def test_nothing_that_a_pod_says_breaks_it(said: dict[str, object]) -> None:
    found = analysis_of(json.loads(json.dumps(said)))
    numbers = [n for pair in (*found.timings, *found.exchange) for n in pair]
    assert all(0 < n < math.inf for n in numbers)
    assert len(found.timings) <= 16
