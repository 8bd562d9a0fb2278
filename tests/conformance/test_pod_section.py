"""What a manifest's section `pod` becomes in a pod: whether the API takes it, and what the program finds."""

from __future__ import annotations

import pytest
from conformance_helpers import eventually
from kubernetes import client

from updraft.kubernetes.pod_section import PodExtras, with_extras

SCRATCH = {"emptyDir": {"sizeLimit": "16Mi"}}


def refused(cluster, body):
    with pytest.raises(client.ApiException) as caught:
        cluster.create(body)
    return caught.value.status, caught.value.body


def test_labels_and_annotations_are_shown_and_selected(cluster):
    extras = PodExtras(labels={"example.com/team": "vision"}, annotations={"example.com/owner": "Ada L."})
    cluster.create(with_extras(cluster.pod("named", "true"), extras))
    found = cluster.core.list_namespaced_pod(cluster.namespace, label_selector="example.com/team=vision").items
    assert [pod.metadata.name for pod in found] == ["named"]
    assert found[0].metadata.annotations["example.com/owner"] == "Ada L."


def test_the_program_writes_to_its_scratch_volume(cluster):
    pod = cluster.pod("scratch", 'echo kept > "$SCRATCH/a" && cat "$SCRATCH/a"')
    pod["spec"]["containers"][0]["env"] = [{"name": "SCRATCH", "value": "/scratch"}]
    cluster.create(with_extras(pod, PodExtras(volumes={"/scratch": SCRATCH})))
    assert cluster.finished("scratch").status.phase == "Succeeded"
    assert cluster.log("scratch") == "kept\n"


def test_scratch_is_empty_in_each_pod(cluster):
    for name in ("first", "second"):
        pod = cluster.pod(name, 'ls "$SCRATCH" | wc -l | tr -d " "; touch "$SCRATCH/a"')
        pod["spec"]["containers"][0]["env"] = [{"name": "SCRATCH", "value": "/scratch"}]
        cluster.create(with_extras(pod, PodExtras(volumes={"/scratch": SCRATCH})))
        assert cluster.finished(name).status.phase == "Succeeded"
        assert cluster.log(name) == "0\n"


def test_a_pod_waits_for_a_node_with_its_labels(cluster):
    cluster.create(cluster.pod("picky", "true", nodeSelector={"example.com/none": "here"}))

    def told():
        conditions = cluster.read("picky").status.conditions or []
        return next((c for c in conditions if c.type == "PodScheduled" and c.status == "False"), None)

    assert "didn't match Pod's node affinity/selector" in eventually(told).message


def test_a_toleration_is_taken_and_one_without_sense_is_refused(cluster):
    tolerations = [{"key": "dedicated", "operator": "Equal", "value": "training", "effect": "NoSchedule"}]
    cluster.create(cluster.pod("hardy", "true", tolerations=tolerations))
    assert cluster.finished("hardy").status.phase == "Succeeded"
    status, body = refused(cluster, cluster.pod("odd", "true", tolerations=[{"key": "a", "effect": "Never"}]))
    assert status == 422
    assert "tolerations[0].effect" in body


def test_a_writable_claim_keeps_what_pods_write(local_cluster):
    folder = local_cluster.node.state_dir / "claims" / local_cluster.namespace / "team"
    folder.mkdir(parents=True)
    claim = local_cluster.core.read_namespaced_persistent_volume_claim("team", local_cluster.namespace)
    assert "ReadWriteMany" in claim.spec.access_modes
    pod = local_cluster.pod("writes", 'echo shared > "$SHARED/a"; cat "$AGAIN/a"')
    pod["spec"]["containers"][0]["env"] = [{"name": "SHARED", "value": "/shared"}, {"name": "AGAIN", "value": "/again"}]
    source = {"persistentVolumeClaim": {"claimName": "team"}}
    local_cluster.create(with_extras(pod, PodExtras(volumes={"/shared": source, "/again": source})))
    assert local_cluster.finished("writes").status.phase == "Succeeded"
    assert local_cluster.log("writes") == "shared\n"
    assert (folder / "a").read_text() == "shared\n"


def test_the_local_node_refuses_accounts_and_pull_secrets_by_name(local_cluster):
    extras = PodExtras(service_account="trainer", image_pull_secrets=("registry",))
    status, body = refused(local_cluster, with_extras(local_cluster.pod("rich", "true"), extras))
    assert status == 422
    assert "spec.serviceAccountName" in body
    assert "spec.imagePullSecrets" in body


def test_a_service_account_that_does_not_exist_is_404(cluster):
    with pytest.raises(client.ApiException) as caught:
        cluster.core.read_namespaced_service_account("nobody", cluster.namespace)
    assert caught.value.status == 404
