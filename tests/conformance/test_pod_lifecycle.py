"""Pods from creation to removal, through the client that Airflow uses."""

from __future__ import annotations

import time

import pytest
from conformance_helpers import eventually
from kubernetes import client

from updraft.kubernetes.termination import pre_stop


def test_a_pod_runs_to_success_with_log_exit_code_and_conditions(cluster):
    created = cluster.create(cluster.pod("one", "echo hello; echo world >&2"))
    assert (created.status.phase, created.metadata.namespace) == ("Pending", cluster.namespace)
    assert created.metadata.uid
    assert created.metadata.creation_timestamp

    pod = cluster.finished("one")

    state = pod.status.container_statuses[0].state.terminated
    assert (pod.status.phase, state.exit_code, state.reason) == ("Succeeded", 0, "Completed")
    assert state.started_at.tzinfo is not None
    assert state.finished_at >= state.started_at
    assert sorted(cluster.log("one").splitlines()) == ["hello", "world"]
    conditions = {c.type: (c.status, c.reason) for c in pod.status.conditions}
    assert conditions["PodScheduled"] == ("True", None)
    assert conditions["Initialized"][0] == "True"
    assert conditions["Ready"] == ("False", "PodCompleted")


def test_an_exit_code_is_the_programs_own(cluster):
    cluster.create(cluster.pod("ends", "exit 3"))
    pod = cluster.finished("ends")
    state = pod.status.container_statuses[0].state.terminated
    assert (pod.status.phase, state.exit_code, state.reason) == ("Failed", 3, "Error")


# In a container of a real cluster the program has pid 1 and is immune to its own signals. `$$$$` is `$$` escaped.
@pytest.mark.parametrize(("script", "code"), [("kill -9 $$$$", 137), ("kill -TERM $$$$", 143)])
def test_a_program_ended_by_a_signal_has_128_plus_its_number(local_cluster, script, code):
    cluster = local_cluster
    cluster.create(cluster.pod("ends", script))
    pod = cluster.finished("ends")
    state = pod.status.container_statuses[0].state.terminated
    assert (pod.status.phase, state.exit_code, state.reason) == ("Failed", code, "Error")


def test_a_program_that_does_not_exist_is_a_start_error(cluster):
    cluster.create(cluster.pod("absent", "", base={"command": ["no-such-program"]}))
    pod = cluster.finished("absent")
    state = pod.status.container_statuses[0].state.terminated
    assert (pod.status.phase, state.exit_code, state.reason) == ("Failed", 128, "StartError")
    assert "no-such-program" in state.message


def test_creating_the_same_name_twice_is_a_conflict(cluster):
    cluster.create(cluster.pod("twin", "sleep 60"))
    with pytest.raises(client.ApiException) as caught:
        cluster.create(cluster.pod("twin", "sleep 60"))
    assert caught.value.status == 409
    assert '"reason":"AlreadyExists"' in caught.value.body.replace(" ", "")


def test_deletion_marks_then_terminates_then_removes(cluster):
    script = 'trap "echo saving; exit 7" TERM; echo ready; while :; do sleep 0.1; done'
    cluster.create(cluster.pod("graceful", script))
    cluster.wait_phase("graceful", "Running")
    cluster_log(cluster, "graceful", "ready")

    marked = cluster.core.delete_namespaced_pod("graceful", cluster.namespace, grace_period_seconds=120)

    assert marked.metadata.deletion_timestamp is not None
    assert marked.metadata.deletion_grace_period_seconds == 120  # and it does not take them
    eventually(lambda: cluster.gone("graceful"))


def test_a_program_that_ignores_sigterm_is_killed_after_the_grace_period(cluster):
    cluster.create(cluster.pod("stubborn", 'trap "" TERM; echo ready; while :; do sleep 0.1; done'))
    cluster_log(cluster, "stubborn", "ready")
    before = time.monotonic()
    cluster.core.delete_namespaced_pod("stubborn", cluster.namespace, body={"gracePeriodSeconds": 1})
    eventually(lambda: cluster.gone("stubborn"), within_seconds=25)  # of the 30 that its pod would give it
    assert time.monotonic() - before >= 0.9


SAVES = """
import signal, sys, time
def leave(*_):
    print("saving", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("how", ["deleted", "evicted"])
def test_a_program_below_its_shell_is_told_and_has_its_time(cluster, how):
    pod = cluster.pod(how, 'python3 -c "$PROGRAM"; echo code $?; exit 3', terminationGracePeriodSeconds=120)
    pod["spec"]["containers"][0] |= {"lifecycle": {"preStop": pre_stop()}, "env": [{"name": "PROGRAM", "value": SAVES}]}
    cluster.create(pod)
    cluster_log(cluster, how, "ready")
    log = cluster.core.read_namespaced_pod_log(how, cluster.namespace, follow=True, _preload_content=False)

    if how == "deleted":
        cluster.core.delete_namespaced_pod(how, cluster.namespace)
    else:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": how}}
        cluster.core.create_namespaced_pod_eviction(how, cluster.namespace, body)

    assert log.read().decode().splitlines() == ["ready", "saving", "code 75"]
    eventually(lambda: cluster.gone(how))


def test_deleting_a_finished_pod_removes_it_at_once(cluster):
    cluster.create(cluster.pod("done", "true"))
    cluster.finished("done")
    cluster.core.delete_namespaced_pod("done", cluster.namespace, body={})
    assert cluster.gone("done")


def test_a_finished_pod_stays_readable_until_it_is_deleted(cluster):
    cluster.create(cluster.pod("kept", "echo still here"))
    cluster.finished("kept")
    assert cluster.log("kept") == "still here\n"


def test_collections_are_deleted_by_label(cluster):
    for i, team in enumerate(["a", "a", "b"]):
        cluster.create(cluster.pod(f"many-{i}", "sleep 60", labels={"team": team}))
    cluster.core.delete_collection_namespaced_pod(cluster.namespace, label_selector="team=a", grace_period_seconds=0)
    eventually(lambda: cluster.gone("many-0") and cluster.gone("many-1"))
    assert not cluster.gone("many-2")


def test_a_pod_that_runs_too_long_fails_with_deadline_exceeded(cluster):
    cluster.create(cluster.pod("slow", "sleep 60", activeDeadlineSeconds=1, terminationGracePeriodSeconds=1))
    pod = cluster.finished("slow")
    assert (pod.status.phase, pod.status.reason) == ("Failed", "DeadlineExceeded")


def test_dependents_go_with_their_owner(cluster):
    owner = cluster.create(cluster.pod("owner", "sleep 60"))
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "owner", "uid": owner.metadata.uid}
    body = {"metadata": {"name": "dependent", "ownerReferences": [reference]}, "stringData": {"k": "v"}}
    cluster.core.create_namespaced_secret(cluster.namespace, body)
    cluster.core.delete_namespaced_pod("owner", cluster.namespace, grace_period_seconds=0)

    def secrets():
        return cluster.core.list_namespaced_secret(cluster.namespace, field_selector="metadata.name=dependent").items

    eventually(lambda: not secrets(), within_seconds=30)


def cluster_log(cluster, name, text):
    """Waits until the log shows `text`."""

    def shown():
        try:
            return text in cluster.log(name)
        except client.ApiException:  # not started yet
            return False

    eventually(shown)
