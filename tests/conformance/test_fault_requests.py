"""The fault lab on requests, images and disks."""

from __future__ import annotations

import time

import pytest
import urllib3
from conformance_helpers import eventually

from updraft_localnode import disks
from updraft_localnode.processes import kill_leftovers

needs_disks = pytest.mark.skipif(disks.why_not() is not None, reason=str(disks.why_not()))
MEBIBYTE = 1 << 20


def request(cluster, method, path, **more):
    headers = {"Authorization": f"Bearer {cluster.node.token}"}
    pool = urllib3.PoolManager(retries=False)
    return pool.request(method, f"{cluster.node.url}{path}", headers=headers, **more)


def pods_of(cluster):
    return f"/api/v1/namespaces/{cluster.namespace}/pods"


def test_errors_last_for_a_time(lab):
    lab.fault("api_errors", status=503, for_seconds=60, path=pods_of(lab))
    assert lab.faults()["api_errors"]["status"] == 503
    assert [request(lab, "GET", pods_of(lab)).status for _ in range(3)] == [503] * 3
    lab.fault("api_errors", status=503, for_seconds=0.4, path=pods_of(lab))
    eventually(lambda: request(lab, "GET", pods_of(lab)).status == 200, within_seconds=5)
    assert lab.faults()["api_errors"] is None


def test_errors_need_an_end(lab):
    answer = request(lab, "POST", "/faults", json={"kind": "api_errors", "status": 500})
    assert answer.status == 422
    assert "give count" in answer.json()["message"]


def test_a_request_may_be_carried_out_and_its_answer_lost(lab):
    lab.fault("api_errors", status=504, count=1, method="POST", path=pods_of(lab), executed=True)
    body = lab.pod("made", "sleep 60")
    assert request(lab, "POST", pods_of(lab), json=body).status == 504
    assert lab.read("made").metadata.name == "made"
    assert request(lab, "POST", pods_of(lab), json=body).status == 409


def test_a_cut_closes_connections_and_leaves_containers_alone(lab):
    lab.create(lab.pod("untouched", "sleep 60"))
    lab.wait_phase("untouched", "Running")
    url = f"{pods_of(lab)}?watch=True&timeoutSeconds=30"
    stream = request(lab, "GET", url, preload_content=False)

    lab.fault("cut", for_seconds=60)

    with pytest.raises(urllib3.exceptions.HTTPError):
        stream.read()
    with pytest.raises(urllib3.exceptions.ProtocolError):
        request(lab, "GET", pods_of(lab))
    assert lab.faults()["cut"]["how"] == "close"
    assert lab.faults("DELETE")["cut"] is None
    assert lab.read("untouched").status.phase == "Running"


def test_a_cut_may_swallow_packets_for_a_time(lab):
    lab.fault("cut", for_seconds=60, how="hang")
    with pytest.raises(urllib3.exceptions.TimeoutError):
        request(lab, "GET", pods_of(lab), timeout=0.3)
    before = time.monotonic()
    lab.fault("cut", for_seconds=0.4, how="hang")
    assert request(lab, "GET", pods_of(lab)).status == 200
    assert time.monotonic() - before >= 0.4
    assert lab.faults()["cut"] is None


def test_a_watch_goes_on_after_packets_were_held_up(lab):
    stream = request(lab, "GET", f"{pods_of(lab)}?watch=True&timeoutSeconds=30", preload_content=False)
    lab.fault("cut", for_seconds=0.3, how="hang")
    eventually(lambda: lab.faults()["cut"] is None)
    lab.create(lab.pod("late", "true"))
    assert any(b'"late"' in line for line in stream)
    stream.close()


def waiting(cluster, name):
    statuses = cluster.read(name).status.container_statuses
    return statuses[0].state.waiting if statuses else None


def test_images_of_the_next_pods_cannot_be_pulled_for_a_while(lab):
    lab.fault("pull_fails", count=1, for_seconds=3.8)  # tried again after 2 s, and after 4
    lab.create(lab.pod("first", "true"))
    state = eventually(lambda: waiting(lab, "first"))
    assert state.reason == "ErrImagePull"
    assert "i/o timeout" in state.message
    assert lab.image in state.message
    eventually(lambda: getattr(waiting(lab, "first"), "reason", "") == "ImagePullBackOff")
    lab.create(lab.pod("second", "true"))
    assert lab.finished("second").status.phase == "Succeeded"
    assert lab.finished("first").status.phase == "Succeeded"


def writing(cluster, name):
    """A pod that adds 4 KiB to a file again and again, and says how that went."""
    script = 'while :; do head -c 4096 /dev/zero >> "$DIR/file" && echo written || echo refused; sleep 0.1; done 2>&1'
    base = {"volumeMounts": [{"name": "job", "mountPath": "/job"}], "env": [{"name": "DIR", "value": "/job"}]}
    return cluster.pod(name, script, base=base, volumes=[{"name": "job", "emptyDir": {}}])


def last_line(cluster, name):
    return cluster.log(name, tail_lines=1)


@needs_disks
def test_a_full_disk_refuses_writes_until_there_is_room(lab):
    lab.fault("small_disks", bytes=16 * MEBIBYTE)
    lab.create(writing(lab, "writer"))
    eventually(lambda: lab.read("writer").status.phase == "Running" and last_line(lab, "writer") == "written\n")
    where = {"namespace": lab.namespace, "pod": "writer"}

    lab.fault("disk_full", **where)

    eventually(lambda: last_line(lab, "writer") == "refused\n")
    assert "No space left on device" in lab.log("writer")
    assert where in lab.faults()["full_disks"]
    lab.fault("disk_free", **where)
    eventually(lambda: last_line(lab, "writer") == "written\n")
    assert lab.faults()["full_disks"] == []


@needs_disks
def test_disks_go_with_their_pods(own_node):
    own_node.fault("small_disks", bytes=16 * MEBIBYTE)
    for name in ("ends", "orphan"):
        own_node.create(writing(own_node, name))
        own_node.wait_phase(name, "Running")
    assert len(mounts(own_node)) == 2
    own_node.core.delete_namespaced_pod("ends", "default", grace_period_seconds=0)
    eventually(lambda: len(mounts(own_node)) == 1)
    own_node.fault("disk_full", namespace="default", pod="orphan")
    own_node.node.kill()
    own_node.node.restart()
    eventually(lambda: own_node.faults()["full_disks"] == [{"namespace": "default", "pod": "orphan"}])
    own_node.node.kill()
    assert len(mounts(own_node)) == 1
    kill_leftovers(own_node.node.state_dir)
    assert mounts(own_node) == []


@needs_disks
def test_disks_go_with_the_local_node(own_node):
    own_node.fault("small_disks", bytes=16 * MEBIBYTE)
    own_node.create(writing(own_node, "writer"))
    own_node.wait_phase("writer", "Running")
    assert len(mounts(own_node)) == 1
    assert own_node.node.stop() == 0
    assert mounts(own_node) == []


def mounts(cluster):
    with open("/proc/self/mounts") as handle:
        return [line for line in handle if str(cluster.node.state_dir) in line]


def test_a_disk_that_is_shared_is_not_filled(lab):
    lab.create(lab.pod("sharing", "sleep 60"))
    lab.wait_phase("sharing", "Running")
    body = {"kind": "disk_full", "namespace": lab.namespace, "pod": "sharing"}
    answer = request(lab, "POST", "/faults", json=body)
    assert answer.status == 501
    assert "shares the node's disk" in answer.json()["message"]
