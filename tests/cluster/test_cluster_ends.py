"""Nothing is left of a cluster, however it was interrupted; and what can break in it can be broken and mended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_helpers import Pods, eventually
from kubecluster import running
from kubecluster.images import PAUSE_IMAGE
from kubecluster.layout import STATE_VARIABLE, Layout, find_layout
from kubecluster.leftovers import foreign_folders, inhabitants, leftovers
from kubecluster.machines import CONTROL, read_record, run_on
from kubecluster.running import Cluster
from kubecluster.target import Target

pytestmark = pytest.mark.cluster
PROGRAM = Path(__file__).parent
MOMENTS = ("machines ", "etcd is", "kube-apiserver is", "coredns is", "containerd-node-a is", "kubelet-node-a is")
START_SECONDS = 600  # beside two other clusters
NODE_LOST_SECONDS = 60  # Kubernetes' own default would be more than 300


@pytest.fixture
def other(own_cluster: Cluster, tmp_path: Path) -> Iterator[Layout]:
    """A second cluster's place; its programs are in the cache."""
    layout = find_layout({**os.environ, STATE_VARIABLE: str(tmp_path / "other")})
    assert layout.name != own_cluster.layout.name
    try:
        yield layout
    finally:
        running.down(layout, print)


def command(layout: Layout, verb: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), verb],
        env={**os.environ, STATE_VARIABLE: str(layout.root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def end(layout: Layout) -> str:
    down = command(layout, "down")
    said = down.communicate(timeout=120)[0]
    assert down.returncode == 0, said
    return said


def lines_until(process: subprocess.Popen[str], text: str) -> list[str]:
    assert process.stdout is not None
    seen: list[str] = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return seen
    pytest.fail(f"it ended without saying {text!r}: {''.join(seen)}")


@pytest.mark.parametrize("moment", MOMENTS)
def test_nothing_is_left_when_the_start_was_killed(other: Layout, moment: str) -> None:
    up = command(other, "up")
    lines_until(up, moment)
    up.kill()
    up.wait()
    had = inhabitants(other)
    assert had or moment == MOMENTS[0]
    end(other)
    assert leftovers(other, had) == []


@pytest.mark.parametrize("after_seconds", [0.2, 0.5, 0.8, 1.1, 1.6, 2.2])
def test_nothing_is_left_when_the_start_was_killed_between_its_steps(other: Layout, after_seconds: float) -> None:
    up = command(other, "up")
    deadline = time.monotonic() + 60
    while not other.root.exists():
        assert time.monotonic() < deadline
    time.sleep(after_seconds)  # the moment itself is what varies
    up.kill()
    up.wait()
    had = inhabitants(other)
    end(other)
    assert leftovers(other, had) == []


def test_nothing_is_left_when_it_is_ended_while_it_starts(other: Layout) -> None:
    up = command(other, "up")
    lines_until(up, "machines ")
    had = inhabitants(other)
    assert "a start that is under way" in end(other)
    assert up.wait(10) == -signal.SIGKILL
    assert leftovers(other, had) == []


def test_a_start_after_a_killed_one_begins_anew_and_a_second_finds_it_running(other: Layout) -> None:
    killed = command(other, "up")
    lines_until(killed, "etcd is")
    killed.kill()
    killed.wait()
    up = command(other, "up")
    said = up.communicate(timeout=START_SECONDS)[0]
    assert (up.returncode, "ending what an earlier start left" in said) == (0, True), said
    again = command(other, "up")
    said = again.communicate(timeout=START_SECONDS)[0]
    assert (again.returncode, "already running" in said) == (0, True), said
    dead = read_record(other, "coredns")
    assert dead is not None
    os.kill(dead.pid, signal.SIGKILL)
    eventually(lambda: read_record(other, "coredns") is None)
    mended = command(other, "up")
    said = mended.communicate(timeout=START_SECONDS)[0]
    assert (mended.returncode, "coredns had ended and is started again" in said) == (0, True), said
    had = inhabitants(other)
    end(other)
    assert leftovers(other, had) == []
    assert "nothing was running" in end(other)


@pytest.mark.parametrize("victim", [CONTROL, "node-a", "containerd-node-a", "kubelet-node-b", "kube-apiserver"])
def test_nothing_is_left_when_something_of_it_was_killed_while_a_pod_ran(other: Layout, victim: str) -> None:
    folders = foreign_folders()
    cluster = running.up(other, print)
    pods = Pods(Target(other.kubeconfig, PAUSE_IMAGE, cluster), "victims")
    pods.create_namespace()
    pods.create(
        "runs",
        "",
        nodeName="node-a",
        base={"command": ["/pause"], "volumeMounts": [{"name": "v", "mountPath": "/v"}]},
        volumes=[{"name": "v", "emptyDir": {"medium": "Memory"}}],
    )
    pods.in_phase("runs", "Running")
    had = inhabitants(other)
    identity = read_record(other, victim)
    assert identity is not None
    os.kill(identity.pid, signal.SIGKILL)
    end(other)
    assert leftovers(other, had) == []
    assert foreign_folders() == folders


def test_it_leaves_the_kernels_settings_as_they_were(own_cluster: Cluster) -> None:
    """A kubelet sets these; it found them set, in its own machine only."""
    values = {n: Path(f"/proc/sys/{n}").read_text().strip() for n in ("vm/overcommit_memory", "kernel/panic")}
    assert values != {"vm/overcommit_memory": "1", "kernel/panic": "10"}


def test_a_container_outlives_its_kubelet_and_its_node_is_given_up_within_seconds(
    own_cluster: Cluster, pods: Pods
) -> None:
    soon = [
        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}
    ]
    pods.create("survives", "while true; do date +%s; sleep 0.2; done", nodeName="node-b", tolerations=soon)
    pods.in_phase("survives", "Running")
    own_cluster.stop_part("kubelet-node-b")
    try:
        started = time.monotonic()
        deleted = eventually(lambda: pods.read("survives").metadata.deletion_timestamp)
        assert deleted
        assert time.monotonic() - started < NODE_LOST_SECONDS
        assert "date" in _processes_on(own_cluster, "node-b")
    finally:
        own_cluster.start_part("kubelet-node-b")
    eventually(lambda: "survives" not in [p.metadata.name for p in pods.core.list_namespaced_pod(pods.namespace).items])


def test_a_node_that_lost_its_power_comes_back_with_its_images(own_cluster: Cluster, pods: Pods) -> None:
    own_cluster.stop_machine("node-a")
    own_cluster.start_node("node-a")
    pods.create("after", "echo back", nodeName="node-a")
    assert pods.terminated("after").exit_code == 0
    assert pods.log("after") == "back\n"


@pytest.mark.parametrize("part", ["kube-apiserver", "etcd"])
def test_running_pods_do_not_notice_that_the_control_plane_was_restarted(
    own_cluster: Cluster, pods: Pods, part: str
) -> None:
    pods.create("goes-on", "sleep 10; echo done")
    pods.in_phase("goes-on", "Running")
    own_cluster.stop_part(part)
    own_cluster.start_part(part)
    own_cluster.start_part("kube-apiserver")
    assert pods.terminated("goes-on").exit_code == 0
    assert pods.log("goes-on") == "done\n"


def _processes_on(cluster: Cluster, machine: str) -> str:
    return run_on(cluster.layout, machine, ["ps", "-A", "-o", "args"]).stdout
