"""Series by the routes and pages: their jobs, champions and events, and the roll-back."""

from __future__ import annotations

from typing import Any

import pytest
from unit.api.api_fakes import Platform

from updraft.controller.approval import waiting_key
from updraft.controller.idempotency import MODEL_VERSION, PROMOTION, Promotion, RegisteredModel
from updraft.ledger import NewSeriesEvent
from updraft.ledger.records import SeriesEventKind

API = "/updraft/api/v1/series"
PAGES = "/updraft/series"


def event(platform: Platform, kind: SeriesEventKind, job: str, version: str, over: str | None = None) -> None:
    platform.ledger.series.record(
        NewSeriesEvent(
            f"{kind} {job}",
            "default",
            "digits",
            kind,
            f"{kind} because",
            job_id=job,
            model="digits-model",
            version=version,
            evidence={"over": over},
        )
    )


@pytest.fixture
def promoted(platform: Platform) -> Platform:
    """Two champions, one after the other."""
    for number, over in (("1", None), ("2", "1")):
        platform.job(f"digits-{number}")
        event(platform, "promoted", f"digits-{number}", number, over)
    return platform


def test_series_are_listed_with_their_champions(promoted: Platform) -> None:
    promoted.job("words-1")
    found = promoted.client().get(API).json()["series"]
    assert [(s["name"], s["jobs"], s["model"], s["champion"]) for s in found] == [
        ("words", 1, None, None),
        ("digits", 2, "digits-model", "2"),
    ]


def test_a_firing_whose_job_registers_nothing_hides_no_champion(promoted: Platform) -> None:
    promoted.job("digits-3")
    promoted.ledger.series.record(
        NewSeriesEvent("fired 3", "default", "digits", "fired", "new data", job_id="digits-3")
    )
    found = promoted.client().get(f"{API}/digits").json()
    assert (found["model"], found["champion"], found["previous"]) == ("digits-model", "2", "1")


def test_the_data_of_a_job_says_what_was_new_in_it(promoted: Platform) -> None:
    promoted.job("digits-3")
    tree = {"source": "s3://datasets/digits/", "tree": "a" * 64, "mount": "."}
    promoted.ledger.jobs.set_inputs("digits-3", None, [tree])
    change = {"source": tree["source"], "added": 2, "changed": 1, "removed": 0, "same": 9}
    evidence = {"over": "2", "data": [change]}
    promoted.ledger.series.record(
        NewSeriesEvent("p 3", "default", "digits", "rejected", "worse", job_id="digits-3", evidence=evidence)
    )
    (run, *_) = promoted.client().get(f"{API}/digits").json()["runs"]
    assert run["data"] == [{"source": tree["source"], "tree": "a" * 64, "since": "2 new, 1 changed, 9 the same"}]
    assert "2 new, 1 changed" in promoted.client().get(f"{PAGES}/digits").text


def test_a_series_has_its_jobs_its_events_and_what_a_roll_back_restores(promoted: Platform) -> None:
    promoted.job("digits-3")
    found = promoted.client().get(f"{API}/digits").json()
    assert (found["champion"], found["previous"]) == ("2", "1")
    assert [(r["id"], r["version"], r["outcome"]) for r in found["runs"]] == [
        ("digits-3", None, None),
        ("digits-2", "2", "promoted"),
        ("digits-1", "1", "promoted"),
    ]
    assert [(e["kind"], e["version"], e["over"]) for e in found["events"]] == [
        ("promoted", "2", "1"),
        ("promoted", "1", None),
    ]


def test_an_unknown_series_says_which_was_meant(promoted: Platform) -> None:
    answer = promoted.client().get(f"{API}/digit")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == (
        "series: tenant 'default' has none called 'digit'; did you mean 'digits'?"
    )


def test_another_tenants_series_does_not_exist(two_tenants: Platform) -> None:
    two_tenants.job("digits-1", tenant="vision")
    client = two_tenants.client("bob:speech")
    assert client.get(API).json() == {"series": []}
    assert client.get(f"{API}/digits", params={"tenant": "vision"}).status_code == 404
    body = {"reason": "mine now"}
    assert client.post(f"{API}/digits/roll-back", params={"tenant": "vision"}, json=body).status_code == 404
    assert client.get(f"{PAGES}/digits", params={"tenant": "vision"}).status_code == 404


def test_a_roll_back_is_carried_out_by_the_caller(promoted: Platform) -> None:
    answer = promoted.client("eve").post(f"{API}/digits/roll-back", json={"reason": "worse on new customers"})
    assert answer.status_code == 200
    assert answer.json()["message"] == "Version 1 of digits-model is the champion, in place of version 2."
    newest = promoted.client().get(f"{API}/digits").json()["events"][0]
    assert (newest["kind"], newest["by"], newest["reason"]) == ("rolled back", "eve", "worse on new customers")
    assert promoted.client().get(f"{API}/digits").json()["previous"] is None


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"reason": "x", "version": "9"}, 409, "no version 9"),
        ({}, 422, "reason"),
        ({"reason": ""}, 422, "reason"),
        ({"reason": "x", "version": "latest"}, 422, "version"),
        ({"reason": "x", "versoin": "1"}, 422, "versoin"),
    ],
)
def test_a_wrong_roll_back_is_refused(promoted: Platform, body: dict[str, Any], status: int, words: str) -> None:
    answer = promoted.client().post(f"{API}/digits/roll-back", json=body)
    assert answer.status_code == status
    assert words in answer.text
    assert len(promoted.ledger.series.of_series("default", "digits")) == 2


def test_a_roll_back_needs_the_right_to_write_and_a_header_of_the_page(promoted: Platform) -> None:
    body = {"reason": "x"}
    assert promoted.client("reader").post(f"{API}/digits/roll-back", json=body).status_code == 403
    assert promoted.client(None).post(f"{API}/digits/roll-back", json=body).status_code == 401


def test_a_series_without_a_model_has_nothing_to_roll_back(platform: Platform) -> None:
    platform.job("digits-1")
    answer = platform.client().post(f"{API}/digits/roll-back", json={"reason": "x"})
    assert (answer.status_code, "registered no model yet" in answer.text) == (409, True)


def test_the_pages_show_the_series_and_escape_what_people_wrote(promoted: Platform) -> None:
    promoted.roll_back(
        tenant="default", model="digits-model", to="1", by="<eve>", reason="<script>alert(1)</script>", key="k"
    )
    listed = promoted.client().get(PAGES)
    assert "digits-model v1" in listed.text
    page = promoted.client().get(f"{PAGES}/digits")
    assert page.status_code == 200
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page.text
    assert "<script>alert" not in page.text
    assert "#/models/digits-model/versions/1" in page.text


def test_a_job_that_waits_for_approval_shows_where_a_person_answers(platform: Platform) -> None:
    job = platform.job("digits-1")
    ledger = platform.ledger
    ledger.idempotency.record(job.id, MODEL_VERSION, RegisteredModel("digits", "1", None))
    ledger.series.record(NewSeriesEvent(waiting_key(job.id), "default", "digits", "waiting", "waits", job_id=job.id))
    where = "http://airflow/dags/train_model/runs/digits-1/tasks/promote/required_actions"
    assert platform.client().get("/updraft/api/v1/jobs/digits-1").json()["approval"] == where
    assert where in platform.client().get("/updraft/jobs/digits-1").text
    ledger.idempotency.record(job.id, PROMOTION, Promotion(False, "rejected", "champion"))
    assert platform.client().get("/updraft/api/v1/jobs/digits-1").json()["approval"] is None


def test_schedules_are_listed_and_paused_in_the_callers_name(platform: Platform) -> None:
    platform.job("digits-1")
    platform.ledger.schedules.ensure("default", "digits", "job_digits", {"cron": "0 3 * * *"})
    client = platform.client("ada")
    (found,) = client.get("/updraft/api/v1/schedules").json()["schedules"]
    assert (found["series"], found["dag"], found["paused_by"]) == ("digits", "job_digits", None)
    assert client.post(f"{API}/digits/pause").json()["paused_by"] == "ada"
    assert client.get(f"{API}/digits").json()["schedule"]["paused_by"] == "ada"
    assert client.post(f"{API}/digits/unpause").json()["paused_by"] is None
    assert client.post(f"{API}/words/pause").status_code == 404
    assert platform.client("reader").post(f"{API}/digits/pause").status_code == 403
