"""The description of a table's columns, and how far two of them are apart."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import ks_2samp

from updraft_data.drift import Profile, drift, profile

RNG = np.random.default_rng(4)


def table(shift: float = 0.0, german: float = 0.5, rows: int = 2_000) -> pd.DataFrame:
    rng = np.random.default_rng(5)
    return pd.DataFrame(
        {
            "age": rng.normal(40 + shift, 10, rows),
            "country": np.where(np.arange(rows) / rows < german, "de", "fr"),
            "day": pd.date_range("2026-01-01", periods=rows, freq="min"),
            "name": [f"name {n}" for n in range(rows)],
        }
    )


def test_the_same_data_has_no_drift() -> None:
    assert drift(profile(table()), profile(table())) == {"age": 0.0, "country": 0.0}


def test_a_shift_of_numbers_and_of_shares_is_seen() -> None:
    found = drift(profile(table()), profile(table(shift=10, german=0.8)))
    assert found["age"] == pytest.approx(ks_2samp(table()["age"], table(shift=10)["age"]).statistic, abs=0.02)
    assert found["country"] == pytest.approx(0.3)


@given(
    arrays(float, st.integers(2, 300), elements=st.integers(-20, 20).map(float)),
    arrays(float, st.integers(2, 300), elements=st.integers(-20, 20).map(float)),
)
@hypothesis_settings(deadline=None)
def test_the_distance_of_numbers_is_that_of_kolmogorov_and_smirnov(one: np.ndarray, other: np.ndarray) -> None:
    profiles = [profile(pd.DataFrame({"x": values})) for values in (one, other)]
    expected = ks_2samp(one, other).statistic
    assert drift(*profiles)["x"] == pytest.approx(expected, abs=0.021)  # of 101 quantiles on each side


@given(
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=50),
    st.lists(st.sampled_from("abcd"), min_size=1, max_size=50),
)
@hypothesis_settings(deadline=None)
def test_a_distance_is_symmetric_and_from_0_to_1(one: list[str], other: list[str]) -> None:
    old, new = (profile(pd.DataFrame({"x": values})) for values in (one, other))
    assert drift(old, new)["x"] == pytest.approx(drift(new, old)["x"])
    assert 0 <= drift(old, new)["x"] <= 1
    assert drift(old, old) == {"x": 0.0}


def test_empty_cells_and_columns_that_are_new_or_gone_count() -> None:
    old = profile(table())
    holes = table().assign(age=lambda t: t["age"].where(np.arange(len(t)) % 4 != 0))
    assert drift(old, profile(holes))["age"] == pytest.approx(0.25)
    assert drift(old, profile(table().drop(columns="age"))) == {"age": 1.0, "country": 0.0}
    assert drift(old, profile(table().assign(extra=1)), columns=["country"]) == {"country": 0.0}


def test_a_description_is_small_and_survives_json() -> None:
    wide = pd.DataFrame({f"c{n}": RNG.normal(size=500) for n in range(300)})
    wide["text"] = [f"t{n % 400}" for n in range(500)]
    found = profile(wide[[*wide.columns[-1:], *wide.columns[:-1]]])
    assert len(found.columns) == 100
    text = found.model_dump_json()
    assert len(text) < 300_000
    assert Profile.model_validate(json.loads(text)) == found


def test_columns_without_a_value_or_with_lists_are_left_out() -> None:
    odd = pd.DataFrame({"none": [None, None], "nan": [np.nan, np.nan], "list": [[1], [2]], "flag": [True, False]})
    assert {"none", "nan"}.isdisjoint(profile(odd).columns)
    assert "flag" in profile(odd).columns
