"""Kubernetes quantities, as the API server reads them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from updraft_learner.quantity import parse_quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", "2"),
        (4, "4"),
        ("1500m", "1.5"),
        ("0.5", "0.5"),
        (".5", "0.5"),
        ("5.", "5"),
        ("-1", "-1"),
        ("100n", "0.0000001"),
        ("512Ki", "524288"),
        ("1.5Gi", "1610612736"),
        ("3k", "3000"),
        ("5G", "5000000000"),
        ("1e3", "1000"),
        ("25E-1", "2.5"),
        ("2E", "2000000000000000000"),
    ],
)
def test_quantities_are_exact(text: str | int, value: str) -> None:
    assert parse_quantity(text) == Decimal(value)


@pytest.mark.parametrize(
    "text", ["", "16 Gigs", "1.5.2", "Gi", "1ki", "1GiB", "nan", "-", ".", " 2", "2\n", "1e999999999", "\u0662"]
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a Kubernetes quantity"):
        parse_quantity(text)
