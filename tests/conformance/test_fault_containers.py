"""The fault lab on containers: killed, out of memory, frozen. Real processes."""

from __future__ import annotations

import json

import psutil
import pytest
import urllib3
from conformance_helpers import asked, eventually, programs

TICKING = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"


def refused(cluster, **body):
    answer = urllib3.PoolManager().request(
        "POST",
        f"{cluster.node.url}/faults",
        json=body,
        headers={"Authorization": f"Bearer {cluster.node.token}"},
        retries=False,
    )
    return answer.status, json.loads(answer.data)["message"]


def with_sidecar(cluster, name, main, side):
    sidecar = {"name": "side", "image": cluster.image, "command": ["/bin/sh", "-c", side], "restartPolicy": "Always"}
    return cluster.pod(name, main, initContainers=[sidecar], terminationGracePeriodSeconds=1)


def running(cluster, pod, container="base"):
    def state():
        status = cluster.read(pod).status
        found = [*(status.container_statuses or []), *(status.init_container_statuses or [])]
        return next((s for s in found if s.name == container and s.state.running), None)

    return eventually(state)


def ended(cluster, pod):
    state = cluster.finished(pod).status.container_statuses[0].state.terminated
    return state.exit_code, state.reason


def where(cluster):
    return {"namespace": cluster.namespace}


@pytest.mark.parametrize(("signal", "code"), [("SIGKILL", 137), ("SIGSEGV", 139), ("SIGTERM", 143)])
def test_a_killed_program_ends_with_its_signal(local_cluster, signal, code):
    local_cluster.create(local_cluster.pod("hit", "sleep 60 & exec sleep 60"))
    running(local_cluster, "hit")
    did = local_cluster.fault("kill_container", **where(local_cluster), pod="hit", container="base", signal=signal)
    assert did["container"] == "base"
    assert ended(local_cluster, "hit") == (code, "Error")
    assert not psutil.pid_exists(did["pid"])


def test_a_killed_sidecar_is_started_again_and_the_program_goes_on(local_cluster):
    cluster = local_cluster
    cluster.create(with_sidecar(cluster, "beside", "sleep 60", "echo up; sleep 60"))
    running(cluster, "beside")
    for restarts in (1, 2):
        cluster.fault("kill_container", **where(cluster), pod="beside", container="side")

        def again(restarts=restarts):
            status = cluster.read("beside").status.init_container_statuses[0]
            return status if status.restart_count == restarts and status.state.running else None

        status = eventually(again)
        assert (status.last_state.terminated.exit_code, status.last_state.terminated.reason) == (137, "Error")
    assert cluster.read("beside").status.container_statuses[0].restart_count == 0


def test_a_killed_stage_fails_the_pod(local_cluster):
    cluster = local_cluster
    stage = {"name": "stage", "image": cluster.image, "command": ["/bin/sh", "-c", "sleep 60"]}
    cluster.create(cluster.pod("unstaged", "true", initContainers=[stage]))
    running(cluster, "unstaged", "stage")
    cluster.fault("kill_container", **where(cluster), pod="unstaged", container="stage")
    pod = cluster.finished("unstaged")
    assert pod.status.phase == "Failed"
    assert pod.status.init_container_statuses[0].state.terminated.exit_code == 137


def test_a_program_out_of_memory_says_so(local_cluster):
    local_cluster.create(local_cluster.pod("large", "sleep 60 & sleep 60"))
    running(local_cluster, "large")
    local_cluster.fault("oom", **where(local_cluster), pod="large")
    assert ended(local_cluster, "large") == (137, "OOMKilled")


def test_a_frozen_container_stands_still_until_it_is_thawed(local_cluster):
    cluster = local_cluster
    cluster.create(cluster.pod("clock", f"({TICKING}) & wait"))
    eventually(lambda: running(cluster, "clock") and "3\n" in cluster.log("clock"))

    cluster.fault("freeze_container", **where(cluster), pod="clock")

    frozen = {"namespace": cluster.namespace, "pod": "clock", "container": "base"}
    assert frozen in cluster.faults()["frozen"]
    before = cluster.log("clock")
    writers = [p for p in programs(cluster.node.state_dir) if TICKING in " ".join(asked(p, psutil.Process.cmdline))]
    assert {p.status() for p in writers} == {psutil.STATUS_STOPPED}
    assert cluster.read("clock").status.phase == "Running"
    cluster.fault("thaw_container", **where(cluster), pod="clock")
    eventually(lambda: len(cluster.log("clock")) > len(before))
    assert frozen not in cluster.faults()["frozen"]


def test_a_frozen_container_stays_frozen_when_the_local_node_is_killed(own_node):
    own_node.create(own_node.pod("clock", TICKING))
    eventually(lambda: running(own_node, "clock") and "3\n" in own_node.log("clock"))
    own_node.fault("freeze_container", namespace="default", pod="clock")
    own_node.node.kill()
    own_node.node.restart()
    eventually(lambda: own_node.faults()["frozen"])
    before = own_node.log("clock")
    assert own_node.faults("DELETE")["frozen"] == []
    eventually(lambda: len(own_node.log("clock")) > len(before))


def test_a_frozen_container_can_be_deleted(local_cluster):
    cluster = local_cluster
    cluster.create(cluster.pod("stuck", "sleep 60", terminationGracePeriodSeconds=1))
    running(cluster, "stuck")
    cluster.fault("freeze_container", **where(cluster), pod="stuck")
    cluster.core.delete_namespaced_pod("stuck", cluster.namespace)
    eventually(lambda: cluster.gone("stuck"))


def test_what_does_not_run_cannot_be_hit(local_cluster):
    cluster = local_cluster
    cluster.create(cluster.pod("over", "true"))
    cluster.finished("over")
    body = {"kind": "kill_container", "namespace": cluster.namespace}
    assert refused(cluster, **body, pod="over")[0] == 409
    assert refused(cluster, **body, pod="nobody") == (404, 'pods "nobody" not found')
    cluster.create(cluster.pod("here", "sleep 60"))
    running(cluster, "here")
    assert refused(cluster, **body, pod="here", container="x") == (400, "container x is not valid for pod here")
    status, message = refused(cluster, **body, pod="here", signal="KILL")
    assert status == 422
    assert "write for example SIGKILL" in message
