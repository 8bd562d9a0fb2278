"""Quantities, selectors, requests, placement, validation and logs: parts without processes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from updraft_localnode.errors import StatusError
from updraft_localnode.http_bodies import page, patched
from updraft_localnode.logs import LogOptions, log_time, parse_time, read_log, tail_offset
from updraft_localnode.resources import Amounts, pod_requests
from updraft_localnode.scheduler import NodeSpec, Placement, place
from updraft_localnode.selectors import parse_selector
from updraft_localnode.store import ResourceStore
from updraft_localnode.validation import complete

GIB = 1024**3
MERGE = "application/merge-patch+json"


def pod(name="p", **spec):
    container = {"name": "base", "image": "i", "command": ["true"]}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": [container], **spec}}


def wants(cpu="0", memory="0", gpus=0):
    return {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory, "nvidia.com/gpu": gpus}}}


def test_a_pod_asks_for_its_hungriest_moment():
    spec = {
        "initContainers": [
            wants("100m"),
            {**wants("500m", "1Gi"), "restartPolicy": "Always"},
            wants("4", "1Gi"),
        ],
        "containers": [wants("1", "2Gi", 1), wants("2", "1Gi", 1)],
    }
    assert pod_requests(spec) == Amounts(4500, 4 * GIB, 2)


def placed(name, cpu, node=None, **more):
    spec = {"containers": [{"name": "base", "resources": {"requests": {"cpu": cpu}}}], **more}
    metadata = {"name": name, "uid": name}
    return {
        "metadata": metadata,
        "spec": {**spec, **({"nodeName": node} if node else {})},
        "status": {"phase": "Running"},
    }


NODES = [NodeSpec("a", Amounts(2000, GIB)), NodeSpec("b", Amounts(4000, GIB, 2), "h100")]


def test_placement_counts_what_runs_and_says_what_is_short():
    running = [placed("r1", "2", "a"), placed("r2", "3", "b")]
    assert place(placed("new", "1"), NODES, running) == Placement("b", {})
    assert place(placed("new", "2"), NODES, running) == Placement(
        None, {}, "0/2 nodes are available: 2 Insufficient cpu."
    )
    finished = [{**running[0], "status": {"phase": "Succeeded"}}, running[1]]
    assert place(placed("new", "2"), NODES, finished) == Placement("a", {})
    wrong = placed("new", "1", nodeSelector={"updraft.dev/gpu-type": "a100"})
    assert place(wrong, NODES, []).reason == (
        "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."
    )


def test_gpus_are_handed_out_one_by_one():
    first = placed("one", "1")
    first["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": 1}
    assert place(first, NODES, []) == Placement("b", {"base": [0]})
    taken = {**first, "spec": {**first["spec"], "nodeName": "b"}}
    taken["metadata"] = {"annotations": {"updraft.dev/gpu-indices": '{"base": [0]}'}}
    assert place(first, NODES, [taken]) == Placement("b", {"base": [1]})


@given(st.lists(st.integers(100, 3000), max_size=12))
def test_nodes_are_never_promised_more_than_they_have(requests):
    running = []
    for i, milli in enumerate(requests):
        new = placed(f"p{i}", f"{milli}m")
        placement = place(new, NODES, running)
        if placement.node is not None:
            new["spec"]["nodeName"] = placement.node
            running.append(new)
    for node in NODES:
        used = [p for p in running if p["spec"]["nodeName"] == node.name]
        assert sum(pod_requests(p["spec"]).cpu_milli for p in used) <= node.allocatable.cpu_milli


@pytest.mark.parametrize("text", ["a b", "=x", "a in x", "a in (x", "!a=b", "a>1"])
def test_what_is_no_selector_is_refused(text):
    with pytest.raises(StatusError, match="unable to parse requirement"):
        parse_selector(text, None, "pods")


@pytest.mark.parametrize(
    ("selector", "matches"),
    [("a=1", True), ("a!=1", False), ("b!=1", True), ("a in (1,2),!b", True), ("a notin (1)", False), ("b", False)],
)
def test_selectors(selector, matches):
    assert (
        parse_selector(selector, "metadata.name=p", "pods").matches({"metadata": {"name": "p", "labels": {"a": "1"}}})
        is matches
    )


def test_a_pod_is_completed_with_defaults():
    done = complete("pods", pod(restartPolicy="Never"))
    assert (done["spec"]["terminationGracePeriodSeconds"], done["status"]["phase"]) == (30, "Pending")
    limited = pod()
    limited["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "2"}}
    assert complete("pods", limited)["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "2"}


def test_every_wrong_field_is_named_at_once():
    body = pod("UPPER", restartPolicy="Perhaps", hostname="a_b", volumes=[{"name": "v", "nfs": {"path": "/"}}])
    body["spec"]["containers"] = [
        {
            "name": "x",
            "image": "i",
            "volumeMounts": [{"name": "w", "mountPath": "/m"}],
            "ports": [{"containerPort": 70000}],
            "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}},
        },
        {"name": "x"},
    ]
    with pytest.raises(StatusError) as caught:
        complete("pods", body)
    assert caught.value.code == 422
    assert {c["field"] for c in caught.value.details["causes"]} == {
        "metadata.name",
        "spec.volumes[0]",
        "spec.containers[0].volumeMounts[0].name",
        "spec.containers[0].ports[0].containerPort",
        "spec.containers[0].resources.requests",
        "spec.containers[1].image",
        "spec.containers[1].name",
        "spec.restartPolicy",
        "spec.hostname",
    }


@pytest.mark.parametrize(
    "body", [None, [], {"kind": "Service"}, {"spec": {"containers": 3}}, {"metadata": {"name": "x"}, "spec": "y"}]
)
def test_what_is_no_pod_is_a_bad_request(body):
    with pytest.raises(StatusError) as caught:
        complete("pods", body)
    assert caught.value.code in (400, 422)


def test_a_secret_that_is_not_base64_is_refused_without_being_shown():
    with pytest.raises(StatusError) as caught:
        complete("secrets", {"metadata": {"name": "s"}, "data": {"k": "pass word!"}})
    assert caught.value.code == 400
    assert "pass word!" not in caught.value.message


def test_a_patch_changes_metadata_only():
    obj = {"kind": "Pod", "metadata": {"name": "p", "uid": "u", "labels": {"a": "1", "b": "2"}}, "spec": {"x": 1}}
    changed = patched("pods", obj, {"metadata": {"labels": {"a": None, "c": "3"}}, "spec": {"x": 1}}, MERGE)
    assert changed["metadata"]["labels"] == {"b": "2", "c": "3"}
    for patch, code in (({"spec": {"x": 2}}, 422), ({"metadata": {"uid": "v"}}, 409), ([], 400)):
        with pytest.raises(StatusError) as caught:
            patched("pods", obj, patch, MERGE)
        assert caught.value.code == code
    with pytest.raises(StatusError) as caught:
        patched("pods", obj, {}, "application/json-patch+json")
    assert caught.value.code == 415


@given(st.integers(0, 12), st.integers(1, 5))
def test_pages_show_every_object_once(count, limit):
    items = [{"metadata": {"namespace": "n", "name": f"{i:02}"}} for i in range(count)]
    seen, token = [], None
    while True:
        shown, token, remaining = page(items, limit, token)
        seen += shown
        assert remaining == count - len(seen)
        if token is None:
            break
    assert seen == items


def test_history_is_bounded_and_older_versions_are_expired():
    store = ResourceStore(history_length=3)
    first = store.create("pods", pod("a"))
    for name in "bcd":
        store.create("pods", pod(name))
    with pytest.raises(StatusError) as caught:
        store.changes_since(int(first["metadata"]["resourceVersion"]) - 1)
    assert caught.value.code == 410
    changes = store.changes_since(int(first["metadata"]["resourceVersion"]))
    assert [c.object["metadata"]["name"] for c in changes] == ["b", "c", "d"]


def test_objects_and_versions_survive_a_restart(tmp_path):
    store = ResourceStore(tmp_path / "db")
    created = store.create("secrets", {"metadata": {"name": "s", "namespace": "n"}, "data": {}})
    store.create("pods", pod())
    store.delete("pods", "default", "p")
    version = store.version
    store.close()
    again = ResourceStore(tmp_path / "db")
    assert again.items("secrets") == [created]
    assert again.items("pods") == []
    assert again.version == version
    assert (tmp_path / "db").stat().st_mode & 0o077 == 0
    with pytest.raises(StatusError):
        again.changes_since(version - 1)


def test_an_update_that_changes_nothing_is_no_write():
    store = ResourceStore()
    created = store.create("pods", pod())
    assert store.update("pods", "default", "p", lambda new: None) is created


def write_log(path, *lines):
    path.write_bytes(b"".join(line.encode() + b"\n" for line in lines))
    return path


def read(path, **options):
    async def collect():
        return b"".join([chunk async for chunk in read_log(path, LogOptions(**options), lambda: True)]).decode()

    return asyncio.run(collect())


T1, T2, T3 = (f"2026-01-01T00:00:0{i}.000000000Z" for i in (1, 2, 3))


def test_logs_join_parts_and_filter_by_time(tmp_path):
    log = write_log(
        tmp_path / "log", f"{T1} stdout F one", f"{T2} stdout P tw", f"{T2} stdout F o", f"{T3} stderr F three"
    )
    assert read(log) == "one\ntwo\nthree\n"
    assert read(log, timestamps=True) == f"{T1} one\n{T2} two\n{T3} three\n"
    assert read(log, since=T2) == "two\nthree\n"
    assert read(log, tail_lines=1) == "three\n"
    assert read(log, tail_lines=0) == ""
    assert read(log, tail_lines=99) == "one\ntwo\nthree\n"
    assert read(log, limit_bytes=5) == "one\nt"
    assert read(tmp_path / "absent") == ""


@given(lines=st.integers(0, 40), wanted=st.integers(0, 45), width=st.integers(0, 8000))
def test_the_tail_begins_at_the_right_line(tmp_path_factory, lines, wanted, width):
    path = tmp_path_factory.mktemp("tail") / "log"
    path.write_bytes(b"".join(b"%d%s\n" % (i, b"x" * width) for i in range(lines)))
    tail = path.read_bytes()[tail_offset(path, wanted) :]
    assert tail.count(b"\n") == min(lines, wanted)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-01T00:00:01Z", "2026-01-01T00:00:01.000000000Z"),
        ("2026-01-01T01:00:01.5+01:00", "2026-01-01T00:00:01.500000000Z"),
        ("2026-01-01T00:00:01.123456789Z", "2026-01-01T00:00:01.123456789Z"),
    ],
)
def test_times_of_requests_compare_with_those_of_the_log(text, expected):
    assert parse_time(text) == expected


def test_log_time_has_nanoseconds():
    assert log_time(datetime(2026, 1, 1, tzinfo=UTC)) == "2026-01-01T00:00:00.000000000Z"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"serviceAccountName": "trainer"}, "spec.serviceAccountName"),
        ({"imagePullSecrets": [{"name": "registry"}]}, "spec.imagePullSecrets"),
    ],
)
def test_what_only_a_cluster_has_is_refused_by_name(spec, field):
    with pytest.raises(StatusError) as caught:
        complete("pods", pod(**spec))
    assert [cause["field"] for cause in caught.value.details["causes"]] == [field]
    assert complete("pods", pod(serviceAccountName="default", imagePullSecrets=[]))["kind"] == "Pod"
