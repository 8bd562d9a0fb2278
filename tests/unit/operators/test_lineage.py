"""How data sets and models are named in OpenLineage."""

from __future__ import annotations

from typing import Any

import pendulum
import pytest
from openlineage.client.serde import Serde

from updraft.ledger import Job
from updraft.lifecycle import State
from updraft.operators.lineage import Lineage, TellsLineage, facts_of, model, trained_on

TREE = "ab" * 32


def with_data(**data: Any) -> Job:
    now = pendulum.now("UTC")
    ids = {"id": "digits-1", "tenant": "red", "name": "digits", "dag_id": "train_model", "run_id": "digits-1"}
    records = ({"mount": "training", "tree": TREE, "files": 2, "bytes": 30, **data},)
    state = {"state": State.STORING, "reason": "", "submitted_by": "ann", "submitted_at": now}
    return Job(**ids, **state, manifest={}, data=records)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("s3://datasets/digits/", ("s3://datasets", "digits")),
        ("s3://datasets", ("s3://datasets", "/")),
        ("pvc://imagenet/train", ("pvc://imagenet", "train")),
        (f"tree:{TREE}", ("updraft://uploads", "red/digits/training")),
    ],
)
def test_the_name_of_data_stays_while_its_version_changes(source: str, named: tuple[str, str]) -> None:
    (found,) = trained_on(with_data(source=source))
    assert (found.namespace, found.name) == named
    assert found.version == TREE


def test_what_the_provider_is_given() -> None:
    job = with_data(source="s3://datasets/digits/")
    operator = TellsLineage()
    assert operator.get_openlineage_facets_on_complete(None) is None
    operator.lineage = Lineage(trained_on(job), (model(job.tenant, "m", "3", alias="champion"),), facts_of(job))
    answer = operator.get_openlineage_facets_on_complete(None)
    assert answer is not None
    [read], [made] = Serde.to_dict(answer)["inputs"], Serde.to_dict(answer)["outputs"]
    assert (read["namespace"], read["name"]) == ("s3://datasets", "digits")
    assert read["facets"]["version"]["datasetVersion"] == TREE
    assert (read["inputFacets"]["inputStatistics"]["fileCount"], read["inputFacets"]["inputStatistics"]["size"]) == (
        2,
        30,
    )
    assert (made["name"], made["facets"]["version"]["datasetVersion"]) == (f"{job.tenant}/m@champion", "3")
    tags = {tag["key"]: tag["value"] for tag in Serde.to_dict(answer)["run_facets"]["tags"]["tags"]}
    assert tags["updraft.job"] == job.id
