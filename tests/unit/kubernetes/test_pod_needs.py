"""What the section `pod` names has to exist before the job waits in the queue."""

from __future__ import annotations

from typing import Any

import pytest
from unit.operators.platform_fakes import FakeCluster

from updraft.exceptions import RefusedError
from updraft.kubernetes.pod_needs import lacking, why_not_writable
from updraft.manifest.pod import Pod

NAMED = Pod.model_validate(
    {
        "volumes": [{"mount": "/scratch", "size": "1GiB"}, {"mount": "/shared", "claim": "team"}],
        "service_account": "trainer",
        "image_pull_secrets": ["registry", "login"],
    }
)


def named(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, **more}


def claim(*modes: str, phase: str = "Bound") -> dict[str, Any]:
    return named("team", spec={"accessModes": list(modes)}, status={"phase": phase})


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def test_each_object_that_does_not_exist_is_named_with_its_field(cluster: FakeCluster) -> None:
    cluster.objects["secret"]["login"] = named("login", type="Opaque")
    found = dict(lacking(cluster, "updraft-vision", NAMED, 1))  # type: ignore[arg-type]
    assert list(found) == [
        "pod.volumes[1].claim", "pod.service_account", "pod.image_pull_secrets[0]", "pod.image_pull_secrets[1]"
    ]  # fmt: skip
    assert "claim 'team' does not exist in namespace updraft-vision" in found["pod.volumes[1].claim"]
    assert "kubectl create serviceaccount trainer --namespace updraft-vision" in found["pod.service_account"]
    assert "secret 'registry' does not exist in namespace updraft-vision" in found["pod.image_pull_secrets[0]"]
    assert found["pod.image_pull_secrets[1]"].endswith("is of type Opaque, not kubernetes.io/dockerconfigjson")


def test_nothing_is_asked_of_the_cluster_that_is_not_named(cluster: FakeCluster) -> None:
    assert lacking(cluster, "n", None, 1) == []  # type: ignore[arg-type]
    assert lacking(cluster, "n", Pod(), 1) == []  # type: ignore[arg-type]


def test_what_exists_is_fine(cluster: FakeCluster) -> None:
    cluster.objects["claim"]["team"] = claim("ReadWriteMany")
    cluster.objects["account"]["trainer"] = named("trainer")
    for name in ("registry", "login"):
        cluster.objects["secret"][name] = named(name, type="kubernetes.io/dockerconfigjson")
    assert lacking(cluster, "n", NAMED, 4) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "learners", "said"),
    [
        (claim("ReadWriteOnce"), 1, None),
        (claim("ReadWriteMany", phase="Pending"), 4, None),
        (
            claim("ReadWriteOnce"),
            2,
            "can only be written on one node (ReadWriteOnce), and 2 learners may lie on several",
        ),
        (
            claim("ReadOnlyMany"),
            1,
            "cannot be written to (ReadOnlyMany); use a claim with ReadWriteMany, or read it as",
        ),
        (claim("ReadWriteMany", phase="Lost"), 1, "is Lost: its volume is lost"),
        ({**claim("ReadWriteMany"), "metadata": {"name": "team", "deletionTimestamp": "x"}}, 1, "is being deleted"),
    ],
)
def test_a_claim_must_be_writable_by_all_learners(found: dict[str, Any], learners: int, said: str | None) -> None:
    why = why_not_writable(found, "team", "n", learners)
    assert why is None if said is None else said in str(why)


def test_what_the_platform_may_not_read_is_told(cluster: FakeCluster) -> None:
    cluster.refuse = lambda verb, name: 400 if verb == "read account" else None
    with pytest.raises(RefusedError, match="The cluster refused to read service account trainer: 400"):
        lacking(cluster, "n", Pod(service_account="trainer"), 1)  # type: ignore[arg-type]
