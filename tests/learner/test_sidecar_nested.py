"""Nested runs of MLflow at the endpoint: whose they are, how many, and what reaches the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from learner.sidecar_fakes import CONFIG

from updraft_learner.mlflow_rest import CHILD_RUNS, TAG_ROOT_RUN, Answer
from updraft_learner.sidecar.children import ChildRuns
from updraft_learner.sidecar.refusals import EndpointError

OWN = CONFIG.mlflow_run_id


class FakeServer:
    """Gives out runs, and knows their tags."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, str]] = {"stranger": {}}
        self.asked = 0

    def post(self, path: str, body: dict[str, Any]) -> Answer:
        assert path == "runs/create"
        assert body["experiment_id"] == CONFIG.mlflow_experiment_id
        run_id = f"child{len(self.runs)}"
        self.runs[run_id] = {tag["key"]: tag["value"] for tag in body["tags"]}
        return Answer(200, {"run": self._run(run_id)})

    def get(self, path: str, query: dict[str, Any]) -> Answer:
        assert path == "runs/get"
        self.asked += 1
        found = query["run_id"] in self.runs
        return Answer(200, {"run": self._run(query["run_id"])}) if found else Answer(404, {})

    def _run(self, run_id: str) -> dict[str, Any]:
        tags = [{"key": key, "value": value} for key, value in self.runs[run_id].items()]
        return {
            "info": {"run_id": run_id, "artifact_uri": f"mlflow-artifacts:/real/{run_id}"},
            "data": {"tags": tags},
        }


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def children(server: FakeServer, tmp_path: Path) -> ChildRuns:
    return ChildRuns(CONFIG, server, tmp_path / "children.json")  # type: ignore[arg-type]


def create(children: ChildRuns, **tags: str) -> str:
    return str(children.create({}, {"mlflow.parentRunId": OWN, **tags})["info"]["run_id"])


def test_a_nested_run_has_its_parent_and_the_jobs_run_and_none_of_the_clients_tags(
    children: ChildRuns, server: FakeServer
) -> None:
    run_id = create(children, kind="trial", **{"mlflow.user": "me", "mlflow.source.name": "x"})
    assert server.runs[run_id] == {"mlflow.parentRunId": OWN, "kind": "trial", TAG_ROOT_RUN: OWN}
    assert children.root_of(run_id) == f"real/{run_id}"
    assert server.asked == 0


def test_nested_in_nested_is_the_jobs_too(children: ChildRuns) -> None:
    first = create(children)
    assert children.is_nested({"mlflow.parentRunId": first})
    assert not children.is_nested({"mlflow.parentRunId": "stranger"})
    assert not children.is_nested({})


def test_runs_of_other_jobs_are_not_owned_whatever_their_ids_look_like(children: ChildRuns, server: FakeServer) -> None:
    server.runs["thief"] = {TAG_ROOT_RUN: "another-run", "mlflow.parentRunId": OWN}
    for run_id in ("stranger", "thief", "missing", OWN, "", None, "../x", "a b"):
        assert not children.owns(run_id)
    with pytest.raises(EndpointError, match="no nested run of the job"):
        children.root_of("thief")


def test_what_an_earlier_launch_started_is_found_by_its_tag(
    children: ChildRuns, server: FakeServer, tmp_path: Path
) -> None:
    run_id = create(children)
    later = ChildRuns(CONFIG, server, tmp_path / "later.json")  # type: ignore[arg-type]
    assert later.owns(run_id)
    assert later.owns(run_id)
    assert server.asked == 1


def test_a_launch_starts_a_thousand_at_most(children: ChildRuns) -> None:
    for _ in range(CHILD_RUNS):
        create(children)
    with pytest.raises(EndpointError, match=r"has started 1000 nested runs in this launch, which is the limit"):
        create(children)


def test_a_program_sets_no_tag_of_the_platform(children: ChildRuns) -> None:
    with pytest.raises(EndpointError, match=r"tag 'updraft.job_id' belongs to the platform"):
        create(children, **{"updraft.job_id": "another"})
