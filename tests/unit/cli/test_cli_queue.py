"""The commands of docs/howto/queue.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pages
import pytest
from unit.cli.cli_fakes import Run
from unit.client.client_fakes import FakeAirflow, job_answer

PAGE = "docs/howto/queue.md"
NOW = "2026-01-01T12:00:00Z"


def entry(job: str, **more: Any) -> dict[str, Any]:
    fields = {"job": job, "name": job, "tenant": "default", "user": "ann", "state": "QUEUED", "priority": "normal"}
    return {**fields, "learners": 2, "each": "1 CPU", "requested_at": NOW, **more}


@pytest.fixture
def sent(airflow: FakeAirflow) -> list[Any]:
    """The bodies that were sent; the platform has one job that runs and two that wait."""
    bodies: list[Any] = []
    queue = {
        "running": [entry("runs-1", state="PROCESSING", granted_at=NOW)],
        "waiting": [
            entry("bert-1", place=1, priority="high", reason="1st in the queue", starts_at=NOW),
            entry("digits-1", place=2, reason="2nd in the queue; behind bert-1, whose priority is high"),
        ],
        "estimates": {"jobs": 12, "median_seconds": 40, "largest_seconds": 300},
    }

    def answer(request: httpx.Request) -> httpx.Response | None:
        path = request.url.path.removeprefix("/updraft/api/v1")
        if path == "/queue":
            return httpx.Response(200, json=queue)
        if path == "/queue/state":
            return httpx.Response(200, json={"nodes": []})
        if path in ("/jobs/digits-1", "/jobs/bert-1"):
            return httpx.Response(200, json=job_answer(path.rpartition("/")[2], "QUEUED"))
        if path == "/jobs/digits-1/priority":
            bodies.append(json.loads(request.content))
            return httpx.Response(200, json={"id": "digits-1", "message": "Its priority is high."})
        return None

    airflow.override = answer
    return bodies


def test_the_queue_is_listed(sent: list[Any], run: Run) -> None:
    *lines, last = run("queue").out.splitlines()
    assert last == "Estimates of the last 12 jobs were off by 40 s (median), and at most 5 min 00 s."
    assert [line.split()[0] for line in lines[-3:]] == ["runs-1", "1", "2"]
    assert "whose priority is high" in lines[-1]
    assert json.loads(run("queue", "--json").out)["waiting"][0]["job"] == "bert-1"
    assert json.loads(run("queue", "--state").out) == {"nodes": []}


def test_a_priority_is_sent(sent: list[Any], run: Run) -> None:
    assert run("prioritize", "digits-1", "high").out == "Its priority is high.\n"
    assert sent == [{"priority": "high"}]


def test_why_names_what_is_before_the_job_and_what_has_room(sent: list[Any], run: Run) -> None:
    out = run("why", "digits-1").out
    assert "2nd in the queue; behind bert-1, whose priority is high" in out
    assert "When it starts is unknown" in out
    assert "It probably starts now, if the others take as long" in run("why", "bert-1").out
    assert "Before it in the queue:\n  bert-1 (high): 2 x 1 CPU\n" in out
    assert "What has room now:\n  runs-1 (normal): 2 x 1 CPU\n" in out
    assert json.loads(run("why", "digits-1", "--json").out)["before"] == ["bert-1"]


def test_the_pages_state_is_decided_as_it_says(run: Run, tmp_path: Path) -> None:
    blocks = pages.blocks(PAGE)
    file = tmp_path / "state.json"
    file.write_text(next(block.text for block in blocks if block.language == "json"))
    shown = [block.text for block in blocks if block.language == "text"][-1]
    assert [line.split() for line in run("plan", str(file)).out.splitlines()] == [
        line.split() for line in shown.splitlines()
    ]
    assert json.loads(run("plan", str(file), "--json").out)["granted"] == ["c"]


STATE = {
    "nodes": [{"name": "n", "cpus": 8, "memory_mib": 8192, "gpus": 2}],
    "running": [
        {"job": name, "learners": 1, "cpus": 1, "memory_mib": 1, "gpus": 1, "tenant": "speech", "requested_at": NOW,
         "granted_at": NOW}
        for name in ("x", "y")
    ],
    "queue": [
        {"job": name, "learners": 1, "cpus": 1, "memory_mib": 1, "gpus": 1, "tenant": tenant, "requested_at": NOW}
        for name, tenant in (("a", "vision"), ("b", "speech"), ("c", "speech"))
    ] + [{"job": "d", "learners": 9, "cpus": 1, "memory_mib": 1, "gpus": 1, "tenant": "vision", "requested_at": NOW}],
    "tenants": {"vision": {"quota": {"gpu": 1}}, "speech": {"quota": {"gpu": 1}, "borrow": {"gpu": 1}}},
    "least_run_minutes": 0,
    "now": "2026-01-01T13:00:00Z",
}  # fmt: skip


@pytest.mark.parametrize(
    ("job", "decision", "rule"),
    [
        ("a", "waits", "There is no room for it"),
        ("b", "waits", "Its tenant may use no more devices of this kind"),
        ("c", "waits", "An earlier job of its tenant waits for the tenant's quota"),
        ("d", "never starts", "No job that ends would make room for it"),
        ("x", "gives its room back", "Its tenant has borrowed"),
        ("y", "runs", "Nothing asks for its room"),
    ],
)
def test_a_decision_is_explained(run: Run, tmp_path: Path, job: str, decision: str, rule: str) -> None:
    file = tmp_path / "state.json"
    file.write_text(json.dumps(STATE))
    told = run("plan", str(file), "--explain", job).out
    assert told.startswith(f"{job} {decision}")
    assert rule in " ".join(told.split())
    found = json.loads(run("plan", str(file), "--explain", job, "--json").out)
    assert (found["decision"], found["claims"]) == (decision, {"vision": 0.0, "speech": 1.0})
    assert next(line.split()[1:5] for line in run("plan", str(file)).out.splitlines() if line.startswith("x ")) == [
        "gives",
        "its",
        "room",
        "back",
    ]
    assert "is neither in the queue nor running" in run("plan", str(file), "--explain", "z").err


@pytest.mark.parametrize(
    ("running", "job", "told", "rule"),
    [
        ([{"job": "runs", "cpus": 2}], "small", "small starts: passes head", "It fits into what is free"),
        ([{"job": "small", "cpus": 1, "behind": "head"}], "small", "small gives its room back", "It has passed"),
    ],
)
def test_backfill_is_explained(
    run: Run, tmp_path: Path, running: list[dict[str, Any]], job: str, told: str, rule: str
) -> None:
    usual = {"learners": 1, "memory_mib": 1, "requested_at": NOW}
    waiting = [{"job": "head", "cpus": 4}] + [{"job": "small", "cpus": 1}] * (running[0]["job"] == "runs")
    state = {
        "nodes": [{"name": "n", "cpus": 4, "memory_mib": 8192}],
        "running": [{**usual, "granted_at": NOW, **each} for each in running],
        "queue": [{**usual, **each} for each in waiting],
        "now": "2026-01-01T13:00:00Z",
    }
    file = tmp_path / "state.json"
    file.write_text(json.dumps(state))
    said = " ".join(run("plan", str(file), "--explain", job).out.split())
    assert said.startswith(told)
    assert rule in said
    if running[0]["job"] == "runs":
        assert "small starts passes head" in " ".join(run("plan", str(file)).out.split())


def test_a_wrong_state_is_refused_with_the_fields(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    file.write_text('{"nodes": [{"name": "a", "cpus": -1, "memory_mib": 1}], "queues": []}')
    ran = run("plan", str(file))
    assert ran.code != 0
    assert "nodes.0.cpus: Input should be greater than or equal to 0" in ran.err
    assert "queues: Extra inputs are not permitted" in ran.err
    file.write_text("{")
    assert "not a state of the queue" in run("plan", str(file)).err


def test_plan_says_which_elastic_jobs_are_resized(run: Run, tmp_path: Path) -> None:
    sizes = [{"learners": n, "batch": 64 * n, "goodput": n} for n in (1, 2, 4)]
    job = {"job": "stretches", "learners": 1, "cpus": 1, "memory_mib": 64, "gpus": 1, "requested_at": NOW}
    job |= {"granted_at": NOW, "elastic": {"sizes": sizes, "sized_at": "2020-01-01T00:00:00Z"}}
    node = {"name": "n1", "cpus": 8, "memory_mib": 1024, "gpus": 4}
    state = tmp_path / "state.json"
    state.write_text(json.dumps({"nodes": [node], "running": [job], "now": "2030-01-01T00:00:00Z"}))
    told = run("plan", str(state)).out
    assert "stretches" in told
    assert "is resized" in told
    assert json.loads(run("plan", str(state), "--json").out)["resized"][0]["learners"] == 4
    assert "resized from 1 to 4 learners" in run("plan", str(state), "--explain", "stretches").out
