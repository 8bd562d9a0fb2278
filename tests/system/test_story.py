"""The story of `make story`, on a stack of its own, with the approval in a browser where there is one."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import pages
import pytest
import yaml
from approving import approve_in_browser
from killing import KILLED, TASK, parts_killed_in_turn
from story import JOB, REASON, Story
from system_helpers import REPOSITORY, Stack, running_stack

from updraft.schemas import JobDetail

PAGE = "docs/howto/story.md"
KILLED_PATIENCE_SECONDS = 900.0
pytestmark = [pytest.mark.system, pytest.mark.story, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def own_stack() -> Iterator[Stack]:
    with running_stack("story", {}) as stack:
        yield stack


def test_the_page_shows_the_manifest_that_is_played() -> None:
    played = yaml.safe_load((JOB / "manifest.yaml").read_text())
    shown = [yaml.safe_load(block.text) for block in pages.blocks(PAGE) if block.language == "yaml"]
    assert [set(each) for each in shown] == [{"schedule"}, {"export"}]
    assert shown[0]["schedule"] == played["schedule"]
    assert shown[1]["export"].items() <= played["export"].items()
    assert [block.text.split() for block in pages.blocks(PAGE) if block.is_commands] == [
        ["make", "up", "make", "story"]
    ]


def test_the_story(own_stack: Stack, tmp_path: Path) -> None:
    def approve(job: JobDetail) -> None:
        connection = own_stack.client.http.connection
        approve_in_browser(
            connection.airflow_url, connection.username, connection.password, job, REASON, tmp_path / "question.png"
        )

    browser = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
    if browser is None:
        warnings.warn("NO CHROMIUM: the approval is given by REST, not in a browser", stacklevel=1)
    story = Story(own_stack.client, own_stack.home, REPOSITORY, print, approve if browser else None)
    story.play()
    check_the_series(own_stack, story)


def test_the_story_while_parts_are_killed() -> None:
    """Each part of the platform, and processes of tasks, are killed again and again while the story plays."""
    with running_stack("story-killed", {}) as stack:
        story = Story(stack.client, stack.home, REPOSITORY, print, patience_seconds=KILLED_PATIENCE_SECONDS)
        with parts_killed_in_turn(stack.home, seed=18) as killed:
            story.play()
        assert set(killed) == {*KILLED, TASK}
        check_the_series(stack, story)


def check_the_series(stack: Stack, story: Story) -> None:
    found = stack.client.series_of("story")
    outcomes = [(run.id, run.version, run.outcome) for run in reversed(found.runs)]
    jobs = story.jobs
    assert outcomes[:5] == [
        (jobs["first"].id, "1", "promoted"),
        (jobs["better"].id, "2", "promoted"),
        (jobs["bad data"].id, None, None),
        (jobs["worse"].id, "3", "rejected"),
        (jobs["approved"].id, "4", "promoted"),
    ]
    assert outcomes[5][:2] == (jobs["no drift"].id, None)
    assert outcomes[6][:2] == (jobs["drift"].id, "5")
    assert len(outcomes) == 7
    kinds = [event.kind for event in reversed(found.events)]
    assert kinds.count("fired") == 7
    assert kinds.count("rolled back") == 1
    (approved,) = [event for event in found.events if event.version == "4" and event.kind == "promoted"]
    assert (approved.by, approved.over) == ("admin", "2")
    assert not (REPOSITORY / "jobs" / "story").exists()
