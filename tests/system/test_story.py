"""The story of `make story`, on a stack of its own, with the approval in a browser where there is one."""

from __future__ import annotations

import shutil
import signal
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pages
import pytest
import yaml
from approving import approve_in_browser
from faults.parts import kill, send, tasks, wait_serves
from story import JOB, REASON, Story
from system_helpers import REPOSITORY, Stack, running_stack

from updraft.schemas import JobDetail
from updraft.stack.layout import Home

PAGE = "docs/howto/story.md"
KILLED = ("airflow-triggerer", "airflow-scheduler", "airflow-api", "airflow-dag-processor", "mlflow", "s3")
TASK = "a task"
PAUSE_SECONDS = (5.0, 25.0)
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
    over, killed, problems = threading.Event(), Counter[str](), list[Exception]()
    with running_stack("story-killed", {}) as stack:
        thread = threading.Thread(target=kill_in_turn, args=(stack.home, over, killed, problems))
        thread.start()
        try:
            story = Story(stack.client, stack.home, REPOSITORY, print, patience_seconds=KILLED_PATIENCE_SECONDS)
            story.play()
        finally:
            over.set()
            thread.join()
            print("killed:", dict(killed))
        assert not problems, problems
        assert set(killed) == {*KILLED, TASK}
        check_the_series(stack, story)


def kill_in_turn(home_folder: Path, over: threading.Event, killed: Counter[str], problems: list[Exception]) -> None:
    """Send SIGKILL to one process after the other; the next one is killed some seconds after all serve again."""
    home, rng = Home(root=home_folder, repository=REPOSITORY), Random(18)
    try:
        while not over.is_set():
            for name in rng.sample([*KILLED, TASK], len(KILLED) + 1):
                if over.wait(rng.uniform(*PAUSE_SECONDS)):
                    return
                if name == TASK:
                    while not (running := tasks(home)):
                        if over.wait(0.05):
                            return
                    killed[name] += send(rng.choice(running), signal.SIGKILL)
                else:
                    at = kill(home, name)
                    killed[name] += 1
                    wait_serves(home, name, since=at)
    except Exception as exc:  # noqa: BLE001 - a thread's failure is the test's
        problems.append(exc)


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
