"""Tenants by the route and on the page: what they may use, what they use, and who sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from unit.api.api_fakes import MANIFEST, Platform

from updraft.allocation import Capacity, GangRequest, Node, Plan, Reclaim, plan_admissions
from updraft.lifecycle import State
from updraft.manifest import parse
from updraft.settings import Settings

API = "/updraft/api/v1"
TWO = Capacity((Node("local", 8, 8192, 2),))
RULES = """
administrators: [root]
tenants:
  vision: {quota: {gpu: 8}, weight: 2, people: [ada]}
  speech: {quota: {gpu: 1}, priorities: [low, normal], people: [eve]}
"""


@pytest.fixture
def shared(platform: Platform, tmp_path: Path) -> Platform:
    """Speech has both GPUs, one of them borrowed; a job of vision waits."""
    file = tmp_path / "tenants.yaml"
    file.write_text(RULES)
    changed: dict[str, Any] = {"tenants_file": file, "trusted_tenants": True}
    platform.settings = platform.settings.model_copy(update=changed)
    for name, tenant in (("one-1", "speech"), ("two-1", "speech"), ("three-1", "vision")):
        job = platform.job(name, **{"tenant": tenant, **parse({**MANIFEST, "tenant": tenant}).canonical()})
        platform.ledger.jobs.move(name, State.QUEUED, "waits")
        platform.ledger.queue.enqueue(name, GangRequest(name, 1, 1, 0, 1, None, job.submitted_at))
        platform.ledger.queue.plan(lambda queue, granted: plan_admissions(queue, granted, TWO))
    allocatable = {"cpu": "8", "memory": "8Gi", "nvidia.com/gpu": "2"}
    status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
    platform.cluster.listed = [{"metadata": {"name": "local"}, "spec": {}, "status": status}]
    return platform


def listed(platform: Platform, user: str) -> dict[str, dict[str, Any]]:
    answer = platform.client(user).get(f"{API}/tenants")
    assert answer.status_code == 200, answer.text
    return {each["name"]: each for each in answer.json()["tenants"]}


def test_a_tenants_people_see_what_it_may_use_and_uses(shared: Platform) -> None:
    found = listed(shared, "root")
    assert set(found) == {"vision", "speech"}
    speech = found["speech"]
    assert (speech["used"], speech["borrowed"], speech["running"], speech["waiting"]) == ({"gpu": 2}, {"gpu": 1}, 2, 0)
    assert (speech["share"], speech["priorities"]) == (1.0, ["low", "normal"])
    assert (found["vision"]["waiting"], found["vision"]["weight"], found["vision"]["claim"]) == (1, 2.0, 0.0)
    assert found["vision"]["notes"] == ["its quota of 8 GPUs is more than the cluster's 2"]
    assert set(listed(shared, "eve")) == {"speech"}
    assert listed(shared, "stranger") == {}


def test_the_page_shows_the_same(shared: Platform) -> None:
    page = shared.client("root").get("/updraft/tenants")
    assert page.status_code == 200
    assert "2 of 1, 1 of them borrowed" in page.text
    assert "its quota of 8 GPUs is more than the cluster&#39;s 2" in page.text
    assert page.text.count('<path d="M') == 2
    assert "vision" not in shared.client("eve").get("/updraft/tenants").text


def test_a_cluster_that_does_not_answer_leaves_shares_out(shared: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    shared.cluster.listed = []
    assert listed(shared, "eve")["speech"]["used"] == {"gpu": 2}


def test_jobs_of_other_tenants_are_not_there(shared: Platform) -> None:
    client = shared.client("eve")
    assert client.get(f"{API}/jobs/three-1").status_code == 404
    assert {each["tenant"] for each in client.get(f"{API}/queue").json()["running"]} == {"speech"}
    state = client.get(f"{API}/queue/state").text
    assert "three-1" not in state
    assert "of another tenant" in state
    assert "ada" not in state


def test_a_priority_that_the_tenant_may_not_use_is_refused(shared: Platform) -> None:
    answer = shared.client("eve").post(f"{API}/jobs/one-1/priority", json={"priority": "high"})
    assert answer.status_code == 422, answer.text
    assert "not allowed to tenant speech" in answer.text
    changes = {"changes": {"priority": "high"}}
    shared.client("eve").post(f"{API}/jobs/one-1/halt")
    resumed = shared.client("eve").post(f"{API}/jobs/one-1/resume", json=changes)
    assert (resumed.status_code, "not allowed to tenant speech" in resumed.text) == (422, True), resumed.text
    assert shared.client("ada").post(f"{API}/jobs/three-1/priority", json={"priority": "high"}).status_code == 200


def test_a_job_that_gives_its_room_back_says_why(shared: Platform) -> None:
    shared.ledger.queue.plan(lambda *_: Plan(reclaimed=(Reclaim("two-1", "three-1", "tenant vision takes it back"),)))
    rows = shared.client("eve").get(f"{API}/queue").json()["running"]
    assert {each["job"]: each["reason"] for each in rows} == {"one-1": "", "two-1": "tenant vision takes it back"}
    assert "tenant vision takes it back" in shared.client("eve").get("/updraft/queue").text


def test_a_wrong_file_is_told_on_the_page(shared: Platform) -> None:
    assert listed(shared, "root")
    path = shared.settings.tenants_file
    assert path is not None
    path.write_text("tenants: {vision: {weight: 0}}")
    found = shared.client("root").get(f"{API}/tenants").json()
    assert "tenants.vision.weight" in found["problem"]
    assert len(found["tenants"]) == 2
    assert "tenants.vision.weight" in shared.client("root").get("/updraft/tenants").text


def test_a_settings_file_names_the_tenants(shared: Platform) -> None:
    assert isinstance(shared.settings, Settings)
    wrong = shared.client("root").post(f"{API}/validate", json={**MANIFEST, "tenant": "robots"}).json()
    assert wrong["errors"][0]["field"] == "tenant"
    high = shared.client("root").post(f"{API}/validate", json={**MANIFEST, "tenant": "speech", "priority": "high"})
    assert [each["field"] for each in high.json()["errors"]] == ["priority"]
