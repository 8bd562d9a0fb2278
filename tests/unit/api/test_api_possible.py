"""What cannot run here is told before anything is queued."""

from __future__ import annotations

import json
from typing import Any

import pytest
from bounds import bounded
from unit.api.api_fakes import MANIFEST, Platform, make_platform

from updraft.api.deadline import import_client

API = "/updraft/api/v1"


def node(*images: str, gpus: int = 0) -> dict[str, Any]:
    amounts = {"cpu": "2", "memory": "8Gi", "pods": "500", **({"nvidia.com/gpu": str(gpus)} if gpus else {})}
    return {
        "metadata": {"name": "updraft-local", "labels": {"updraft.dev/local": "true"}},
        "spec": {},
        "status": {
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
            "images": [{"names": [name]} for name in images],
        },
    }


@pytest.fixture
def here(tmp_path: Any) -> Platform:
    platform = make_platform(tmp_path)
    platform.cluster.listed = [node("updraft/learner-pytorch:2.15", "updraft/shell:1")]
    return platform


def asked(platform: Platform, user: str = "ada", secrets: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
    body = {"manifest": {**MANIFEST, "resources": {"learners": 1, "memory": "1GiB"}, **fields}, "secrets": secrets}
    answer = platform.client(user).post(f"{API}/possible", json=body)
    return {"status": answer.status_code, **answer.json()}


def told(answer: dict[str, Any]) -> dict[str, str]:
    return {error["field"]: error["message"] for error in answer["errors"]}


def test_what_can_run_is_valid(here: Platform) -> None:
    here.data = {"s3://datasets/digits/"}
    answer = asked(here, data=[{"source": "s3://datasets/digits/"}])
    assert (answer["status"], answer["valid"]) == (200, True), answer


def test_every_lack_is_told_at_once(here: Platform) -> None:
    answer = asked(
        here,
        framework=None,
        image="nobody/nothing:1",
        resources={"learners": 1, "memory": "1GiB", "gpus": 4},
        data=[{"source": "s3://datasets/none/", "as": "a"}, {"source": "pvc://shelf/x/", "as": "b"}],
        secrets=(),
        code="git+https://example.org/x@v1.0",
        code_secret="deploy-key",
    )
    found = told(answer)
    assert answer["valid"] is False
    assert found["image"] == (
        "image: the local node has no image 'nobody/nothing:1' and pulls none; write one of "
        "updraft/learner-pytorch:2.15, updraft/shell:1"
    )
    assert "no node has a GPU" in found["resources"]
    assert "no objects there" in found["data[0].source"]
    assert "'shelf' does not exist" in found["data[1].source"]
    assert "updraft secrets set deploy-key" in found["secrets"]


def test_more_gpus_than_the_node_has_are_refused(here: Platform) -> None:
    here.cluster.listed = [node("updraft/learner-pytorch:2.15", gpus=1)]
    found = told(asked(here, resources={"learners": 1, "memory": "1GiB", "gpus": 2}))
    assert "more than all nodes together can hold" in found["resources"]


def test_a_secret_that_is_about_to_be_made_is_not_missed(here: Platform) -> None:
    fields = {"code": "git+https://example.org/x@v1.0", "code_secret": "deploy-key"}
    assert not asked(here, **fields)["valid"]
    assert asked(here, secrets=("deploy-key",), **fields)["valid"]


def test_a_cluster_that_pulls_images_is_not_asked_for_them(here: Platform) -> None:
    del here.cluster.listed[0]["metadata"]["labels"]["updraft.dev/local"]
    assert asked(here, framework=None, image="nobody/nothing:1")["valid"]


@pytest.mark.parametrize("path", ["/possible", "/planned"])
def test_it_takes_the_right_to_start_jobs(here: Platform, path: str) -> None:
    body = {"manifest": MANIFEST}
    assert here.client("reader").post(f"{API}{path}", json=body).status_code == 403
    assert here.client(None).post(f"{API}{path}", json=body).status_code == 401


def test_the_objects_of_a_job_are_planned_by_role(here: Platform) -> None:
    answer = here.client().post(
        f"{API}/planned", json={"manifest": {**MANIFEST, "evaluate": {"command": "python e.py"}}}
    )
    assert answer.status_code == 200, answer.text
    roles = {role["role"]: [made["kind"] for made in role["objects"]] for role in answer.json()["roles"]}
    alone = ["Secret", "NetworkPolicy", "Pod"]
    gang = ["Secret", "NetworkPolicy", "Service", "Pod", "Pod"]
    assert roles == {"prepare": alone, "train": gang, "evaluate": alone}
    policy = answer.json()["roles"][1]["objects"][1]
    assert "10.0.0.1/32" in json.dumps(policy)  # of the API server, which learners never reach


@pytest.mark.parametrize(("learners", "status"), [(16, 200), (1_024, 413)])
def test_what_learners_repeat_is_bounded(here: Platform, learners: int, status: int) -> None:
    """With 256 learners the request of 500 kB took 245 MB."""
    manifest = {**MANIFEST, "resources": {"learners": learners}, "env": {f"V{n}": "x" * 5_000 for n in range(100)}}
    client = here.client()
    import_client("cluster")  # once per process, and not a request's cost
    with bounded():
        answer = client.post(f"{API}/planned", json={"manifest": manifest})
    assert answer.status_code == status, answer.text[:300]
    assert len(answer.content) < 16_000_000


def test_many_small_learners_are_planned(here: Platform) -> None:
    import_client("cluster")
    with bounded():
        answer = here.client().post(f"{API}/planned", json={"manifest": {**MANIFEST, "resources": {"learners": 1_024}}})
    assert [len(role["objects"]) for role in answer.json()["roles"]] == [3, 1_024 + 3]


def test_a_wrong_manifest_is_not_planned(here: Platform) -> None:
    answer = here.client().post(f"{API}/planned", json={"manifest": {**MANIFEST, "command": 7}})
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["error"]["fields"]] == ["command"]
