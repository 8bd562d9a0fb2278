"""What is special to the local node: translation, isolation of the environment, counting, faults, restarts."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest
import urllib3
from conformance_helpers import asked, eventually, programs
from kubernetes import client, watch


def post_fault(cluster, **fault):
    return cluster.faults("POST", fault)


def ask(cluster, path):
    headers = {"Authorization": f"Bearer {cluster.node.token}"}
    return urllib3.PoolManager().request("GET", f"{cluster.node.url}{path}", headers=headers, retries=False)


def logged(cluster, name):
    cluster.finished(name)
    return cluster.log(name)


def test_nothing_of_the_hosts_environment_reaches_a_container(local_cluster):
    local_cluster.create(local_cluster.pod("bare", "env", base={"env": [{"name": "MINE", "value": "yes"}]}))
    lines = dict(line.split("=", 1) for line in logged(local_cluster, "bare").splitlines())
    allowed = {
        "PATH",
        "HOME",
        "TMPDIR",
        "HOSTNAME",
        "LANG",
        "PWD",
        "GLOO_SOCKET_IFNAME",
        "MINE",
        "OLDPWD",
        "SHLVL",
        "_",
    }
    allowed |= {"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "AWS_CA_BUNDLE", "TZ"}
    allowed |= {"NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"}
    assert set(lines) <= allowed
    assert (lines["MINE"], lines["PATH"], lines["HOSTNAME"]) == ("yes", "/usr/bin:/bin", "bare")
    assert lines["HOME"] != os.environ.get("HOME")


def test_paths_ports_and_names_of_the_gang_are_translated(local_cluster):
    cluster = local_cluster
    body = {"metadata": {"name": "gang"}, "spec": {"clusterIP": "None", "ports": [{"port": 29500}]}}
    cluster.core.create_namespaced_service(cluster.namespace, body)
    mounts = {"volumeMounts": [{"name": "job", "mountPath": "/updraft"}], "workingDir": "/updraft/code"}
    env = {
        "MASTER_ADDR": f"job-1.gang.{cluster.namespace}.svc.cluster.local",
        "MASTER_PORT": "29500",
        "TRACKING": "http://127.0.0.1:5000",
        "OUT": "/updraft/result/file",
    }
    base = {**mounts, "env": [{"name": k, "value": v} for k, v in env.items()]}
    script = 'mkdir -p /updraft/result; echo x > "$OUT"; pwd; cat /updraft/result/file'
    for number in (1, 2):
        pod = cluster.pod(f"job-{number}", f"env; {script}", base=base, hostname=f"job-{number}", subdomain="gang")
        pod["spec"]["containers"][0]["ports"] = [{"containerPort": 5000}]
        pod["spec"]["volumes"] = [{"name": "job", "emptyDir": {}}]
        cluster.create(pod)
    seen = []
    for number in (1, 2):
        text = logged(cluster, f"job-{number}")
        seen.append(dict(line.split("=", 1) for line in text.splitlines() if "=" in line))
        assert text.endswith("/code\nx\n")
    assert seen[0]["MASTER_ADDR"] == seen[1]["MASTER_ADDR"] == "127.0.0.1"
    assert seen[0]["MASTER_PORT"] == seen[1]["MASTER_PORT"] != "29500"
    assert seen[0]["TRACKING"] != seen[1]["TRACKING"]
    assert seen[0]["OUT"] != seen[1]["OUT"]


def test_an_unknown_image_waits_and_lists_those_that_are_known(local_cluster):
    body = local_cluster.pod("strange", "true")
    body["spec"]["containers"][0]["image"] = "updraft/learner-pytroch:2.15"
    local_cluster.create(body)

    def waiting():
        statuses = local_cluster.read("strange").status.container_statuses
        state = statuses and statuses[0].state.waiting
        return state if state and state.reason == "ErrImagePull" else None

    assert "updraft/shell:1" in eventually(waiting).message
    eventually(
        lambda: local_cluster.read("strange").status.container_statuses[0].state.waiting.reason == "ImagePullBackOff"
    )


def test_an_image_that_is_not_built_starts_once_it_is(local_cluster):
    body = local_cluster.pod("patient", "python3")
    body["spec"]["containers"][0] |= {"image": "updraft/unbuilt:1", "command": ["python3"]}
    local_cluster.create(body)

    def told_how():
        statuses = local_cluster.read("patient").status.container_statuses
        return statuses and "updraft images build updraft/unbuilt:1" in statuses[0].state.waiting.message

    eventually(told_how)
    folder = local_cluster.node.folder / "images" / "updraft-unbuilt-1"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python3").write_text("#!/bin/sh\necho python of the environment\n")
    (folder / "bin" / "python3").chmod(0o755)
    (folder / ".updraft-ready").write_text("digest")
    assert logged(local_cluster, "patient") == "python of the environment\n"


def test_a_pod_that_does_not_fit_waits_with_a_reason_and_runs_when_there_is_room(local_cluster):
    cluster = local_cluster
    big = {"resources": {"requests": {"cpu": "3", "memory": "64Mi"}}}
    cluster.create(cluster.pod("first", "sleep 60", base=big))
    cluster.wait_phase("first", "Running")
    cluster.create(cluster.pod("second", "true", base=big))

    def refused():
        conditions = cluster.read("second").status.conditions or []
        return next((c for c in conditions if c.type == "PodScheduled" and c.status == "False"), None)

    condition = eventually(refused)
    assert (condition.reason, condition.message) == (
        "Unschedulable",
        "0/1 nodes are available: 1 Insufficient cpu.",
    )
    events = cluster.core.list_namespaced_event(cluster.namespace, field_selector="involvedObject.name=second")
    assert [e.reason for e in events.items] == ["FailedScheduling"]
    cluster.core.delete_namespaced_pod("first", cluster.namespace, grace_period_seconds=1)
    assert cluster.finished("second").status.phase == "Succeeded"


def test_gpus_are_counted_and_assigned(local_cluster):
    cluster = local_cluster
    one = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    selector = {"updraft.dev/gpu-type": "nvidia-a100"}
    for name in ("a", "b"):
        cluster.create(cluster.pod(name, 'echo "$NVIDIA_VISIBLE_DEVICES"; sleep 60', base=one, nodeSelector=selector))
        cluster.wait_phase(name, "Running")
    devices = {eventually(lambda name=name: cluster.log(name)) for name in ("a", "b")}
    assert devices == {"0\n", "1\n"}
    cluster.create(cluster.pod("c", "true", base=one))
    cluster.create(cluster.pod("d", "true", nodeSelector={"updraft.dev/gpu-type": "h100"}))

    def refusal(name):
        conditions = cluster.read(name).status.conditions or []
        return conditions and conditions[0].message

    assert eventually(lambda: refusal("c")) == "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    mismatch = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
    assert eventually(lambda: refusal("d")) == mismatch


def test_a_program_over_its_memory_limit_is_oom_killed(local_cluster):
    script = "x=$(head -c 90000000 /dev/zero | tr '\\0' x); sleep 30; echo ${#x}"
    local_cluster.create(local_cluster.pod("greedy", script, base={"resources": {"limits": {"memory": "48Mi"}}}))
    state = local_cluster.finished("greedy").status.container_statuses[0].state.terminated
    assert (state.exit_code, state.reason) == (137, "OOMKilled")


def test_what_a_program_leaves_behind_is_killed_with_it(local_cluster):
    local_cluster.create(local_cluster.pod("littering", "sleep 987 & echo $!; setsid sleep 987 & echo $!; sleep 0.3"))
    for pid in map(int, logged(local_cluster, "littering").split()):
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_eviction_fails_the_pod_with_its_reason(local_cluster):
    local_cluster.create(local_cluster.pod("victim", "sleep 60"))
    local_cluster.wait_phase("victim", "Running")
    post_fault(local_cluster, kind="evict", namespace=local_cluster.namespace, pod="victim")
    pod = local_cluster.finished("victim")
    assert (pod.status.phase, pod.status.reason) == ("Failed", "Evicted")


def test_errors_are_answered_as_often_as_asked_for(local_cluster):
    path = f"/api/v1/namespaces/{local_cluster.namespace}/pods"
    post_fault(local_cluster, kind="api_errors", status=429, count=2, retry_after_seconds=7, path=path)
    answers = [ask(local_cluster, path) for _ in range(3)]
    assert [a.status for a in answers] == [429, 429, 200]
    assert answers[0].headers["Retry-After"] == "7"


def test_lag_delays_answers(local_cluster):
    post_fault(local_cluster, kind="lag", seconds=0.3)
    before = time.monotonic()
    ask(local_cluster, "/api/v1/nodes")
    assert time.monotonic() - before >= 0.3
    assert post_fault(local_cluster, kind="lag", seconds=0)["lag_seconds"] == 0


def test_watches_break_off_on_request(local_cluster):
    cluster = local_cluster
    headers = {"Authorization": f"Bearer {cluster.node.token}"}
    url = f"{cluster.node.url}/api/v1/namespaces/{cluster.namespace}/pods?watch=True&timeoutSeconds=30"
    stream = urllib3.PoolManager().request("GET", url, headers=headers, preload_content=False, retries=False)
    post_fault(cluster, kind="drop_watches")
    with pytest.raises(urllib3.exceptions.ProtocolError):
        stream.read()


def test_a_wrong_fault_is_422(local_cluster):
    headers = {"Authorization": f"Bearer {local_cluster.node.token}"}
    answer = urllib3.PoolManager().request(
        "POST", f"{local_cluster.node.url}/faults", json={"kind": "lag", "seconds": -1}, headers=headers
    )
    assert (answer.status, answer.json()["details"]["causes"][0]["field"]) == (422, "seconds")


def test_pods_outlive_a_killed_node_and_are_taken_over(own_node):
    cluster = own_node
    go = cluster.node.folder / "go"
    script = f"echo before; while [ ! -e {go} ]; do sleep 0.1; done; echo after; exit 5"
    version = cluster.create(cluster.pod("survivor", script)).metadata.resource_version
    cluster.create(cluster.pod("short", f"while [ ! -e {go} ]; do sleep 0.1; done"))
    for name in ("survivor", "short"):
        cluster.wait_phase(name, "Running")

    cluster.node.kill()
    go.touch()
    cluster.node.restart()

    pod = cluster.finished("survivor")
    assert pod.status.container_statuses[0].state.terminated.exit_code == 5
    assert pod.status.container_statuses[0].restart_count == 0
    assert cluster.log("survivor") == "before\nafter\n"
    assert cluster.finished("short").status.phase == "Succeeded"
    with pytest.raises(client.ApiException) as caught:
        next(watch.Watch().stream(cluster.core.list_namespaced_pod, "default", resource_version=version))
    assert caught.value.status == 410


def test_logs_are_whole_and_sidecars_kept_however_often_the_node_dies(own_node, tmp_path):
    cluster, go = own_node, tmp_path / "go"
    count = f"i=0; until [ -e {go} ]; do i=$((i+1)); echo $i; sleep 0.01; done; echo last; exit 6"
    side = {
        "name": "side",
        "image": cluster.image,
        "command": ["/bin/sh", "-c", "sleep 300"],
        "restartPolicy": "Always",
    }
    body = cluster.pod("counting", count, initContainers=[side], terminationGracePeriodSeconds=1)
    cluster.create(body)
    cluster.wait_phase("counting", "Running")
    eventually(lambda: cluster.log("counting", container="base"))
    seen = []
    for _ in range(2):
        cluster.node.kill()
        cluster.node.restart()
        pod = cluster.read("counting")
        assert (pod.status.phase, pod.status.container_statuses[0].restart_count) == ("Running", 0)
        seen.append(len(cluster.log("counting", container="base").splitlines()))

    sidecar = next(p for p in programs(cluster.node.state_dir) if "300" in asked(p, psutil.Process.cmdline))
    cluster.node.kill()
    sidecar.kill()
    cluster.node.restart()
    eventually(lambda: cluster.read("counting").status.init_container_statuses[0].restart_count == 1)
    go.touch()

    pod = cluster.finished("counting")
    assert pod.status.container_statuses[0].state.terminated.exit_code == 6
    assert pod.status.init_container_statuses[0].last_state.terminated.exit_code == 137
    *numbers, last = cluster.log("counting", container="base").splitlines()
    assert (numbers, last) == ([str(n) for n in range(1, len(numbers) + 1)], "last")
    assert 0 < seen[0] < seen[1] < len(numbers)


def test_every_container_runs_once_however_often_the_node_dies(own_node, tmp_path):
    ran = tmp_path / "ran"
    names = [f"once-{i}" for i in range(12)]
    for i, name in enumerate(names):
        own_node.create(own_node.pod(name, f"echo {name} >> {ran}; sleep 0.2"))
        if i % 4 == 3:  # in the middle of launching
            own_node.node.kill()
            own_node.node.restart()
    for name in names:
        assert own_node.finished(name).status.phase == "Succeeded"
    assert sorted(ran.read_text().split()) == sorted(names)


def test_a_deletion_goes_on_after_a_restart(own_node):
    own_node.create(own_node.pod("leaving", 'trap "" TERM; while :; do sleep 0.1; done'))
    own_node.wait_phase("leaving", "Running")
    own_node.core.delete_namespaced_pod("leaving", "default", grace_period_seconds=2)
    own_node.node.kill()
    own_node.node.restart()
    eventually(lambda: own_node.gone("leaving"))


def test_sigterm_ends_every_container(own_node):
    own_node.create(own_node.pod("one", "sleep 60"))
    own_node.create(own_node.pod("two", 'trap "" TERM; while :; do sleep 0.1; done'))
    for name in ("one", "two"):
        own_node.wait_phase(name, "Running")
    assert len(programs(own_node.node.state_dir)) >= 2
    assert own_node.node.stop() == 0
    eventually(lambda: not programs(own_node.node.state_dir))


def leftovers_killed(state_dir):
    command = [sys.executable, "-m", "updraft_localnode.leftovers", str(state_dir)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_what_a_dead_node_left_can_be_killed(own_node):
    own_node.create(own_node.pod("orphan", "sleep 300 & sleep 300"))
    own_node.wait_phase("orphan", "Running")
    own_node.node.kill()
    assert programs(own_node.node.state_dir)
    assert leftovers_killed(own_node.node.state_dir) == 1
    assert not programs(own_node.node.state_dir)
    assert leftovers_killed(own_node.node.state_dir) == 0


def test_a_second_node_on_the_same_state_is_refused(own_node):
    with pytest.raises(AssertionError, match="in use by another local node"):
        own_node.node.restart()


def test_many_pods_at_once(own_node):
    for i in range(30):
        own_node.create(own_node.pod(f"many-{i}", "echo x"))
    eventually(
        lambda: sum(p.status.phase == "Succeeded" for p in own_node.core.list_namespaced_pod("default").items) == 30,
        within_seconds=40,
    )
