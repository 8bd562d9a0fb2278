"""How the sizes of elastic jobs changed, by the route and on the page, and the sizes on the page of a job."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest
from ledger_helpers import resize, run_elastic, train_resized
from unit.api.api_fakes import Platform

from updraft.ledger.records import Analysis

API = "/updraft/api/v1"
ELASTIC = {"elastic": {"min_learners": 1, "max_learners": 8, "min_batch": 32, "max_batch": 256}}
RULES = """
administrators: [root]
tenants:
  vision: {people: [ada]}
  speech: {people: [eve]}
"""


@pytest.fixture
def shared(platform: Platform, tmp_path: Path) -> Platform:
    """Vision's job has grown, and was measured; speech's has to shrink, and was not yet."""
    file = tmp_path / "tenants.yaml"
    file.write_text(RULES)
    changed: dict[str, Any] = {"tenants_file": file, "trusted_tenants": True}
    platform.settings = platform.settings.model_copy(update=changed)
    for name, tenant, learners in (("cats-1", "vision", 2), ("words-1", "speech", 4)):
        platform.job(name, tenant=tenant, **ELASTIC)
        run_elastic(platform.ledger, name, learners, step_seconds=0.2)
    resize(platform.ledger, {"cats-1": 4, "words-1": 1})
    train_resized(platform.ledger, "cats-1", 4, 0.25)
    return platform


def listed(platform: Platform, user: str) -> list[dict[str, Any]]:
    answer = platform.client(user).get(f"{API}/sizes")
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["rounds"]
    return found


def rows(page: str) -> list[list[str]]:
    """The text of each cell of the page's tables, row by row."""
    cells = [re.findall(r"<td>(.*?)</td>", row, re.DOTALL) for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)]
    return [[html.unescape(re.sub(r"<[^>]*>", "", cell)) for cell in row] for row in cells if row]


def test_an_administrator_sees_the_changes_of_all_tenants(shared: Platform) -> None:
    newest, *older = listed(shared, "root")
    cats, words = newest["changes"]
    assert (cats["job"], cats["tenant"], cats["before"], cats["before_batch"]) == ("cats-1", "vision", 2, 64)
    assert (cats["after"], cats["after_batch"], cats["reason"]) == (4, 128, "4 learners for cats-1")
    assert (cats["expected"], cats["gained"], cats["waits"]) == (1.5, pytest.approx(1.6), False)
    assert cats["pause_seconds"] == pytest.approx(12, abs=1)
    assert (words["job"], words["before"], words["after"]) == ("words-1", 4, 1)
    assert (words["gained"], words["pause_seconds"], words["waits"]) == (None, None, True)
    assert [[(each["job"], each["before"], each["expected"]) for each in found["changes"]] for found in older] == [
        [("words-1", 0, None)],
        [("cats-1", 0, None)],
    ]
    assert [found["round"] for found in (newest, *older)] == sorted({n["round"] for n in (newest, *older)})[::-1]


@pytest.mark.parametrize(("user", "job"), [("ada", "cats-1"), ("eve", "words-1")])
def test_a_user_sees_the_changes_of_the_own_tenant_only(shared: Platform, user: str, job: str) -> None:
    assert [[each["job"] for each in found["changes"]] for found in listed(shared, user)] == [[job], [job]]
    assert [row[0] for row in rows(shared.client(user).get("/updraft/sizes").text)] == [job, job]


def test_who_has_no_tenant_sees_no_change(shared: Platform) -> None:
    assert listed(shared, "stranger") == []
    assert "No elastic job has got another size yet." in shared.client("stranger").get("/updraft/sizes").text
    assert shared.client(None).get(f"{API}/sizes").status_code == 401


def test_the_page_shows_what_changed_why_and_what_it_brought(shared: Platform) -> None:
    page = shared.client("root").get("/updraft/sizes")
    assert page.status_code == 200
    cats, words, *starts = rows(page.text)
    told = ["cats-1", "2 learners, batch 64", "4 learners, batch 128", "4 learners for cats-1", "1.50", "1.60"]
    assert (cats[:-1], cats[-1]) == (told, "12 s")
    told = ["words-1", "4 learners, batch 128", "1 learner, batch 32", "1 learners for words-1", "1.50"]
    assert words == [*told, "being measured", ""]
    assert [row[1:] for row in starts] == [
        ["started", "4 learners, batch 128", "4 learners for words-1", "", "", ""],
        ["started", "2 learners, batch 64", "2 learners for cats-1", "", "", ""],
    ]
    assert 'href="/updraft/jobs/cats-1"' in page.text
    assert 'href="/updraft/sizes"' in shared.client("root").get("/updraft/queue").text


def test_a_change_of_a_job_that_gave_its_room_back_is_not_measured(shared: Platform) -> None:
    shared.ledger.queue.release("words-1")
    (_, words), *_ = (found["changes"] for found in listed(shared, "root"))
    assert (words["waits"], words["gained"]) == (False, None)
    assert rows(shared.client("eve").get("/updraft/sizes").text)[0][5:] == ["not measured", ""]


def test_a_reason_never_becomes_html(shared: Platform) -> None:
    train_resized(shared.ledger, "words-1", 1, 0.2)
    shared.ledger.queue.release("words-1")
    shared.job("<b>-1", tenant="speech", **ELASTIC)
    run_elastic(shared.ledger, "<b>-1", 2)
    page = shared.client("eve").get("/updraft/sizes").text
    assert "<b>" not in page
    assert rows(page)[0][:4] == ["<b>-1", "started", "2 learners, batch 64", "2 learners for <b>-1"]


def test_the_page_of_an_elastic_job_shows_its_sizes_and_what_is_known_of_them(shared: Platform) -> None:
    shared.ledger.queue.note_analysis("cats-1", 4, Analysis(noise=51_234.5))
    job = shared.client("ada").get(f"{API}/jobs/cats-1").json()
    assert (job["gradient_noise"], job["size_remarks"]) == (51_234.5, [])
    page = shared.client("ada").get("/updraft/jobs/cats-1").text
    assert "The gradient noise scale is 51,234.5 samples." in page
    sizes = page[page.index("<h2>Sizes</h2>") : page.index('data-part="metrics"')]
    found = rows(sizes)
    assert [row[0] for row in found] == ["1", "2", "3", "4 (now)", "5", "6", "7", "8"]
    assert [row[2] for row in found] == ["", "0.2 s", "", "0.25 s", "", "", "", ""]
    assert [(row[1], row[3]) for row in found] == [
        (str(size["batch"]), f"{size['speedup']:.2f}") for size in job["sizes"]
    ]
    assert 'href="/updraft/sizes"' in sizes


def test_the_page_of_an_elastic_job_shows_remarks(shared: Platform) -> None:
    ledger = shared.ledger
    shared.job("dogs-1", tenant="vision", **ELASTIC)
    run_elastic(ledger, "dogs-1", 2)
    page = html.unescape(shared.client("ada").get("/updraft/jobs/dogs-1").text)
    assert "No job of this series has reported the time of its steps yet" in page
    assert "gradient noise scale" not in page
    resize(ledger, {"dogs-1": 4})
    train_resized(ledger, "dogs-1", 4, 0.2)
    ledger.queue.release("dogs-1")
    shared.job("dogs-2", tenant="vision", **ELASTIC)
    run_elastic(ledger, "dogs-2", 1, step_seconds=0.05)
    job = shared.client("ada").get(f"{API}/jobs/dogs-2").json()
    (remark,) = job["size_remarks"]
    assert remark.startswith("It was not faster with more than 1 learner, so it gets no more.")
    assert remark in html.unescape(shared.client("ada").get("/updraft/jobs/dogs-2").text)


def test_a_job_of_fixed_size_shows_none(platform: Platform) -> None:
    platform.job()
    assert platform.client().get(f"{API}/jobs/digits-1").json()["sizes"] == []
    page = platform.client().get("/updraft/jobs/digits-1").text
    assert "<h2>Sizes</h2>" not in page
    assert "gradient noise scale" not in page
