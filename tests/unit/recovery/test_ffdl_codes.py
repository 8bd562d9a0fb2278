"""Every row of the catalogue has FfDL's code, and every code a meaning."""

from __future__ import annotations

import pytest

from updraft.recovery.catalogue import CATALOGUE
from updraft.recovery.failure_class import FailureClass
from updraft.recovery.ffdl_codes import BY_CLASS, BY_LABEL, MEANINGS, ffdl_code

WITHOUT = {FailureClass.DONE, FailureClass.HALTED, FailureClass.CANCELLED, FailureClass.DEADLINE}


def test_each_failure_has_a_code_with_a_meaning() -> None:
    for row in CATALOGUE:
        code = ffdl_code(row.label, row.cause)
        assert (code is None) == (row.cause in WITHOUT), row.label
        assert code is None or code in MEANINGS
    assert {*BY_LABEL.values(), *BY_CLASS.values()} == MEANINGS.keys()


def test_each_label_is_one_of_the_catalogue() -> None:
    assert BY_LABEL.keys() <= {row.label for row in CATALOGUE}


@pytest.mark.parametrize(
    ("label", "cause", "code"),
    [
        ("program.exit", "program", "C201"),
        ("failures.1", "infrastructure", "S104"),
        ("image.missing", "configuration", "S103"),
        (None, None, None),
        ("done", "done", None),
        ("x", "unknown", None),
    ],
)
def test_the_code_of_an_attempt(label: str | None, cause: str | None, code: str | None) -> None:
    assert ffdl_code(label, cause) == code


def test_the_users_faults_are_never_the_platforms() -> None:
    """An image that is missing is FfDL's exception: it had one code for all pulls."""
    for row in CATALOGUE:
        code = ffdl_code(row.label, row.cause) or ""
        if row.cause is FailureClass.PROGRAM:
            assert code.startswith("C"), row.label
        if row.cause is FailureClass.INFRASTRUCTURE:
            assert code.startswith("S"), row.label
