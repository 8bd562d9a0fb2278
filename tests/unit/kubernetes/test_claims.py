"""Data on persistent volumes: which claims learners can read, and how they are mounted."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from updraft.kubernetes.claims import Claim, claims_of, why_not, with_claims

POD: dict[str, Any] = {
    "spec": {
        "containers": [{"name": "base", "volumeMounts": [{"name": "job", "mountPath": "/updraft"}]}, {"name": "other"}],
        "initContainers": [{"name": "updraft-sidecar"}],
        "volumes": [{"name": "job", "emptyDir": {}}],
    }
}
BOUND: dict[str, Any] = {
    "metadata": {"name": "imagenet", "uid": "u-1"},
    "spec": {"accessModes": ["ReadWriteMany"], "volumeName": "pv-1"},
    "status": {"phase": "Bound"},
}


def test_claims_are_mounted_read_only_into_the_program_alone_each_volume_once() -> None:
    before = copy.deepcopy(POD)
    data = [
        {"source": "s3://a/b", "mount": "s3", "tree": "x"},
        {"source": "pvc://imagenet/train", "mount": "train", "tree": "claim u", "claim": "imagenet", "path": "train"},
        {"source": "pvc://imagenet/val", "mount": "val", "tree": "claim u", "claim": "imagenet", "path": "val"},
        {"source": "pvc://words", "mount": "a/b", "tree": "claim v", "claim": "words", "path": ""},
    ]
    made = with_claims(POD, claims_of(data))
    assert made == {
        "spec": {
            "containers": [
                {
                    "name": "base",
                    "volumeMounts": [
                        {"name": "job", "mountPath": "/updraft"},
                        {
                            "name": "data-1",
                            "mountPath": "/updraft/data/train",
                            "readOnly": True,
                            "subPath": "train",
                        },
                        {"name": "data-1", "mountPath": "/updraft/data/val", "readOnly": True, "subPath": "val"},
                        {"name": "data-2", "mountPath": "/updraft/data/a/b", "readOnly": True},
                    ],
                },
                {"name": "other"},
            ],
            "initContainers": [{"name": "updraft-sidecar"}],
            "volumes": [
                {"name": "job", "emptyDir": {}},
                {"name": "data-1", "persistentVolumeClaim": {"claimName": "imagenet", "readOnly": True}},
                {"name": "data-2", "persistentVolumeClaim": {"claimName": "words", "readOnly": True}},
            ],
        }
    }
    assert before == POD


def test_a_job_without_claims_has_the_pod_that_it_had() -> None:
    assert with_claims(POD, claims_of(None)) is POD


def test_the_whole_data_folder_can_be_a_claim() -> None:
    assert Claim("imagenet", "", ".").mount_path == "/updraft/data"


def test_a_bound_claim_is_readable() -> None:
    assert why_not(BOUND, "imagenet", "updraft-default", 4) is None


@pytest.mark.parametrize(
    ("change", "learners", "said"),
    [
        (None, 1, "claim 'imagenet' does not exist in namespace updraft-default; `kubectl get pvc --namespace"),
        ({"status": {"phase": "Pending"}}, 1, "is Pending: it has no volume yet, so there is no data in it; bind it"),
        ({"status": {}}, 1, "is Pending"),
        ({"status": {"phase": "Lost"}}, 1, "is Lost: its volume is lost; bind it to a volume"),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, 1, "is being deleted; name one that stays"),
        ({"spec": {"accessModes": ["ReadWriteOnce"]}}, 2, "one node at a time (ReadWriteOnce), and 2 learners may lie"),
        ({"spec": {"accessModes": ["ReadWriteOncePod"]}}, 2, "ask for 1 learner, or use a claim with ReadOnlyMany"),
    ],
)
def test_a_claim_that_learners_cannot_read_is_named_with_what_to_do(
    change: dict[str, Any] | None, learners: int, said: str
) -> None:
    found = None if change is None else {**BOUND, **change}
    assert said in str(why_not(found, "imagenet", "updraft-default", learners))


def test_one_learner_may_read_what_one_node_may_use() -> None:
    assert why_not({**BOUND, "spec": {"accessModes": ["ReadWriteOnce"]}}, "imagenet", "n", 1) is None
