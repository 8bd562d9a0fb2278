"""Two tenants share three imaginary GPUs: one borrows, the other one takes its quota back, and nothing is lost."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from system_helpers import REPOSITORY, Stack, counting_job, pretty, running_stack, shell_job, until

from updraft.client import Client, Connection
from updraft.client.config import load_config
from updraft.exceptions import UpdraftError
from updraft.ledger import Ledger, Use

pytestmark = [pytest.mark.system, pytest.mark.turn(0), pytest.mark.timeout(600)]
GPUS = 3
RULES = """
administrators: [admin]
tenants:
  vision: {quota: {gpu: 2}, people: [grace], defaults: {env: {TEAM: vision}}}
  speech: {quota: {gpu: 1}, people: [eve], priorities: [low, normal]}
"""
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tenants") / "tenants.yaml"
    file.write_text(RULES)
    return file


@pytest.fixture(scope="module")
def shared(rules: Path) -> Iterator[Stack]:
    variables = {
        "UPDRAFT_TENANTS_FILE": str(rules),
        "UPDRAFT_TRUSTED_TENANTS": "true",
        "UPDRAFT_LEAST_RUN_MINUTES": "0",
    }
    with running_stack("tenants", variables, gpus=GPUS) as stack:
        yield stack


def submit(stack: Stack, manifest: dict[str, Any]) -> str:
    return stack.submit(manifest, REPOSITORY / "jobs")


@pytest.fixture(scope="module")
def taken_back(shared: Stack) -> tuple[list[Any], Any]:
    """Three jobs of speech that take all GPUs, and a job of vision with two learners that comes later; all ended."""
    borrowers = [submit(shared, counting_job(f"speech-{n}", "speech", pause_seconds=4)) for n in range(3)]
    for job in borrowers:
        shared.reach(job, "PROCESSING")
        until(lambda job=job: shared.client.checkpoints(job).checkpoints, "no checkpoint")  # type: ignore[misc]
    owner = submit(shared, counting_job("vision", "vision", learners=2))
    return [shared.end(job) for job in borrowers], shared.end(owner)


def test_what_was_lent_is_taken_back_and_every_job_completes(shared: Stack, taken_back: tuple[list[Any], Any]) -> None:
    borrowers, owner = taken_back
    assert [job.state for job in (*borrowers, owner)] == ["COMPLETED"] * 4, [pretty(j) for j in (*borrowers, owner)]
    assert shared.client.manifest(owner.id)["env"] == {"TEAM": "vision"}  # by the tenant's defaults
    told = [[t.reason for t in shared.client.transitions(job.id).transitions] for job in borrowers]
    left = [job for job, reasons in zip(borrowers, told, strict=True) if "takes back what is lent" in str(reasons)]
    assert len(left) == 2, told
    for job in left:
        first, second = [a for a in shared.client.attempts(job.id).attempts if a.role == "train"]
        assert (first.cause, first.label) == ("preempted", "grant.reclaimed"), pretty(first)
        assert second.resume is not None
        assert second.resume.checkpoint is not None
        lines = [line.line for line in shared.client.logs(job.id, attempt=second.number)]
        assert any(line.startswith("resumed at digit") for line in lines), lines


def test_no_tenant_and_no_instant_was_over_its_limit(shared: Stack, taken_back: tuple[list[Any], Any]) -> None:
    """By the ledger's history: the GPUs that are held never are more than there are, and vision had its quota."""
    assert taken_back
    held = Ledger(f"sqlite:///{shared.home / 'ledger.db'}").queue.used(LONG_AGO)
    moments = sorted({use.granted_at for use in held})
    for at in moments:
        assert gpus(held, at) <= GPUS
    (owner,) = [use for use in held if use.tenant == "vision"]
    assert gpus([use for use in held if use.tenant == "speech"], owner.granted_at) <= 1
    assert len(held) == 6  # two of the four jobs were granted twice


def gpus(held: list[Use], at: datetime) -> int:
    return sum(
        use.learners * use.gpus
        for use in held
        if use.granted_at <= at and (use.released_at is None or use.released_at > at)
    )


def test_people_see_what_their_tenant_uses(shared: Stack, taken_back: tuple[list[Any], Any]) -> None:
    borrowers, owner = taken_back
    listed = {each.name: each for each in shared.client.tenants().tenants}
    assert {name: each.quota for name, each in listed.items()} == {"vision": {"gpu": 2}, "speech": {"gpu": 1}}
    shares = {name: max(point.share for point in each.shares) for name, each in listed.items()}
    assert 0 < shares["vision"] <= 1
    assert 0.5 < shares["speech"] <= 1
    assert "speech" in shared.run("tenants", "list").stdout
    with as_user(shared, "eve") as eve:
        assert [each.name for each in eve.tenants().tenants] == ["speech"]
        assert {job.tenant for job in eve.jobs()} == {"speech"}
        with pytest.raises(UpdraftError, match="does not exist"):
            eve.job(owner.id)
        with pytest.raises(UpdraftError):
            eve.halt(owner.id)
        with pytest.raises(UpdraftError, match="tenant 'vision' does not exist"):
            eve.submit(counting_job("stolen", "vision"), base=REPOSITORY / "jobs")
    with pytest.raises(UpdraftError, match="'high' is not allowed to tenant speech; write one of low, normal"):
        submit(shared, counting_job("urgent", "speech") | {"priority": "high"})
    assert borrowers


def test_a_job_passes_one_that_has_no_room_and_gives_its_room_back(
    shared: Stack, taken_back: tuple[list[Any], Any]
) -> None:
    assert taken_back
    first = submit(shared, counting_job("first", "vision", learners=2))
    shared.reach(first, "PROCESSING")
    whole = submit(shared, counting_job("whole", "vision", learners=3, pause_seconds=0.1))
    shared.reach(whole, "QUEUED")
    small = submit(shared, counting_job("small", "vision", pause_seconds=5))
    shared.reach(small, "PROCESSING")
    assert shared.client.job(whole).state == "QUEUED"
    ended = [shared.end(job) for job in (first, whole, small)]
    assert [job.state for job in ended] == ["COMPLETED"] * 3, [pretty(job) for job in ended]
    told = [t.reason for t in shared.client.transitions(small).transitions]
    assert "it has passed a job that can start with its room" in str(told), told
    train = [a for a in shared.client.attempts(small).attempts if a.role == "train"]
    assert (train[0].label, train[-1].resume is not None) == ("grant.reclaimed", True)
    ends = {job.id: job.updated_at for job in ended}
    assert ends[first] < ends[whole] < ends[small]


def test_nothing_that_airflow_lists_names_a_job_of_another_tenant(
    shared: Stack, taken_back: tuple[list[Any], Any]
) -> None:
    """Every list of Airflow's REST API, asked for by a user of one tenant, who has not named such a job yet."""
    _, owner = taken_back
    told: dict[str, list[str]] = {"eve": [], "grace": []}
    for name, found in told.items():
        with as_user(shared, name) as user:
            for path, methods in user.http.json("GET", "/openapi.json")["paths"].items():
                asked = re.sub(r"\{(dag_id|dag_run_id|task_id)\}", "~", path)
                if "get" not in methods or "{" in asked:
                    continue
                try:
                    answer = json.dumps(user.http.json("GET", asked))
                except UpdraftError:
                    continue
                if owner.id in answer or "vision.train_model" in answer:
                    found.append(path)
    assert len(told["grace"]) > 3, told
    assert told["eve"] == [], told


def test_airflow_itself_keeps_tenants_apart(shared: Stack, taken_back: tuple[list[Any], Any]) -> None:
    """By Airflow's own REST API, past the client's and the routes' checks."""
    borrowers, owner = taken_back
    with as_user(shared, "grace") as grace, as_user(shared, "eve") as eve:
        for user, tenant, own in ((grace, "vision", {owner.id}), (eve, "speech", {job.id for job in borrowers})):
            runs = user.http.json("GET", "/api/v2/dags/~/dagRuns", params={"limit": 100})["dag_runs"]
            assert {run["dag_id"] for run in runs} == {f"{tenant}.train_model"}
            assert own <= {run["dag_run_id"] for run in runs}
            dags = {dag["dag_id"] for dag in user.http.json("GET", "/api/v2/dags", params={"limit": 100})["dags"]}
            own_dags = {f"{tenant}.{name}" for name in ("train_model", "halt_job", "resume_job", "cancel_job")}
            assert dags == own_dags
        run = f"/api/v2/dags/vision.train_model/dagRuns/{owner.id}"
        for path in (run, f"{run}/taskInstances", f"{run}/taskInstances/train/logs/1", f"{run}/taskInstances/admit"):
            with pytest.raises(UpdraftError):
                eve.http.json("GET", path)
        stolen = "stolen-261128-000000-abcdef"
        conf = {"manifest": shell_job("stolen", "true", tenant="vision")}
        for dag_id in ("vision.train_model", "train_model"):
            with pytest.raises(UpdraftError):
                eve.trigger(stolen, conf, dag_id)
        eve.trigger(stolen, conf, "speech.train_model")
        refused = shared.end(stolen)
        assert (eve.job(stolen).state, refused.tenant) == ("FAILED", "speech")
        told = "tenant: 'vision' is not the tenant of the DAG speech.train_model; write 'speech'"
        assert told in refused.reason, refused.reason
        eve.trigger("halts-261128-000000-abcdef", {"job": owner.id}, "speech.halt_job")
        state = until(lambda: ended(shared, "speech.halt_job", "halts-261128-000000-abcdef"), "the request has no end")
    assert state == "failed"
    assert shared.client.requests(owner.id).requests == ()


def knows(stack: Stack, dag_id: str) -> bool:
    found = stack.client.http.json("GET", "/api/v2/dags", params={"dag_id_pattern": dag_id})["dags"]
    return [dag["dag_id"] for dag in found] == [dag_id]


def ended(stack: Stack, dag_id: str, run_id: str) -> str | None:
    state = stack.client.http.json("GET", f"/api/v2/dags/{dag_id}/dagRuns/{run_id}")["state"]
    return state if state in ("success", "failed") else None


def as_user(stack: Stack, user: str) -> Client:
    passwords = json.loads((stack.home / "airflow" / "passwords.json").read_text())
    address = load_config({"UPDRAFT_HOME": str(stack.home)}).airflow_url
    return Client(Connection(address, username=user, password=passwords[user]))


def test_a_wrong_file_changes_nothing_and_a_right_one_counts_without_a_restart(shared: Stack, rules: Path) -> None:
    rules.write_text(RULES.replace("{gpu: 1}", "{gpu: -1}"))
    found = until(lambda: (now := shared.client.tenants()).problem and now, "the wrong file is not told")
    assert "tenants.speech.quota.gpu: -1 is too small" in found.problem
    assert {each.name: each.quota for each in found.tenants}["speech"] == {"gpu": 1}
    job = shared.end(submit(shared, counting_job("meanwhile", "speech", pause_seconds=0.1)))
    assert job.state == "COMPLETED", pretty(job)
    rules.write_text(RULES + "  robots: {quota: {gpu: 8}}\n")
    told = until(lambda: [t for t in shared.client.tenants().tenants if t.name == "robots"], "robots do not exist")
    assert told[0].notes == ("its quota of 8 GPUs is more than the cluster's 3",)
    until(lambda: knows(shared, "robots.train_model"), "Airflow does not know the DAG of the new tenant")
    job = shared.end(submit(shared, counting_job("first-robot", "robots", pause_seconds=0.1)))
    assert job.state == "COMPLETED", pretty(job)


def test_a_gang_beyond_its_tenants_limits_is_refused_with_the_largest_that_fits(shared: Stack, rules: Path) -> None:
    rules.write_text(RULES.replace("quota: {gpu: 1}", "quota: {gpu: 1}, borrow: {gpu: 1}"))
    until(lambda: [t for t in shared.client.tenants().tenants if t.borrow], "the new limit is not known")
    with pytest.raises(
        UpdraftError, match="the quota of tenant speech is 1 GPU, and it may borrow 1; ask for at most 2"
    ):
        submit(shared, counting_job("too-wide", "speech", learners=3))
