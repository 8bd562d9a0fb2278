"""Pods that really fail on a cluster, and the row of the failure catalogue that each of them meets."""

from __future__ import annotations

import json

import pytest
from conformance_helpers import eventually

from updraft.kubernetes.gate import gated, started_probe
from updraft.kubernetes.pod_status import pod_facts
from updraft.lifecycle import State
from updraft.lifecycle.membership import Membership
from updraft.recovery.facts import stage_of, with_last_seen
from updraft.recovery.outcome import Action, FailureClass, judge
from updraft_learner import contract


def facts(cluster, name):
    raw = cluster.core.read_namespaced_pod(name, cluster.namespace, _preload_content=False).data
    return pod_facts(json.loads(raw))


def seen_since(cluster, name, version):
    """What a watch is told of a pod that is gone: a real cluster shows its program's end for a moment only."""
    query = {"field_selector": f"metadata.name={name}", "resource_version": version, "watch": True}
    stream = cluster.core.list_namespaced_pod(cluster.namespace, **query, _preload_content=False)
    told = []
    for event in map(json.loads, stream):
        told.append(pod_facts(event["object"]))
        if event["type"] == "DELETED":
            break
    stream.close()
    return told


def judged(cluster, *names, learners=None, marked=False, tails=None):
    """The outcome of learners whose pods have these names; those that are gone are not given."""
    everyone = range(1, (learners or len(names)) + 1)
    pods = [facts(cluster, name) for name in names]
    markers = {n: {"t": 1.0} if marked else None for n in everyone}
    return judge(pods, membership=Membership.first(len(everyone)), markers=markers, tails=tails or {}, memory="48 MiB")


def learner(cluster, name, script, *, number=1, sidecar=None, **changes):
    """A pod with the containers of a learner; a sidecar only where there is a script for it."""
    body = cluster.pod(name, script, labels={"updraft.dev/learner": str(number)}, **changes)
    storing = {"name": "updraft-sidecar", "image": cluster.image, "command": ["/bin/sh", "-c", sidecar]}
    body["spec"]["initContainers"] = [] if sidecar is None else [{**storing, "restartPolicy": "Always"}]
    cluster.create(body)
    return name


def label_of(outcome):
    assert outcome is not None
    return outcome.label, outcome.cause, outcome.action


def test_done_needs_a_marker_of_everything_stored(cluster):
    learner(cluster, "good", "exit 0")
    cluster.finished("good")
    assert label_of(judged(cluster, "good", marked=True)) == ("done", FailureClass.DONE, Action.NONE)
    outcome = judged(cluster, "good")
    assert label_of(outcome) == ("results.not_stored", FailureClass.INFRASTRUCTURE, Action.RELAUNCH)
    assert outcome.node


def test_the_programs_failure_is_the_programs(cluster):
    learner(cluster, "bad", "echo no labels; exit 3")
    cluster.finished("bad")
    outcome = judged(cluster, "bad", tails={1: cluster.log("bad", container="base").splitlines()})
    assert label_of(outcome) == ("program.exit", FailureClass.PROGRAM, Action.RELAUNCH)
    assert outcome.reason == "learner 1: the program exited with 3: no labels"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (64, ("stage.configuration", FailureClass.CONFIGURATION, Action.STOP)),
        (65, ("stage.data", FailureClass.DATA, Action.STOP)),
        (66, ("checkpoint.damaged", FailureClass.INFRASTRUCTURE, Action.OLDER_CHECKPOINT)),
        (74, ("store.unreachable", FailureClass.INFRASTRUCTURE, Action.RELAUNCH)),
        (1, ("stage.failed", FailureClass.INFRASTRUCTURE, Action.RELAUNCH)),
    ],
)
def test_staging_ends_with_the_class_of_its_exit_code(cluster, code, expected):
    waits_for_staging(cluster, f"staged-{code}", f"{code} because")
    cluster.finished(f"staged-{code}")
    outcome = judged(cluster, f"staged-{code}")  # by the pod alone, whoever reads its log
    assert label_of(outcome) == expected
    assert outcome.reason == "learner 1: staging failed: because"


def test_a_program_that_waits_for_staging_runs_and_has_not_started(cluster):
    waits_for_staging(cluster, "waiting", None)
    eventually(lambda: facts(cluster, "waiting").main.state == "running", within_seconds=40)
    assert stage_of([facts(cluster, "waiting")], Membership.first(1))[0] is State.DOWNLOADING
    assert not facts(cluster, "waiting").runs


def test_a_program_runs_once_everything_is_staged(cluster):
    waits_for_staging(cluster, "staged", "", "sleep 600")
    eventually(lambda: facts(cluster, "staged").runs, within_seconds=40)
    assert stage_of([facts(cluster, "staged")], Membership.first(1))[0] is State.PROCESSING


def waits_for_staging(cluster, name, told, command="echo never"):
    """A learner's program with the platform's gate before it, and a sidecar that stages: `told` is the reason why it
    cannot, None lets it go on for ever."""
    job = {"name": "job", "mountPath": contract.ROOT_DIR}
    how = {None: "", "": f"mkdir -p {contract.CODE_DIR}; touch {contract.STAGED_FILE};"}
    fail = f"echo '{told}' > {contract.STAGING_FAILED_FILE};"
    script = f"trap 'exit 0' TERM; mkdir -p {contract.IO_DIR}; {how.get(told, fail)} while :; do sleep 0.1; done"
    base = {
        "args": gated(command),
        "command": ["/bin/sh", "-c"],
        "startupProbe": started_probe(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [job],
    }
    body = cluster.pod(name, "", base=base, terminationGracePeriodSeconds=1)
    sidecar = {"name": "updraft-sidecar", "image": cluster.image, "command": ["/bin/sh", "-c", script]}
    body["spec"]["initContainers"] = [{**sidecar, "restartPolicy": "Always", "volumeMounts": [job]}]
    body["spec"]["volumes"] = [{"name": "job", "emptyDir": {}}]
    cluster.create(body)


def test_a_full_disk_in_staging_is_the_nodes(cluster):
    waits_for_staging(cluster, "full", "74 no space left on the disk of the pod while writing x")
    cluster.finished("full")
    assert label_of(judged(cluster, "full")) == (
        "node.disk_full",
        FailureClass.INFRASTRUCTURE,
        Action.ELSEWHERE,
    )


def test_a_pod_past_its_deadline_is_told_so(cluster):
    cluster.create(cluster.pod("slow", "sleep 60", activeDeadlineSeconds=1, terminationGracePeriodSeconds=1))
    cluster.finished("slow")
    assert label_of(judged(cluster, "slow")) == ("pod.deadline", FailureClass.DEADLINE, Action.STOP)


def test_an_image_without_the_command_is_a_configuration_error(cluster):
    cluster.create(cluster.pod("absent", "", base={"command": ["no-such-program"]}))
    cluster.finished("absent")
    outcome = judged(cluster, "absent")
    assert label_of(outcome) == ("container.start", FailureClass.CONFIGURATION, Action.STOP)
    assert "no-such-program" in outcome.reason


def test_a_container_that_cannot_be_configured_is_a_configuration_error(cluster):
    missing = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "nowhere", "key": "k"}}}]
    cluster.create(cluster.pod("unconfigured", "true", base={"env": missing}))
    outcome = eventually(lambda: judged(cluster, "unconfigured"))
    assert label_of(outcome) == ("container.config", FailureClass.CONFIGURATION, Action.STOP)
    assert "nowhere" in outcome.reason


def test_a_pod_that_somebody_deletes_is_gone(cluster):
    learner(cluster, "deleted", "sleep 60", terminationGracePeriodSeconds=0)
    cluster.wait_phase("deleted", "Running")
    assert judged(cluster, "deleted") is None
    cluster.core.delete_namespaced_pod("deleted", cluster.namespace, grace_period_seconds=0)
    eventually(lambda: cluster.gone("deleted"))
    assert label_of(judged(cluster, learners=1)) == ("pod.gone", FailureClass.INFRASTRUCTURE, Action.RELAUNCH)
    assert label_of(judged(cluster, learners=1, marked=True)) == (
        "pod.unseen",
        FailureClass.INFRASTRUCTURE,
        Action.RELAUNCH,
    )


def test_what_a_program_says_as_its_pod_is_deleted_does_not_count(cluster):
    stores = "trap 'sleep 5; exit 0' TERM; while true; do sleep 0.1; done"
    leaves = "trap 'exit 3' TERM; echo ready; while true; do sleep 0.1; done"
    learner(cluster, "told", leaves, sidecar=stores, terminationGracePeriodSeconds=30)
    cluster.wait_phase("told", "Running")
    eventually(lambda: "ready" in cluster.log("told", container="base"))
    version = cluster.read("told").metadata.resource_version
    cluster.core.delete_namespaced_pod("told", cluster.namespace)
    eventually(lambda: cluster.gone("told"))
    last = [found for found in seen_since(cluster, "told", version) if found.main.exit_code is not None][-1]
    gone = with_last_seen([], [last])
    outcome = judge(gone, membership=Membership.first(1), markers={1: None}, tails={}, memory="48 MiB")
    assert label_of(outcome) == ("pod.deleted", FailureClass.INFRASTRUCTURE, Action.RELAUNCH)
    assert last.main.exit_code == 3


def test_a_killed_learner_explains_its_peers_lost_connection(local_cluster):
    cluster = local_cluster
    learner(cluster, "first", "sleep 60", number=1)
    learner(cluster, "second", "exit 1", number=2)
    cluster.finished("second")
    cluster.wait_phase("first", "Running")
    cluster.fault("kill_container", namespace=cluster.namespace, pod="first")
    cluster.finished("first")
    head = "Traceback (most recent call last):"
    lost = {2: [head, "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:58054"]}
    assert label_of(judged(cluster, "first", "second", tails=lost)) == (
        "container.killed",
        FailureClass.INFRASTRUCTURE,
        Action.RELAUNCH,
    )


def test_a_program_over_its_memory_limit_is_told_what_to_raise(cluster):
    script = "x=$(head -c 90000000 /dev/zero | tr '\\0' x); sleep 30; echo ${#x}"
    cluster.create(cluster.pod("greedy", script, base={"resources": {"limits": {"memory": "48Mi"}}}))
    cluster.finished("greedy")
    outcome = judged(cluster, "greedy")
    assert label_of(outcome) == ("program.out_of_memory", FailureClass.PROGRAM, Action.RELAUNCH)
    assert "48 MiB" in outcome.reason
    assert "resources.memory" in outcome.reason


def test_an_evicted_learner_is_the_nodes_fault(local_cluster):
    learner(local_cluster, "victim", "sleep 60")
    local_cluster.wait_phase("victim", "Running")
    local_cluster.fault("evict", namespace=local_cluster.namespace, pod="victim")
    local_cluster.finished("victim")
    outcome = judged(local_cluster, "victim")
    assert label_of(outcome) == ("node.evicted", FailureClass.INFRASTRUCTURE, Action.ELSEWHERE)
    assert outcome.node == local_cluster.read("victim").spec.node_name


def test_an_image_that_does_not_exist_is_a_configuration_error(cluster):
    body = cluster.pod("strange", "true")
    body["spec"]["containers"][0]["image"] = "updraft/learner-pytroch:2.15"
    cluster.create(body)
    outcome = eventually(lambda: judged(cluster, "strange"))
    assert "updraft/learner-pytroch:2.15" in outcome.reason
    if "no such host" in outcome.reason:  # a real cluster that reaches no registry
        assert label_of(outcome) == ("image.registry_unknown", FailureClass.INFRASTRUCTURE, Action.ELSEWHERE)
        return
    assert label_of(outcome) == ("image.missing", FailureClass.CONFIGURATION, Action.STOP)
    if cluster.node is not None:
        assert "updraft/shell:1" in outcome.reason


def test_a_registry_that_does_not_answer_is_not_the_jobs_fault(lab):
    lab.fault("pull_fails", count=1, for_seconds=60)
    lab.create(lab.pod("patient", "true"))
    outcome = eventually(lambda: judged(lab, "patient"))
    assert label_of(outcome) == ("image.unreachable", FailureClass.INFRASTRUCTURE, Action.ELSEWHERE)


def test_a_learner_on_a_lost_node_is_lost_although_it_seems_to_run(lab):
    learner(lab, "far", "sleep 60", terminationGracePeriodSeconds=60)
    lab.wait_phase("far", "Running")
    lab.fault("lose_node", delete_after_seconds=0)
    outcome = eventually(lambda: judged(lab, "far"))
    assert label_of(outcome) == ("node.lost", FailureClass.INFRASTRUCTURE, Action.ELSEWHERE)
    assert facts(lab, "far").main.state == "running"
