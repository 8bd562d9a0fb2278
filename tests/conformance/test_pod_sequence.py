"""Init containers, sidecars and volumes: the order in which a kubelet runs them."""

from __future__ import annotations

import base64

from conformance_helpers import eventually

ORDER = {"name": "shared", "mountPath": "/shared"}
# A sidecar counts as started before its shell has read its script.
TRAPPED = "touch /shared/trapped"
UNTIL_TRAPPED = "until [ -e /shared/trapped ]; do sleep 0.1; done"


def container(cluster, name, script, **extra):
    return {
        "name": name,
        "image": cluster.image,
        "command": ["/bin/sh", "-c", script],
        "volumeMounts": [ORDER],
        **extra,
    }


def order_pod(cluster, name, init, main, **spec):
    """A pod whose containers append to /shared/order; `base` shows the file at its end."""
    body = cluster.pod(name, main, base={"volumeMounts": [ORDER]}, initContainers=init, **spec)
    body["spec"]["volumes"] = [{"name": "shared", "emptyDir": {}}]
    return body


def test_init_containers_run_one_after_another_before_the_program(cluster):
    init = [container(cluster, f"i{n}", f"sleep 0.2; echo i{n} >> /shared/order") for n in (1, 2)]
    cluster.create(order_pod(cluster, "ordered", init, "echo main >> /shared/order; cat /shared/order"))
    pod = cluster.finished("ordered")
    assert cluster.log("ordered", container="base") == "i1\ni2\nmain\n"
    assert [s.state.terminated.reason for s in pod.status.init_container_statuses] == ["Completed", "Completed"]


def test_an_init_container_that_fails_fails_the_pod(cluster):
    init = [container(cluster, "broken", "echo why >&2; exit 9")]
    cluster.create(order_pod(cluster, "unstarted", init, "echo never"))
    pod = cluster.finished("unstarted")
    assert pod.status.phase == "Failed"
    assert pod.status.init_container_statuses[0].state.terminated.exit_code == 9
    assert pod.status.container_statuses[0].state.waiting.reason == "PodInitializing"
    assert cluster.log("unstarted", container="broken") == "why\n"


def test_a_sidecar_is_ended_after_the_program_and_may_finish_its_work(cluster):
    script = f'trap "sleep 0.5; echo uploaded; exit 0" TERM; {TRAPPED}; while :; do sleep 0.1; done'
    sidecar = container(cluster, "side", script, restartPolicy="Always")
    cluster.create(order_pod(cluster, "accompanied", [sidecar], f"{UNTIL_TRAPPED}; exit 0"))

    pod = cluster.finished("accompanied")

    assert pod.status.phase == "Succeeded"
    ends = {s.name: s.state.terminated for s in [*pod.status.init_container_statuses, *pod.status.container_statuses]}
    assert cluster.log("accompanied", container="side") == "uploaded\n"
    assert ends["side"].finished_at >= ends["base"].finished_at


def test_a_sidecar_that_is_deaf_to_sigterm_is_killed_after_the_grace_period(cluster):
    script = f'trap "" TERM; {TRAPPED}; while :; do sleep 0.1; done'
    deaf = container(cluster, "deaf", script, restartPolicy="Always")
    cluster.create(order_pod(cluster, "held", [deaf], f"{UNTIL_TRAPPED}; exit 0", terminationGracePeriodSeconds=1))
    pod = cluster.finished("held")
    assert pod.status.phase == "Succeeded"
    assert pod.status.init_container_statuses[0].state.terminated.exit_code == 137


def test_a_sidecar_is_started_again_when_it_ends(cluster):
    sidecar = container(cluster, "brittle", "echo run; exit 1", restartPolicy="Always")
    cluster.create(order_pod(cluster, "restarting", [sidecar], "sleep 60"))

    def restarted():
        statuses = cluster.read("restarting").status.init_container_statuses or []
        return statuses and statuses[0].restart_count >= 2

    eventually(restarted, within_seconds=40)


def test_the_program_waits_for_the_sidecars_startup_probe(cluster):
    probe = {
        "exec": {"command": ["/bin/sh", "-c", "test -e /shared/ready"]},
        "periodSeconds": 1,
        "failureThreshold": 30,
    }
    if cluster.node is not None:  # a probe's command sees the host's paths there: it asks through the environment
        probe["exec"]["command"] = ["/bin/sh", "-c", 'test -e "$READY"']
    sidecar = container(
        cluster,
        "prepared",
        "sleep 0.7; echo sidecar >> /shared/order; touch /shared/ready; sleep 60",
        restartPolicy="Always",
        startupProbe=probe,
        env=[{"name": "READY", "value": "/shared/ready"}],
    )
    script = "echo main >> /shared/order; cat /shared/order"
    cluster.create(order_pod(cluster, "probed", [sidecar], script, terminationGracePeriodSeconds=1))
    cluster.finished("probed")
    assert cluster.log("probed", container="base") == "sidecar\nmain\n"


def hooked(cluster, name, sidecar_script, hook_script):
    """A program that waits for its sidecar's postStart hook; a hook sees the host's paths on the local node."""
    sidecar = container(
        cluster,
        "prepared",
        sidecar_script,
        restartPolicy="Always",
        lifecycle={"postStart": {"exec": {"command": ["/bin/sh", "-c", hook_script]}}},
        env=[{"name": "SHARED", "value": "/shared"}],
    )
    script = "echo main >> /shared/order; cat /shared/order"
    cluster.create(order_pod(cluster, name, [sidecar], script, terminationGracePeriodSeconds=1))
    cluster.finished(name)
    return cluster.log(name, container="base"), cluster.read(name).status.init_container_statuses[0]


def test_the_program_waits_for_the_sidecars_hook(cluster):
    hook = 'until test -e "$SHARED/ready"; do sleep 0.05; done; echo hook >> "$SHARED/order"'
    log, _ = hooked(cluster, "waits", "sleep 0.7; touch /shared/ready; exec sleep 60", hook)
    assert log == "hook\nmain\n"


def test_a_sidecar_whose_hook_fails_is_started_again_before_the_program(cluster):
    hook = 'echo hook >> "$SHARED/order"; test $(wc -l < "$SHARED/order") -gt 1'
    log, sidecar = hooked(cluster, "again", "exec sleep 60", hook)
    assert log == "hook\nhook\nmain\n"
    assert sidecar.restart_count == 1
    reasons = [
        event.reason
        for event in cluster.core.list_namespaced_event(
            cluster.namespace, field_selector="involvedObject.name=again"
        ).items
    ]
    assert "FailedPostStartHook" in reasons


def test_a_program_waits_for_a_sidecar_that_cannot_be_started(cluster):
    sidecar = container(cluster, "nowhere", "", restartPolicy="Always") | {"command": ["/no/such/program"]}
    cluster.create(order_pod(cluster, "alone", [sidecar], "echo main", terminationGracePeriodSeconds=1))

    def tried_again():
        statuses = cluster.read("alone").status.init_container_statuses or []
        return statuses and statuses[0].restart_count >= 1

    eventually(tried_again, within_seconds=40)
    pod = cluster.read("alone")
    assert pod.status.phase == "Pending"
    assert pod.status.container_statuses[0].state.waiting.reason == "PodInitializing"


def test_secrets_arrive_as_files_and_as_environment(cluster):
    data = {"password": base64.b64encode(b"s3cret\n").decode()}
    cluster.core.create_namespaced_secret(cluster.namespace, {"metadata": {"name": "keys"}, "data": data})
    body = cluster.pod(
        "trusted",
        'cat "$FILE"; echo "$PASSWORD"',
        base={
            "volumeMounts": [{"name": "keys", "mountPath": "/run/keys", "readOnly": True}],
            "env": [
                {"name": "FILE", "value": "/run/keys/password"},
                {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "password"}}},
            ],
        },
        volumes=[{"name": "keys", "secret": {"secretName": "keys", "defaultMode": 0o400}}],
        securityContext={"fsGroup": 65532},  # without it, on a cluster, the file is root's alone
    )
    cluster.create(body)
    cluster.finished("trusted")
    assert cluster.log("trusted").split() == ["s3cret", "s3cret"]


def test_a_pod_waits_for_a_secret_that_does_not_exist_yet(cluster):
    body = cluster.pod("early", "cat $FILE", base={"env": [{"name": "FILE", "value": "/run/keys/k"}]})
    body["spec"]["containers"][0]["volumeMounts"] = [{"name": "keys", "mountPath": "/run/keys"}]
    body["spec"]["volumes"] = [{"name": "keys", "secret": {"secretName": "later"}}]
    cluster.create(body)

    def complained():
        events = cluster.core.list_namespaced_event(cluster.namespace, field_selector="involvedObject.name=early")
        return any(e.reason == "FailedMount" and '"later" not found' in e.message for e in events.items)

    eventually(complained)
    cluster.core.create_namespaced_secret(
        cluster.namespace, {"metadata": {"name": "later"}, "stringData": {"k": "now"}}
    )
    eventually(lambda: cluster.read("early").status.phase == "Succeeded", within_seconds=150)


def test_the_downward_api_and_expansion_work(cluster):
    env = [
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "TEAM", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['team']"}}},
        {"name": "BOTH", "value": "$(POD)-$(TEAM)-$(UNKNOWN)-$$(POD)"},
    ]
    body = cluster.pod("told", 'echo "$BOTH"; echo $(POD)', base={"env": env}, labels={"team": "vision"})
    cluster.create(body)
    cluster.finished("told")
    assert cluster.log("told") == "told-vision-$(UNKNOWN)-$(POD)\ntold\n"
