"""Container logs: follow, time stamps, since, tail, and the answers when there is none."""

from __future__ import annotations

import re

import pytest
from conformance_helpers import eventually
from kubernetes import client

STAMPED = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z \S")


def test_following_gives_every_line_once_and_ends_with_the_program(cluster):
    cluster.create(cluster.pod("talker", "for i in 1 2 3 4 5; do echo line $i; sleep 0.1; done"))
    cluster.wait_phase("talker", "Running", "Succeeded")
    assert cluster.log("talker", follow=True) == "".join(f"line {i}\n" for i in range(1, 6))


def test_time_stamps_are_rfc_3339_and_in_order(cluster):
    cluster.create(cluster.pod("stamped", "echo one; echo two"))
    cluster.finished("stamped")
    lines = cluster.log("stamped", timestamps=True).splitlines()
    assert [line.partition(" ")[2] for line in lines] == ["one", "two"]
    assert all(STAMPED.match(line) for line in lines)
    assert lines == sorted(lines)


def test_tail_limit_and_since(cluster):
    cluster.create(cluster.pod("long", "for i in 1 2 3; do echo line $i; done; sleep 2.5; echo late"))
    cluster.finished("long")
    assert cluster.log("long", tail_lines=2) == "line 3\nlate\n"
    assert cluster.log("long", limit_bytes=6) == "line 1"
    assert cluster.log("long", since_seconds=1) in ("late\n", "")
    assert cluster.log("long", since_seconds=600).startswith("line 1\n")


def test_very_long_lines_and_a_last_line_without_newline_are_whole(cluster):
    script = "head -c 40000 /dev/zero | tr '\\0' x; echo; printf 'end'"
    cluster.create(cluster.pod("wide", script))
    cluster.finished("wide")
    first, second = cluster.log("wide").splitlines()
    assert (len(first), set(first), second) == (40000, {"x"}, "end")


def test_a_container_that_waits_has_no_log_yet(cluster):
    body = cluster.pod("unpulled", "true")
    body["spec"]["containers"][0]["image"] = "updraft/unknown:9"
    cluster.create(body)
    eventually(lambda: cluster.read("unpulled").status.container_statuses)
    with pytest.raises(client.ApiException) as caught:
        cluster.log("unpulled", container="base")
    assert caught.value.status == 400
    assert 'container \\"base\\" in pod \\"unpulled\\" is waiting to start' in caught.value.body


def test_a_pod_without_a_node_has_an_empty_log(cluster):
    cluster.create(cluster.pod("huge", "true", base={"resources": {"requests": {"cpu": "999"}}}))
    answer = cluster.core.read_namespaced_pod_log("huge", cluster.namespace, _preload_content=False)
    assert (answer.status, answer.data) == (204, b"")


def test_the_container_must_be_named_when_there_are_several(cluster):
    body = cluster.pod("pair", "true")
    body["spec"]["containers"].append({**body["spec"]["containers"][0], "name": "second"})
    cluster.create(body)
    cluster.finished("pair")
    for wanted, text in ((None, "a container name must be specified"), ("third", "is not valid for pod")):
        with pytest.raises(client.ApiException) as caught:
            cluster.log("pair", **({"container": wanted} if wanted else {}))
        assert caught.value.status == 400
        assert text in caught.value.body
