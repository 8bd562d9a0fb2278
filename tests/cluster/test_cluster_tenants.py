"""Three tenants on the cluster of `make cluster`: namespaces of their own, and GPUs that are lent and taken back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from account_helpers import Account
from cluster_helpers import eventually
from platform_helpers import ONE_TENANT, TENANTS_FILE, OwnPlatform
from system_helpers import REPOSITORY, counting_job

from updraft.ledger import Ledger, Use

pytestmark = pytest.mark.cluster
H100 = "nvidia-h100"
GPUS = 2  # of this type, all on one node
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
NEW = f"""
  vision:
    quota: {{{H100}: {GPUS}}}
    defaults: {{resources: {{gpu_type: {H100}}}, env: {{TEAM: vision}}}}
  speech:
    quota: {{{H100}: 0}}
    defaults: {{resources: {{gpu_type: {H100}}}}}
"""


@pytest.fixture
def three(own_platform: OwnPlatform, account: Account) -> Iterator[None]:
    """An administrator makes the namespaces, and the platform reads its file again."""
    file, new = own_platform.home / TENANTS_FILE, account.folder / TENANTS_FILE
    file.write_text(f"administrators: [admin]\ntenants:\n  default: {{}}{NEW}")
    new.write_text(f"tenants:{NEW}")  # the namespace of the other one is that of deploy/kustomize
    try:
        account.shell(f"updraft tenants apply {new}")
        eventually(lambda: _dags_of_tenants(own_platform) == {"vision.train_model", "speech.train_model"})
        yield
    finally:
        file.write_text(ONE_TENANT)
        account.shell("kubectl delete namespace --ignore-not-found updraft-vision updraft-speech")


def _dags_of_tenants(own_platform: OwnPlatform) -> set[str]:
    found = own_platform.client.http.json("GET", "/api/v2/dags", params={"dag_id_pattern": "%.train_model"})["dags"]
    return {dag["dag_id"] for dag in found}


def test_what_was_lent_is_taken_back_on_the_cluster(own_platform: OwnPlatform, account: Account, three: None) -> None:
    client = own_platform.client

    def submit(name: str, tenant: str, **shape: int) -> str:
        return own_platform.submit(counting_job(name, tenant, pause_seconds=6, **shape), REPOSITORY / "jobs")

    borrowers = [submit(f"borrows-{number}", "speech") for number in range(GPUS)]
    for job in borrowers:
        eventually(lambda job=job: client.checkpoints(job).checkpoints, within_seconds=300)  # type: ignore[misc]
    owner, beside = submit("owns", "vision", learners=GPUS), submit("beside", "default", gpus=0)
    eventually(lambda: client.job(owner).state == "PROCESSING", within_seconds=300)
    pods = account.shell("kubectl get pods --all-namespaces --no-headers --selector updraft.dev/role=train")
    assert f"updraft-vision {owner}" in " ".join(pods.split())
    assert "updraft-speech" not in pods, "both borrowers had to leave: the gang needs both GPUs"
    for job in (*borrowers, owner, beside):
        assert own_platform.end(job).state == "COMPLETED", own_platform.explained(job)
    assert client.manifest(owner)["env"] == {"TEAM": "vision"}
    for job in borrowers:
        first, second = [attempt for attempt in client.attempts(job).attempts if attempt.role == "train"]
        assert (first.cause, first.label) == ("preempted", "grant.reclaimed")
        assert second.resume is not None
    held = Ledger(f"sqlite:///{own_platform.home / 'ledger.db'}").queue.used(LONG_AGO)
    for at in {use.granted_at for use in held}:
        assert sum(use.learners * use.gpus for use in held if use.gpu_type == H100 and _held(use, at)) <= GPUS


def _held(use: Use, at: datetime) -> bool:
    return use.granted_at <= at and (use.released_at is None or use.released_at > at)
