"""What is new in a job's data beside the champion's, and a training on that part alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ledger_helpers import add_job
from unit.operators.airflow_fakes import Platform, registered_champion, until

from updraft.controller import data_versions
from updraft.lifecycle import State
from updraft.manifest import ManifestError, parse
from updraft_learner.contract import Keys
from updraft_learner.trees import Tree, TreeFile

Make = Callable[..., Platform]


def tree(platform: Platform, **files: str) -> str:
    """A tree of the content store, with these files."""
    import hashlib

    content = platform.services.content("default")
    made = []
    for name, text in files.items():
        digest = hashlib.sha256(text.encode()).hexdigest()
        platform.store.put_bytes(Keys("default").blob(digest), text.encode())
        made.append(TreeFile(f"{name}.csv", digest, len(text)))
    return content.put_tree(Tree(tuple(made)))


def champion(platform: Platform, digest: str, **changes: Any) -> None:
    add_job(platform.ledger, "older-1")
    record = {"source": "s3://a/", "tree": digest, "mount": ".", **changes}
    platform.ledger.jobs.set_inputs("older-1", None, [record])
    registered_champion(platform, "older-1")


def data(platform: Platform, digest: str, **changes: Any) -> None:
    platform.params["manifest"]["data"] = [{"source": f"tree:{digest}", **changes}]


def test_a_promotion_says_what_was_new_in_the_data(make_platform: Make) -> None:
    platform = make_platform()
    champion(platform, tree(platform, a="1", b="2", c="3"))
    digest = tree(platform, a="1", b="changed", d="4", e="5")
    data(platform, digest)
    platform.run_all()
    (event,) = platform.ledger.series.of_series("default", "digits")
    change = data_versions.DataChange(f"tree:{digest}", added=2, changed=1, removed=1, same=1)
    assert event.evidence["data"] == [vars(change)], platform.errors
    assert str(change) == "2 new, 1 changed, 1 gone, 1 the same"
    tags = platform.mlflow.versions[-1].tags_set
    assert tags["updraft.data_since_champion"] == f"tree:{digest}: 2 new, 1 changed, 1 gone, 1 the same"


def test_a_new_champion_is_an_event_of_an_asset(make_platform: Make) -> None:
    platform = make_platform()
    platform.run_all()
    ((uri, extra),) = platform.asset_events
    assert uri == "updraft://models/default/digits"
    assert (extra["version"], extra["job"]) == ("1", platform.job.id)


def test_an_increment_is_what_is_new_or_changed_since_the_champion(make_platform: Make) -> None:
    platform = make_platform()
    champion(platform, tree(platform, a="1", b="2"))
    data(platform, tree(platform, a="1", b="changed", c="3"), increment=True)
    until(platform, "train")
    (record,) = platform.job.data
    expected = tree(platform, b="changed", c="3")
    assert (record["tree"], record["files"], record["bytes"]) == (expected, 2, 8), platform.errors
    assert record["provenance"]["since_job"] == "older-1"
    assert data_versions.whole_tree(record) == tree(platform, a="1", b="changed", c="3")


def test_the_next_increment_begins_at_all_that_the_champion_had(make_platform: Make) -> None:
    platform = make_platform()
    whole = tree(platform, a="1", b="2")
    champion(platform, tree(platform, b="2"), whole=whole)
    data(platform, tree(platform, a="1", b="2", c="3"), increment=True)
    until(platform, "train")
    assert platform.job.data[0]["tree"] == tree(platform, c="3")


@pytest.mark.parametrize("known", [None, "not stored", "claim"])
def test_without_a_champion_whose_data_is_known_it_is_all(make_platform: Make, known: str | None) -> None:
    platform = make_platform()
    if known == "not stored":
        champion(platform, "b" * 64)
    elif known == "claim":
        champion(platform, "claim 1", claim="data")
    digest = tree(platform, a="1", b="2")
    data(platform, digest, increment=True)
    until(platform, "train")
    assert platform.job.data[0]["tree"] == digest, platform.errors


def test_an_increment_of_nothing_ends_the_job(make_platform: Make) -> None:
    platform = make_platform()
    digest = tree(platform, a="1")
    champion(platform, digest)
    data(platform, digest, increment=True)
    platform.run_all()
    assert platform.job.state is State.FAILED
    assert platform.job.reason == (
        f"data.increment: tree:{digest} has nothing new since job older-1, which made the champion; leave out "
        "increment to train on all of it"
    )


@pytest.mark.parametrize(
    ("item", "export", "problem"),
    [
        ({"source": "s3://a/b/", "mode": "stream", "increment": True}, {"register_as": "m"}, "does not have the files"),
        ({"source": "pvc://a/b", "increment": True}, {"register_as": "m"}, "does not have the files"),
        ({"source": "s3://a/b/", "increment": True}, {}, "nothing is registered"),
    ],
)
def test_an_increment_that_cannot_be_is_refused(item: dict[str, Any], export: dict[str, Any], problem: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse({"name": "x", "framework": {"name": "shell"}, "command": "true", "data": [item], "export": export})
    assert [each for each in caught.value.fields if each.path == "data[0].increment" and problem in each.text]
