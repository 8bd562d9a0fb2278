"""Who may approve a model, as the settings say it."""

from __future__ import annotations

import pytest

from updraft.exceptions import UpdraftError
from updraft.settings import Settings

GIVEN = {
    "UPDRAFT_LEDGER_URL": "sqlite:///x",
    "UPDRAFT_S3_ENDPOINT": "http://s3",
    "UPDRAFT_MLFLOW_URI": "http://mlflow",
    "UPDRAFT_CREDENTIALS_FILE": "/dev/null",
}


def test_approvers_are_names_by_tenant() -> None:
    settings = Settings.from_environment({**GIVEN, "UPDRAFT_APPROVERS": '{"default": ["grace"]}'})
    assert settings.approvers == {"default": ("grace",)}
    assert Settings.from_environment(GIVEN).approval_hours == 168


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("UPDRAFT_APPROVERS", '{"visoin": ["grace"]}', "'visoin' is no tenant of UPDRAFT_TENANTS"),
        ("UPDRAFT_APPROVERS", '{"default": []}', "'default' has no users"),
        ("UPDRAFT_APPROVERS", "grace", "not JSON"),
        ("UPDRAFT_APPROVAL_HOURS", "0", "UPDRAFT_APPROVAL_HOURS"),
    ],
)
def test_wrong_values_are_named(name: str, value: str, words: str) -> None:
    with pytest.raises(UpdraftError, match=words):
        Settings.from_environment({**GIVEN, name: value})
