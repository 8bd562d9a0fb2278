"""FfDL's V1 manifests: as their users wrote them, what is said about them, and what is an error."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from updraft.manifest import ManifestError, load_any, parse
from updraft.manifest.ffdl import convert, is_ffdl
from updraft.manifest.text import plain_mapping

TEXT = """
name: tf_tutorial
description: Convolutional network
version: "1.0"
gpus: 0
cpus: 0.5
memory: 1Gb
learners: 2
data_stores:
  - id: sl-internal-os
    type: mount_cos
    training_data:
      container: tf_training_data
    training_results:
      container: tf_trained_model
    connection:
      auth_url: http://s3.default.svc.cluster.local
      user_name: test
      password: test
framework:
  name: tensorflow
  version: "1.5.0-py3"
  command: >
    python3 network.py --images ${DATA_DIR}/train.gz
      --iterations 2000
evaluation_metrics:
  type: tensorboard
  in: "$JOB_STATE_DIR/logs/tb"
"""
SMALL: dict[str, Any] = {
    "name": "a",
    "cpus": 1,
    "memory": "1GB",
    "framework": {"name": "pytorch", "command": "python x.py"},
}


def store(**changes: Any) -> dict[str, Any]:
    connection = {"auth_url": "https://s3.example.org", "user_name": "hunter-user", "password": "hunter2"}
    data = {"container": "bucket"}
    return {"id": "my_store", "type": "mount_cos", "training_data": data, "connection": connection, **changes}


def small(**changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(SMALL), **changes}


def warnings_of(**changes: Any) -> dict[str, str]:
    return {line.partition(": ")[0]: line.partition(": ")[2] for line in convert(small(**changes)).warnings}


def errors_of(**changes: Any) -> dict[str, str]:
    with pytest.raises(ManifestError) as caught:
        convert(small(**changes))
    assert "hunter" not in f"{caught.value} {caught.value.fields!r}"
    return {field.path: field.text for field in caught.value.fields}


def test_a_manifest_of_ffdl_becomes_ours() -> None:
    loaded = load_any(TEXT)
    assert loaded.manifest == parse(
        {
            "name": "tf-tutorial",
            "description": "Convolutional network",
            "framework": {"name": "tensorflow"},
            "command": "python3 network.py --images ${DATA_DIR}/train.gz   --iterations 2000",
            "resources": {"learners": 2, "cpus": 0.5, "memory": "1GB"},
            "data": [{"source": "s3://tf_training_data/", "as": "."}],
            "annotations": {
                "ffdl.version": "1.0",
                "ffdl.training_results": {"container": "tf_trained_model"},
                "ffdl.framework_version": "1.5.0-py3",
            },
            "metrics": [{"type": "tensorboard", "from": "$JOB_STATE_DIR/logs/tb"}],
        }
    )
    assert loaded.secrets == {}
    assert [line.partition(": ")[0] for line in loaded.warnings] == [
        "name",
        "framework.command",
        "framework.version",
        "data_stores[0].connection",
        "data_stores[0].training_results",
    ]


def test_the_program_of_a_file_lies_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "manifest.yml"
    file.write_text(TEXT)
    assert load_any(file).manifest.code == "."


def test_ours_is_not_taken_for_ffdls() -> None:
    assert not is_ffdl({"name": "a", "framework": {"name": "pytorch"}, "command": "c"})
    assert not is_ffdl({"name": "a", "resources": {}, "data_stores": []})
    assert is_ffdl(SMALL)
    assert is_ffdl({"data_stores": []})


def test_credentials_become_a_secret_and_are_never_shown() -> None:
    converted = convert(small(data_stores=[store()]))
    assert converted.manifest.data[0].secret == "ffdl-a-my-store"
    assert converted.secrets == {
        "ffdl-a-my-store": {
            "endpoint": "https://s3.example.org",
            "access_key": "hunter-user",
            "secret_key": "hunter2",
        }
    }
    assert "hunter" not in f"{converted!r} {converted.warnings} {converted.manifest.canonical()}"


def test_the_bucket_of_the_results_is_written_to_with_the_same_secret() -> None:
    converted = convert(small(data_stores=[store(training_results={"container": "trained"})]))
    assert converted.manifest.results is not None
    assert (converted.manifest.results.to, converted.manifest.results.secret) == ("s3://trained/", "ffdl-a-my-store")
    assert not [line for line in converted.warnings if "training_results" in line]
    wrong = errors_of(data_stores=[store(training_results={"container": "no bucket!"})])
    assert "is not the name of a bucket" in wrong["data_stores[0].training_results.container"]


def test_ffdls_bundled_store_is_the_platforms() -> None:
    connection = {"auth_url": "http://s3.default.svc.cluster.local", "user_name": "test", "password": "test"}
    converted = convert(small(data_stores=[store(connection=connection)]))
    assert (converted.secrets, converted.manifest.data[0].secret) == ({}, None)


def test_a_folder_of_a_node_is_refused_with_what_to_use_instead() -> None:
    volume = store(type="mount_volume", connection={"type": "host_mount", "name": "host-mount", "path": "/cosdata"})
    problem = errors_of(data_stores=[volume])["data_stores[0].connection"]
    assert "'/cosdata/bucket' of a node" in problem


def test_a_custom_framework_is_an_image() -> None:
    framework = {"name": "custom", "version": "tomcli/pytorch:0925mpi", "command": "c"}
    manifest = convert(small(framework=framework)).manifest
    assert (manifest.image, manifest.framework) == ("tomcli/pytorch:0925mpi", None)
    assert "framework.version" in errors_of(framework={"name": "custom", "command": "c"})


@pytest.mark.parametrize(
    ("written", "memory_bytes", "warned"),
    [
        ("1Gb", 10**9, False),
        ("300MiB", 300 * 2**20, False),
        ("16 gib", 2**34, False),
        ("1.5GB", 1_500_000_000, True),
        ("4Gi", 2**32, True),
        ("16g", 16 * 10**9, True),
    ],
)
def test_memory(written: str, memory_bytes: int, warned: bool) -> None:
    assert convert(small(memory=written)).manifest.resources.memory_bytes == memory_bytes
    assert ("memory" in warnings_of(memory=written)) is warned


def test_where_ffdl_guessed_a_warning_says_so() -> None:
    assert warnings_of(cpus=None)["cpus"] == "not given; FfDL silently took 5 per learner, and so do we"
    assert convert(small(cpus=None)).manifest.resources.cpus == 5
    assert warnings_of(memory=None)["memory"].startswith("not given; FfDL silently took 512MB")
    assert "nvidia-TeslaK80" in warnings_of(gpus=1)["gpu_type"]
    assert convert(small(gpus=1, gpu_type="nvidia-TeslaV100")).manifest.resources.gpu_type == "nvidia-TeslaV100"
    assert convert(small(gpu_type="CPU")).manifest.resources.gpu_type is None
    assert "storage" in warnings_of(storage="10GB")


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"memory": "16 Gigs"}, "memory"),
        ({"memory": 16}, "memory"),
        ({"name": None}, "name"),
        ({"learners": -2}, "learners"),
        ({"learners": 1.5}, "learners"),
        ({"cpus": "2"}, "cpus"),
        ({"gpus": 0.5}, "gpus"),
        ({"learnes": 2}, "learnes"),
        ({"framework": {"name": "pytorch"}, "data_stores": []}, "framework.command"),
        ({"framework": {"command": "c"}}, "framework.name"),
        ({"data_stores": [store(type="swift_datastore")]}, "data_stores[0].type"),
        ({"data_stores": [store(), store()]}, "data_stores"),
        ({"data_stores": [store(connection={"auth_url": "https://x", "user_name": "hunter"})]},
         "data_stores[0].connection.password"),
        ({"data_stores": [store(connection={"auth_url": "https://hunter:2@x", "user_name": "u", "password": "p"})]},
         "data_stores[0].connection.auth_url"),
        ({"data_stores": [store(connection={"auth_url": "https://x", "user_name": "u", "password": ["hunter2"]})]},
         "data_stores[0].connection.password"),
        ({"data_stores": [store(training_data={})]}, "data_stores[0].training_data.container"),
        ({"data_stores": [store(training_data={"container": "a b"})]}, "data_stores[0].training_data.container"),
        ({"evaluation_metrics": {"type": "regexp"}}, "evaluation_metrics.type"),
    ],
)  # fmt: skip
def test_what_ffdl_swallowed_is_an_error(changes: dict[str, Any], path: str) -> None:
    assert list(errors_of(**changes)) == [path]


def metrics_of(**fields: Any) -> list[dict[str, Any]]:
    found = convert(small(evaluation_metrics=fields)).manifest.canonical()["metrics"]
    return [{name: value for name, value in item.items() if value not in (None, {}, "")} for item in found]


def test_groups_of_the_regex_extractor_become_patterns() -> None:
    group = {
        "regex": r"Iteration %{INT:iteration}.*accuracy = %{FLOAT:acc}",
        "meta": {"time": "$time"},
        "scalars": {"accuracy": {"type": "FLOAT", "value": "$acc"}},
        "etimes": {"iteration": {"type": "INT", "value": "$iteration"}},
    }
    found = metrics_of(type="regex_extractor", groups={"test": group, "train": {**group, "etimes": None}})
    assert found == [
        {
            "type": "regex",
            "pattern": group["regex"],
            "values": {"accuracy": "acc"},
            "step": "iteration",
            "lines": 4,
            "prefix": "test",
        },
        {"type": "regex", "pattern": group["regex"], "values": {"accuracy": "acc"}, "lines": 4, "prefix": "train"},
    ]
    named = metrics_of(
        type="regex_extractor", line_lookahead=1, groups={"a": group}, **{"in": "$LOG_DIR/training-log.txt"}
    )
    assert "from" not in named[0]
    assert named[0]["lines"] == 1


def test_the_other_collectors_read_the_files_of_ffdl() -> None:
    assert metrics_of(type="logger") == []
    assert metrics_of(type="tensorboard") == [{"type": "tensorboard", "from": "$LOG_DIR/tb", "lines": 1}]
    for name in ("emetrics_file", "optivist", "file"):
        assert metrics_of(type=name) == [{"type": "jsonl", "from": "$LOG_DIR/evaluation-metrics.txt", "lines": 1}]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"in": "/mnt/x"}, "evaluation_metrics.in"),
        ({"typo": 1}, "evaluation_metrics.typo"),
        ({"line_lookahead": "4"}, "evaluation_metrics.line_lookahead"),
        ({"groups": None}, "evaluation_metrics.groups"),
        ({"groups": {"a": "x"}}, "evaluation_metrics.groups.a"),
        ({"groups": {"a": {"regex": "(?=x)"}}}, "evaluation_metrics.groups.a.regex"),
        ({"groups": {"a": {"regex": "x"}}}, "evaluation_metrics.groups.a.regex"),
        ({"groups": {"a": {"regex": "(?P<x>1)"}}}, "evaluation_metrics.groups.a.values"),
        (
            {"groups": {"a": {"regex": "(?P<x>1)", "values": {"l": {"value": "$y"}, "m": {"value": "$x"}}}}},
            "evaluation_metrics.groups.a.values.l.value",
        ),
    ],
)
def test_what_a_collector_cannot_use_is_an_error(fields: dict[str, Any], path: str) -> None:
    good = {"a": {"regex": "(?P<x>1)", "values": {"x": {"value": "$x"}}}}
    assert list(errors_of(evaluation_metrics={"type": "regex_extractor", "groups": good, **fields})) == [path]


def test_the_error_of_unreadable_memory_says_what_ffdl_did() -> None:
    assert errors_of(memory="16 Gigs")["memory"] == (
        "memory: '16 Gigs' is not an amount of memory; FfDL would silently have taken 512MB; "
        "write a number and a unit, such as 16GiB"
    )


values: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.just([]), st.just({})
)
FIELDS = """
name version cpus gpus gpu_type learners memory storage data_stores framework evaluation_metrics id type training_data
training_results connection container auth_url user_name password command image_tag
"""
keys = st.sampled_from(FIELDS.split())


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(
        keys,
        st.recursive(values, lambda inner: st.dictionaries(keys, inner, max_size=4) | st.lists(inner, max_size=2)),
        max_size=6,
    )
)
def test_nonsense_is_a_manifest_error_or_a_manifest(raw: dict[str, Any]) -> None:
    try:
        manifest = convert(plain_mapping({**SMALL, **raw}, "manifest")).manifest
    except ManifestError as exc:
        found = exc.fields
    else:
        assert parse(manifest.canonical()) == manifest
        return
    assert found
    assert all(field.problem and field.allowed for field in found)
