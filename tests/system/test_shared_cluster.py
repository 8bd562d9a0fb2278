"""Three tenants with thirty jobs share six imaginary GPUs while parts of the platform are killed.

Each job's true result is known from its id (`faults.jobs.chain`): every step had effect once, in order. So every job
has to complete with the result that it has when nothing is done to it, whatever is taken back or killed meanwhile.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from faults.jobs import Shape, chain, manifest
from killing import KILLED, TASK, parts_killed_in_turn
from system_helpers import REPOSITORY, Stack, pretty, running_stack

from updraft.exceptions import UnavailableError
from updraft.ledger import Ledger, Use
from updraft.lifecycle import job_id
from updraft.tenants import parse_tenants

GPUS = 6
RULES = """
administrators: [admin]
tenants:
  vision: {quota: {gpu: 3}, weight: 2}
  speech: {quota: {gpu: 2}, borrow: {gpu: 3}}
  robots: {quota: {gpu: 1}, borrow: {gpu: 2}, lend: {gpu: 0}}
"""
SMALL_JOBS = 9  # of each tenant, and one real training
PATIENCE_SECONDS = 1500.0
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
pytestmark = [pytest.mark.system, pytest.mark.story, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    file = tmp_path_factory.mktemp("tenants") / "tenants.yaml"
    file.write_text(RULES)
    variables = {
        "UPDRAFT_TENANTS_FILE": str(file),
        "UPDRAFT_TRUSTED_TENANTS": "true",
        "UPDRAFT_LEAST_RUN_MINUTES": "0",
    }
    with running_stack("shared-cluster", variables, gpus=GPUS) as stack:
        data = (REPOSITORY / "jobs" / "data" / "digits" / "digits.csv").read_bytes()
        stack.put_object("datasets", "fault-lab/digits.csv", data)
        yield stack


def drawn(rng: Random, tenant: str) -> list[Shape]:
    """The tenant's jobs in their order: gangs whose learners meet at each step, and a real training."""
    small = [
        Shape(learners=learners, steps=rng.randint(60, 110))
        for learners in (1, 2, 3 if tenant != "robots" else 2)
        for _ in range(SMALL_JOBS // 3)
    ]
    jobs = [*small, Shape(program="cnn", steps=40, evaluate=True, no_progress_seconds=45)]
    rng.shuffle(jobs)
    if tenant == "speech":  # it begins with one that is sure to run beyond its quota when vision comes
        jobs[jobs.index(next(each for each in jobs if each.learners == 3))] = jobs[0]
        jobs[0] = Shape(learners=3, steps=300)
    return jobs


def submit(stack: Stack, tenant: str, shape: Shape, rng: Random) -> str:
    job = job_id(f"{tenant}-{shape.program}", datetime.now(UTC), rng.randbytes(8))
    witness = stack.home / "witness"
    witness.mkdir(exist_ok=True)
    made: dict[str, Any] = manifest(shape, job, witness) | {"name": f"{tenant}-{shape.program}", "tenant": tenant}
    made["resources"] |= {"gpus": 1, "cpus": 0.1 if shape.program == "chain" else 0.5}
    made["priority"] = rng.choice(["low", "normal", "high"])
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return str(stack.client.submit(made, job_id=job).id)
        except UnavailableError:  # a part was just killed; the same id is submitted once, however often it is asked for
            assert time.monotonic() < deadline
            time.sleep(1)


def test_thirty_jobs_of_three_tenants_complete_as_if_undisturbed(shared: Stack, tmp_path: Path) -> None:
    rng = Random(19)
    shapes: dict[str, Shape] = {}
    with parts_killed_in_turn(shared.home, seed=19) as killed:
        queues = {tenant: drawn(rng, tenant) for tenant in ("speech", "robots", "vision")}
        for tenant in ("speech", "robots"):  # they borrow what vision does not use yet
            for shape in queues.pop(tenant):
                shapes[submit(shared, tenant, shape, rng)] = shape
        until_borrowed(shared)
        for shape in queues.pop("vision"):
            shapes[submit(shared, "vision", shape, rng)] = shape
        assert len(shapes) == 3 * (SMALL_JOBS + 1)
        ended = {job: shared.client.wait(job, timeout_seconds=PATIENCE_SECONDS) for job in shapes}
    assert set(killed) == {*KILLED, TASK}
    wrong = [pretty(job) for job in ended.values() if job.state != "COMPLETED"]
    assert not wrong, "\n".join(wrong)
    for job, shape in shapes.items():
        files = shared.client.download(job, "results", tmp_path / job)
        found = [json.loads(path.read_text()) for path in files if path.name == "result.json"]
        results = [(each["steps"], each["digest"]) for each in found if "digest" in each]
        assert results == [(shape.steps, chain(job, shape.steps))] * shape.learners, (job, files)
    taken_back(shared, list(shapes))
    never_over(Ledger(f"sqlite:///{shared.home / 'ledger.db'}").queue.used(LONG_AGO))


def until_borrowed(stack: Stack) -> None:
    """Wait until speech uses more than its quota."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        listed = {each.name: each for each in stack.client.tenants().tenants}
        if listed["speech"].borrowed.get("gpu"):
            return
        assert time.monotonic() < deadline, listed
        time.sleep(0.5)


def taken_back(stack: Stack, jobs: list[str]) -> None:
    """Check that jobs were asked for their room, used no budget for it, and went on from a checkpoint."""
    attempts = {job: [a for a in stack.client.attempts(job).attempts if a.role == "train"] for job in jobs}
    reasons = {job: [str(a.reason) for a in found if a.label == "grant.reclaimed"] for job, found in attempts.items()}
    borrowed = [job for job, found in reasons.items() if any("takes back" in reason for reason in found)]
    assert borrowed
    for job, found in reasons.items():
        assert all("takes back" in reason or "has passed a job" in reason for reason in found), (job, found)
        assert job not in borrowed or job.startswith(("speech", "robots")), (job, found)
        assert not found or attempts[job][-1].resume is not None, job


def never_over(held: list[Use]) -> None:
    """Check by the ledger's history that at no instant more was held than there is, and by no tenant more than it
    may."""
    tenants = parse_tenants(RULES).tenants
    for at in sorted({use.granted_at for use in held}):
        used: Counter[str] = Counter()
        for use in held:
            if use.granted_at <= at and (use.released_at is None or use.released_at > at):
                used[use.tenant] += use.learners * use.gpus
        assert used.total() <= GPUS, (at, used)
        for tenant, gpus in used.items():
            most = tenants[tenant].most("gpu")
            assert most is None or gpus <= most, (at, used)
        lent_by_robots = used["vision"] + used["speech"] - (GPUS - 1)
        assert lent_by_robots <= 0, (at, used)
