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

from updraft.api.pages import PageFacts, ShownMetric, curves, job_page, jobs_page, timeline
from updraft.api.pages.render import span
from updraft.ledger import AttemptClosure
from updraft.lifecycle import State, Verdict
from updraft.recovery.evidence import AttemptEvidence
from updraft.schemas import (
    Attempt,
    Checkpoint,
    JobDetail,
    LogLine,
    LogPage,
    Loss,
    MetricPoint,
    Metrics,
    Request,
    ResumePlan,
    Transition,
)
from updraft.storage.logbook import LogBook

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


def test_steps_are_told_of_trainings_alone() -> None:
    training = attempt(1, 0, 80, cause="done", first_step=10, last_step=600)
    evaluation = training.model_copy(update={"role": "evaluate", "first_step": 0, "last_step": 0})
    assert timeline.told(training).begun == ("steps 10 to 600",)
    assert timeline.told(evaluation).begun == ()


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
    assert span(seconds) == text


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.scripts: list[str | None] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        if tag == "script":
            self.scripts.append(dict(attrs).get("src"))
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
    points = tuple(MetricPoint(step=n, t=START.timestamp() + n, value=n) for n in range(3))
    metrics = Metrics(run_id="r", last={evil: 1.0, f"system/{evil}": None}, history={evil: points})
    logs = LogPage(role=evil, attempt=1, latest_attempt=1, learner=1, lines=(LogLine(n=1, t="", line=evil),), after=1)
    manifest = {"name": evil, "params": {evil: evil}}
    facts = PageFacts(attempts, checkpoints, [asked], metrics, logs, [evil], manifest)
    listed = jobs_page([found], at(20), {found.id: ShownMetric(evil, 1.0)}, evil)
    for page in (job_page(found, facts, "http://airflow", at(20)), listed):
        tags = Tags()
        tags.feed(page)
        assert tags.names.isdisjoint({"img", "iframe", "object", "form"})
        assert tags.scripts == ["/updraft/jobs/static/pages.js"]
        assert tags.handlers == []
        assert "&lt;script&gt;" in page


def test_the_page_of_a_job_tells_all_that_happened_and_how_to_act(platform: Platform) -> None:
    from unit.api.test_api_requests import recovered

    recovered(platform)
    platform.ledger.requests.make("digits-1", "halt", "eve")
    page = platform.client().get("/updraft/jobs/digits-1").text
    for words in (
        "relaunched after 5 s on another node from step-300",
        "is relaunched at once from an older checkpoint",
        "its checksum is wrong",
        "eve asked to halt; not answered yet",
        'data-verb="halt" data-url="/updraft/api/v1/jobs/digits-1/halt"',
        'data-verb="cancel" data-url="/updraft/api/v1/jobs/digits-1/cancel" data-confirm=',
        'href="http://airflow/dags/resume_job" target="_top"',
    ):
        assert words in page
    listed = platform.client().get("/updraft/jobs").text
    assert "2: infrastructure <code>checkpoint.damaged</code>" in listed
    platform.ledger.jobs.move("digits-1", State.HALTED, "halted by eve")
    halted = platform.client().get("/updraft/jobs/digits-1").text
    assert 'data-verb="resume"' in halted
    assert 'data-verb="halt"' not in halted


def test_the_page_shows_the_log_of_each_attempt_and_that_of_the_learner_that_failed(platform: Platform) -> None:
    platform.job(resources={"learners": 2})
    said = {(1, 1): "one waits", (1, 2): "one breaks", (2, 1): "two begins"}

    def write(attempt: int, learner: int) -> None:
        book = LogBook.open("default", "digits-1", "train", attempt, learner, store=platform.store)
        book.append([{"n": 1, "t": "2026-01-01T00:00:00Z", "line": said[attempt, learner]}])

    def shown(query: str = "") -> set[str]:
        page = platform.client().get(f"/updraft/jobs/digits-1{query}").text
        return {text for text in said.values() if text in page}

    platform.ledger.attempts.ensure("digits-1", "train", after=None)
    write(1, 1)
    assert shown() == {"one waits"}
    assert "attempt=1#log" not in platform.client().get("/updraft/jobs/digits-1").text
    write(1, 2)
    platform.ledger.attempts.close(
        "digits-1", "train", 1, AttemptClosure("halted", "it was halted", AttemptEvidence({1: None, 2: 3}))
    )
    assert shown() == {"one breaks"}
    platform.ledger.attempts.ensure("digits-1", "train", after=1)
    assert shown() == {"one breaks"}  # while the second has written nothing
    write(2, 1)
    assert shown() == {"two begins"}
    link = '<a href="?role=train&amp;attempt=1#log">attempt 1</a>'
    assert link in platform.client().get("/updraft/jobs/digits-1").text
    assert shown("?attempt=1") == {"one breaks"}


@pytest.mark.parametrize("role", ["evaluate", "export", "prepare"])
def test_a_failed_jobs_page_shows_the_log_of_what_failed(platform: Platform, role: str) -> None:
    platform.job()

    def run(role: str, outcome: str) -> None:
        number = platform.ledger.attempts.ensure("digits-1", role, after=None).number
        book = LogBook.open("default", "digits-1", role, number, 1, store=platform.store)
        book.append([{"n": 1, "t": "2026-01-01T00:00:00Z", "line": f"the words of {role}"}])
        platform.ledger.attempts.close(
            "digits-1", role, number, AttemptClosure(outcome, "because", AttemptEvidence({1: 1}))
        )

    def shown(query: str = "") -> str:
        page = platform.client().get(f"/updraft/jobs/digits-1{query}").text
        (found,) = re.findall("the words of [a-z]+", page)
        return str(found).removeprefix("the words of ")

    run("train", "done")
    run(role, "program")
    assert shown() == "train"
    platform.ledger.jobs.finish("digits-1", Verdict(State.FAILED, f"{role} failed"))
    assert shown() == role
    assert shown("?role=train&attempt=1") == shown("?attempt=1&role=train") == "train"
    assert ">train, attempt 1</a>" in platform.client().get("/updraft/jobs/digits-1").text


def test_an_ended_job_has_no_buttons_and_its_page_is_not_asked_for_again() -> None:
    ended = job([(0, "PENDING"), (10, "FAILED")], ended=True)
    page = job_page(ended, PageFacts(), "http://airflow", at(20))
    assert "<button" not in page
    assert '<body data-live="no">' in page
    assert '<body data-live="yes">' in job_page(RUNNING, PageFacts(), "http://airflow", at(20))


def test_only_the_pages_own_script_may_run(platform: Platform) -> None:
    client = platform.client()
    first, second = client.get("/updraft/jobs"), client.get("/updraft/jobs")
    nonces = [re.search(r'<script nonce="([^"]+)" src', found.text) for found in (first, second)]
    assert nonces[0]
    assert nonces[1]
    assert nonces[0][1] != nonces[1][1]
    policy = first.headers["content-security-policy"]
    assert f"script-src 'nonce-{nonces[0][1]}';" in policy
    assert "default-src 'none'" in policy
    script = client.get("/updraft/jobs/static/pages.js")
    assert (script.status_code, script.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert "innerHTML = fresh.innerHTML" in script.text


def test_the_root_of_the_plugin_leads_to_the_list(platform: Platform) -> None:
    found = platform.client().get("/updraft/")
    assert (found.status_code, found.headers["location"]) == (307, "/updraft/jobs")
    assert platform.client(user=None).get("/updraft/").status_code == 401


def test_the_list_shows_the_metric_that_decides(platform: Platform) -> None:
    for number, manifest in enumerate(({"export": {"promote_if": {"val_accuracy": "> 0.9"}}}, {}, {})):
        found = platform.job(f"digits-{number}", **manifest)
        platform.ledger.jobs.set_run(found.id, f"run{number}", "1")
    for run in ("run0", "run1"):
        platform.tracking.runs[run] = {
            "system/memory": [(0, 0.0, 7.0)], "loss": [(1, 0.0, 0.25)], "val_accuracy": [(1, 0.0, 0.75)],
        }  # fmt: skip
    page = platform.client().get("/updraft/jobs").text
    assert page.count('<span class="soft">val_accuracy</span> 0.75') == 1
    assert page.count('<span class="soft">loss</span> 0.25') == 1
    platform.tracking.down = True
    away = platform.client().get("/updraft/jobs")
    assert away.status_code == 200
    assert "does not answer" in away.text


def test_own_metrics_are_curves_over_attempts_and_the_platforms_are_folded(platform: Platform) -> None:
    points = tuple(MetricPoint(step=n, t=(START + timedelta(seconds=s)).timestamp(), value=1 / n)
                   for n, s in ((10, 5), (20, 15), (15, 65), (30, 75)))  # fmt: skip
    own = ("system/node_0/learner_memory_megabytes", "system/node_1/gpu_0_utilization_percentage")
    system = dict.fromkeys((*own, "system/node_0/system_memory_usage_megabytes"), 1.0)
    metrics = Metrics(run_id="r", last={"loss": 0.05, **system}, history={"loss": points})
    facts = PageFacts([attempt(1, 0, 20), attempt(2, 60)], metrics=metrics)
    page = job_page(RUNNING, facts, "http://airflow", at(100))
    assert page.count(f'stroke="{curves.COLOURS[0]}"') == page.count(f'stroke="{curves.COLOURS[1]}"') == 1
    learners, machine = page.index("2 metrics of the learners"), page.index("<summary>1 metric of the machine<")
    assert page.index("<svg") < learners < page.index(own[0]) < page.index(own[1]) < machine
    assert machine < page.index("system_memory_usage_megabytes")


def test_colours_of_several_attempts_are_told_and_metrics_beyond_those_drawn_are_counted() -> None:
    def points(*seconds: float) -> tuple[MetricPoint, ...]:
        return tuple(MetricPoint(step=n, t=at(s).timestamp(), value=n) for n, s in enumerate(seconds))

    attempts = [attempt(1, 0, 20), attempt(2, 60)]
    both = curves.draw({"loss": points(5, 65, 70), "acc": points(5, 6)}, attempts)
    for number in (1, 2):
        assert f'<i style="background:{curves.COLOURS[number - 1]}"></i>attempt {number}</span>' in both
    assert both.count('<p class="key">') == 1
    assert "key" not in curves.draw({"loss": points(5, 6)}, attempts)
    last = {f"m{n}": 1.0 for n in range(8)}
    metrics = Metrics(run_id="r", last=last, history={f"m{n}": points(5, 65) for n in range(6)})
    page = job_page(RUNNING, PageFacts(attempts, metrics=metrics), "http://airflow", at(100))
    assert "2 more metrics: <code>updraft metrics digits-1</code>" in page
    fewer = metrics.model_copy(update={"last": dict(list(last.items())[:6])})
    facts = PageFacts(attempts, metrics=fewer)
    assert "more metric" not in job_page(RUNNING, facts, "http://airflow", at(100))


def test_the_list_says_when_there_may_be_more() -> None:
    jobs = [job([(0, "PENDING")], id=f"digits-{n}") for n in range(3)]
    said = "The newest 3; <code>updraft list --limit 1000</code>"
    assert said in jobs_page(jobs, at(1), limit=3)
    assert "The newest" not in jobs_page(jobs[:2], at(1), limit=3)


def test_a_metric_with_one_point_or_no_number_is_no_curve() -> None:
    one = (MetricPoint(step=1, t=0, value=1.0), MetricPoint(step=2, t=0, value=None))
    assert curves.draw({"loss": one}, []) == ""
