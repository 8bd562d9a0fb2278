"""The pages of jobs as pictures and tables: what is drawn where, and that nobody's text becomes HTML."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.api.api_fakes import Platform

from updraft.api import html, timeline
from updraft.lifecycle import State
from updraft.wire import Attempt, Checkpoint, JobDetail, Loss, Request, ResumePlan, Transition

START = datetime(2026, 1, 1, tzinfo=UTC)
EVIL = "<script>alert(1)</script>\"'&"


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def job(states: list[tuple[float, str]], **more: Any) -> JobDetail:
    previous = [None, *(name for _, name in states)]
    steps = tuple(
        Transition(at=at(s), state=name, reason="r", previous=was)
        for (s, name), was in zip(states, previous, strict=False)
    )
    fields: dict[str, Any] = {
        "id": "digits-1", "name": "digits", "tenant": "default", "state": states[-1][1], "reason": "r", "ended": False,
        "created_at": START, "updated_at": steps[-1].at, "dag_id": "train_model", "run_id": "digits-1",
        "transitions": steps, **more,
    }  # fmt: skip
    return JobDetail(**fields)


def attempt(number: int, begin: float, end: float | None = None, **more: Any) -> Attempt:
    ended = None if end is None else at(end)
    return Attempt(number=number, role="train", started_at=at(begin), ended_at=ended, **more)


def drawn(picture: str, css: str) -> list[tuple[float, float]]:
    """Left edge and width, in per cent, of what has that class."""
    pattern = rf'<span class="{css}" style="left:([0-9.]+)%;width:([0-9.]+)%'
    return [(float(left), float(width)) for left, width in re.findall(pattern, picture)]


RUNNING = job([(0, "PENDING"), (10, "PROCESSING"), (50, "RECOVERING"), (60, "HALTED"), (80, "PROCESSING")])


def test_bars_lie_where_their_time_was() -> None:
    first = attempt(1, 10, 50, cause="infrastructure", label="node.lost", reason="gone", done="relaunched at once")
    second = attempt(2, 80)
    picture = timeline.draw(RUNNING, [first, second], [], at(100))
    assert drawn(picture, "bar c-infrastructure") == [(10.0, 40.0)]
    assert drawn(picture, "bar c-runs") == [(80.0, 20.0)]
    assert drawn(picture, "gap") == [(50.0, 30.0)]
    assert drawn(picture, "band") == [(60.0, 20.0)] * 2
    assert drawn(picture, "stretch s-PROCESSING") == [(10.0, 40.0), (80.0, 20.0)]
    assert "<b>lost to infrastructure</b> <code>node.lost</code>: gone → <b>relaunched at once</b>" in picture


def test_repeated_steps_are_a_part_of_their_bar() -> None:
    plan = ResumePlan(checkpoint="step-30", step=30, repeats=10, reason="newest")
    found = timeline.draw(
        RUNNING, [attempt(2, 0, 80, cause="done", resume=plan, first_step=31, last_step=70)], [], at(100)
    )
    assert drawn(found, "again") == [(0.0, 20.0)]
    assert "10 steps repeated" in found
    assert "done in 80 s" in found


def test_checkpoints_are_marked_and_deleted_ones_that_would_cover_each_other_are_one() -> None:
    def checkpoint(step: int, seconds: float, **more: Any) -> Checkpoint:
        return Checkpoint(name=f"step-{step}", step=step, attempt=1, created_at=at(seconds), **more)

    gone = [checkpoint(n, 10 + n / 100, state="deleted", reason="old") for n in range(100)]
    others = [checkpoint(900, 40), checkpoint(901, 40.001, state="quarantined", reason=EVIL)]
    picture = timeline.draw(RUNNING, [attempt(1, 10)], [*gone, *others], at(100))
    assert picture.count('class="mark deleted" style') == 2
    assert picture.count('class="mark kept" style') == picture.count('class="mark quarantined" style') == 1
    assert "step-901, step 901: quarantined (&lt;script&gt;" in picture


def test_a_job_without_a_launch_has_no_picture_and_one_with_very_many_the_last() -> None:
    assert timeline.draw(RUNNING, [], [], at(100)) == ""
    many = [attempt(n, n / 10, n / 10 + 0.05, cause="preempted") for n in range(1, 101)]
    picture = timeline.draw(RUNNING, many, [], at(100))
    assert picture.count('<div class="who">') == timeline.SHOWN_ATTEMPTS
    assert "60 before them are not drawn" in picture


def test_an_ended_jobs_picture_ends_with_it() -> None:
    ended = job([(0, "PENDING"), (10, "PROCESSING"), (50, "FAILED")], ended=True)
    picture = timeline.draw(ended, [attempt(1, 10, 50, cause="program")], [], at(10_000))
    assert drawn(picture, "bar c-program") == [(20.0, 80.0)]
    assert "s-FAILED" not in picture


@given(seconds=st.floats(0, 1e8))
def test_ticks_are_few_and_inside(seconds: float) -> None:
    found = list(timeline._ticks(timeline.Scale(START, at(seconds))))
    assert 1 <= len(found) <= timeline.TICKS + 1
    assert all(START <= moment <= at(max(seconds, 1)) for moment, _ in found)
    assert len({label for _, label in found}) == len(found)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (99, "99 s"), (100, "1 min 40 s"), (6_000, "1 h 40 min"), (172_800, "2 d 0 h")],
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert timeline.span(seconds) == text


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def test_nobodys_text_becomes_html() -> None:
    """Every text of every model that a page shows, with something evil in it."""
    evil = f"{EVIL} onload=x"
    plan = ResumePlan(checkpoint=evil, step=1, repeats=1, reason=evil)
    attempts = [
        attempt(1, 0, 10, cause=evil, label=evil, reason=evil, done=evil, resume=plan, first_step=1, last_step=2)
    ]
    loss = Loss(attempt=1, role=evil, cause=evil, label=evil, reason=evil, text=evil)
    asked = Request(seq=1, kind=evil, by=evil, at=START, changes={evil: {evil: evil}}, answer=evil)
    checkpoints = [Checkpoint(name=evil, step=1, attempt=1, state=evil, reason=evil, metrics={evil: 1.0})]
    found = job([(0, evil), (5, "RECOVERING")], reason=evil, loss=loss, requests=(asked,), override=evil, attempt=1)
    facts = html.JobFacts(attempts, checkpoints, [asked], None, None, [evil])
    for page in (html.job_page(found, facts, "http://airflow", at(20)), html.jobs_page([found])):
        tags = Tags()
        tags.feed(page)
        assert tags.names.isdisjoint({"script", "img", "iframe"})
        assert tags.handlers == []
        assert "&lt;script&gt;" in page


def test_the_page_of_a_job_tells_all_that_happened_and_how_to_act(platform: Platform) -> None:
    from unit.api.test_api_requests import recovered

    recovered(platform)
    platform.ledger.request("digits-1", "halt", "eve")
    page = platform.client().get("/updraft/jobs/digits-1").text
    for words in (
        "relaunched after 5 s on another node from step-300",
        "is relaunched at once from an older checkpoint",
        "its checksum is wrong",
        "eve asked to halt; not answered yet",
        'href="http://airflow/dags/halt_job" target="_top"',
        "<tr id=resume class=soft>",
    ):
        assert words in page
    listed = platform.client().get("/updraft/jobs").text
    assert "2: infrastructure <code>checkpoint.damaged</code>" in listed
    platform.ledger.move("digits-1", State.HALTED, "halted by eve")
    assert "<tr id=halt class=soft>" in platform.client().get("/updraft/jobs/digits-1").text
