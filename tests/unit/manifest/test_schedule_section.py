"""The section `schedule`: what goes together, and what is refused by name."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from updraft.manifest import ManifestError, parse

SMALL: dict[str, Any] = {"name": "digits", "framework": {"name": "shell"}, "command": "true"}
NEW = {"and_new": ["s3://datasets/digits/"]}


def test_conditions_are_read_and_written() -> None:
    raw = {**NEW, "cron": "@daily", "quiet": "10m", "secret": "bucket-read", "or_champion_older": "30d"}
    manifest = parse({**SMALL, "schedule": raw, "export": {"register_as": "digits"}})
    assert manifest.schedule is not None
    assert (manifest.schedule.quiet, manifest.schedule.or_champion_older) == (timedelta(minutes=10), timedelta(days=30))
    assert parse(manifest.canonical()) == manifest


@pytest.mark.parametrize(
    ("schedule", "path"),
    [
        ({}, "schedule.cron"),
        ({"timezone": "UTC"}, "schedule.cron"),
        ({"cron": "0 3 30 2 *"}, "schedule.cron"),
        ({"cron": "@daily", "quiet": "10m"}, "schedule.quiet"),
        ({"cron": "@daily", "marker": "_SUCCESS"}, "schedule.marker"),
        ({"cron": "@daily", "secret": "bucket-read"}, "schedule.secret"),
        ({**NEW, "marker": "done/_SUCCESS"}, "schedule.marker"),
        ({**NEW, "cron": "@daily", "at_most_every": "1h"}, "schedule.at_most_every"),
        ({"or_champion_older": "30d"}, "schedule.or_champion_older"),
        ({"and_new": ["digits/"]}, "schedule.and_new[0]"),
    ],
)
def test_what_cannot_be_is_named(schedule: dict[str, Any], path: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse({**SMALL, "schedule": schedule})
    assert [error.path for error in caught.value.fields] == [path]
