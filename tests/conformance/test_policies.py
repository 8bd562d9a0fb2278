"""Objects that guard pods, what a client may do, and claims: as the API answers them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conformance_helpers import eventually
from kubernetes import client

from updraft.exceptions import RefusedError
from updraft.kubernetes import claims, gang, objects, policies
from updraft.kubernetes.clients import cluster_api
from updraft.kubernetes.launch import LaunchObjects
from updraft.kubernetes.objects import Launch
from updraft.lifecycle.membership import Membership
from updraft_learner.contract import PodConfig
from updraft_localnode.claims import folder_of


def a_launch(cluster: Any, learners: int = 2) -> Launch:
    return Launch(cluster.namespace, "default", "guarded-1", "train", 1, Membership.first(learners))


def a_gang(cluster: Any, launch: Launch) -> dict[str, Any]:
    """The objects of a launch, with pods that wait."""
    pods = [
        cluster.pod(
            launch.pod_name(n),
            "trap 'exit 0' TERM; sleep 600 & wait",
            labels=launch.labels(n),
            subdomain="guarded-1-t1",
        )
        for n in (1, 2)
    ]
    outside = policies.outside_of(launch.namespace, ["http://10.9.8.7:9000"], policies.METADATA_NETWORKS)
    return {
        "secret": objects.credentials_secret(launch, {"s3": {}}, "t"),
        "policy": policies.network_policy(launch, outside),
        "service": objects.headless_service(launch),
        "budget": policies.disruption_budget(launch),
        "pods": pods,
    }


def left(api: Any, launch: Launch) -> list[str]:
    """Names of all objects of the launch, by kind."""
    found = {
        "pod": api.list_namespaced_pod,
        "secret": api.list_namespaced_secret,
        "service": api.list_namespaced_service,
        "policy": api.list_namespaced_network_policy,
        "budget": api.list_namespaced_pod_disruption_budget,
    }
    return [
        f"{kind} {item.metadata.name}"
        for kind, listing in found.items()
        for item in listing(launch.namespace, label_selector=launch.selector).items
    ]


ALL = [
    *(f"pod guarded-1-t1-{n}" for n in (0, 1)),
    *(f"{kind} guarded-1-t1" for kind in ("secret", "service", "policy", "budget")),
]


def test_a_launch_is_whole_and_made_twice_is_one(cluster: Any) -> None:
    api, launch = cluster_api(cluster.api_client), a_launch(cluster)
    for _ in range(2):
        gang.create(api, launch, LaunchObjects(**a_gang(cluster, launch)))
    assert left(api, launch) == ALL
    secret = api.read_namespaced_secret(launch.base_name, launch.namespace)
    pods = api.list_namespaced_pod(launch.namespace, label_selector=launch.selector).items
    assert {o.uid for o in secret.metadata.owner_references} == {p.metadata.uid for p in pods}
    policy = api.read_namespaced_network_policy(launch.base_name, launch.namespace)
    assert [(o.kind, o.uid) for o in policy.metadata.owner_references] == [("Secret", secret.metadata.uid)]
    closed = [network for peer in policy.spec.egress[-1].to for network in peer.ip_block._except]
    assert set(closed) == set(policies.METADATA_NETWORKS)
    gang.delete(api, launch.namespace, launch.selector, grace_seconds=0)


def test_nothing_of_a_launch_outlives_its_last_pod_whoever_deletes_it(cluster: Any) -> None:
    api, launch = cluster_api(cluster.api_client), a_launch(cluster)
    gang.create(api, launch, LaunchObjects(**a_gang(cluster, launch)))
    cluster.wait_phase(launch.pod_name(2), "Running")
    api.delete_namespaced_pod(launch.pod_name(1), launch.namespace, grace_period_seconds=0)
    assert eventually(lambda: left(api, launch) == ALL[1:])
    api.delete_namespaced_pod(launch.pod_name(2), launch.namespace, grace_period_seconds=0)
    assert eventually(lambda: left(api, launch) == [], within_seconds=60)


def test_the_policy_stays_until_the_last_pod_has_ended(cluster: Any) -> None:
    api, launch = cluster_api(cluster.api_client), a_launch(cluster)
    made = a_gang(cluster, launch)
    made["pods"] = [cluster.pod(launch.pod_name(1), "trap 'sleep 2; exit 0' TERM; echo ready; sleep 600 & wait; wait")]
    made["pods"][0]["metadata"]["labels"] = launch.labels(1)
    gang.create(api, launch, LaunchObjects(**made))
    cluster.wait_phase(launch.pod_name(1), "Running")
    eventually(lambda: cluster.log(launch.pod_name(1)) == "ready\n")
    assert gang.delete(api, launch.namespace, launch.selector, grace_seconds=20) == 1
    first, then = left(api, launch), left(api, launch)
    assert "policy guarded-1-t1" in first or "pod guarded-1-t1-0" not in then
    assert eventually(lambda: left(api, launch) == [], within_seconds=60)


def test_a_part_that_a_dead_caller_left_is_removed_with_all_that_the_secret_owns(cluster: Any) -> None:
    api, launch = cluster_api(cluster.api_client), a_launch(cluster)
    made = {**a_gang(cluster, launch), "pods": []}
    gang.create(api, launch, LaunchObjects(**made))
    gang.delete(api, launch.namespace, launch.selector, grace_seconds=0)
    assert eventually(lambda: left(api, launch) == [], within_seconds=60)


def test_a_refused_part_takes_the_rest_with_it(cluster: Any) -> None:
    api, launch = cluster_api(cluster.api_client), a_launch(cluster)
    made = a_gang(cluster, launch)
    made["pods"][1]["spec"]["containers"][0]["image"] = ""
    with pytest.raises(RefusedError, match=r"spec\.containers\[0\]\.image: Required value"):
        gang.create(api, launch, LaunchObjects(**made))
    assert eventually(lambda: left(api, launch) == [], within_seconds=60)


@pytest.mark.parametrize("learners", [1, 2])
def test_a_learners_pod_keeps_to_the_strictest_profile(cluster: Any, learners: int) -> None:
    """Only a real cluster judges; a pod that it would refuse is refused here too, by name."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.core.patch_namespace(cluster.namespace, {"metadata": {"labels": labels}})
    launch = a_launch(cluster, learners)
    config = PodConfig(
        *("guarded-1", "default", "train", 1, 1, learners, "updraft", "default"),
        mlflow_run_id="",
        mlflow_experiment_id="",
    )
    pod = objects.learner_pod(
        cluster.pod(launch.pod_name(1), "", base={"command": ["/bin/sh", "-c"], "args": ["true"]}),
        config,
        sidecar_image=cluster.image,
        grace_seconds=5,
        node_lost_seconds=30,
    )
    pod["spec"].setdefault("volumes", [])
    pod = claims.with_claims(pod, [claims.Claim("imagenet", "train", "train")])
    for made in objects.role_to_pods(pod, launch, config):
        cluster.core.create_namespaced_pod(cluster.namespace, made, dry_run="All")
    if cluster.node is None:
        made["spec"]["securityContext"].pop("seccompProfile")
        with pytest.raises(client.ApiException) as caught:
            cluster.core.create_namespaced_pod(cluster.namespace, made, dry_run="All")
        assert "seccompProfile" in status_of(caught)[1]


def status_of(caught: Any) -> tuple[int, str, Any]:
    import json

    body = json.loads(caught.value.body)
    return caught.value.status, body["message"], body.get("details")


def test_an_absent_policy_is_named_with_its_group(cluster: Any) -> None:
    api = client.NetworkingV1Api(cluster.api_client)
    with pytest.raises(client.ApiException) as caught:
        api.read_namespaced_network_policy("none", cluster.namespace)
    assert status_of(caught) == (
        404,
        'networkpolicies.networking.k8s.io "none" not found',
        {"name": "none", "group": "networking.k8s.io", "kind": "networkpolicies"},
    )


def test_a_policy_with_a_wrong_network_is_refused_by_its_field(cluster: Any) -> None:
    api = client.NetworkingV1Api(cluster.api_client)
    block = {"cidr": "10.0.0.0/8", "except": ["192.168.0.0/16"]}
    body = {
        "metadata": {"name": "wrong"},
        "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": [{"ipBlock": block}]}]},
    }
    with pytest.raises(client.ApiException) as caught:
        api.create_namespaced_network_policy(cluster.namespace, body)
    code, _, details = status_of(caught)
    assert (code, details["causes"][0]["field"]) == (422, "spec.egress[0].to[0].ipBlock.except[0]")


def test_a_policy_gets_its_defaults_and_its_deletion_is_told(cluster: Any) -> None:
    api = client.NetworkingV1Api(cluster.api_client)
    body = {"metadata": {"name": "open"}, "spec": {"podSelector": {}, "egress": [{"ports": [{"port": 53}]}]}}
    made = api.create_namespaced_network_policy(cluster.namespace, body)
    assert (made.spec.policy_types, made.spec.egress[0].ports[0].protocol) == (["Ingress", "Egress"], "TCP")
    gone = api.delete_namespaced_network_policy("open", cluster.namespace)
    assert (gone.status, gone.details.group, gone.details.kind) == ("Success", "networking.k8s.io", "networkpolicies")


def test_a_budget_cannot_say_both(cluster: Any) -> None:
    api = client.PolicyV1Api(cluster.api_client)
    spec = {"selector": {"matchLabels": {"a": "b"}}, "minAvailable": 1, "maxUnavailable": 1}
    with pytest.raises(client.ApiException) as caught:
        api.create_namespaced_pod_disruption_budget(cluster.namespace, {"metadata": {"name": "x"}, "spec": spec})
    assert caught.value.status == 422


def test_a_budget_holds_off_who_drains_until_the_launch_has_ended(cluster: Any) -> None:
    if cluster.node is not None:
        pytest.skip("evictions on a local node ask no budget")
    api, launch = cluster_api(cluster.api_client), a_launch(cluster)
    gang.create(api, launch, LaunchObjects(**a_gang(cluster, launch)))
    names = [launch.pod_name(n) for n in (1, 2)]
    for name in names:
        cluster.wait_phase(name, "Running")

    def counted() -> bool:
        (budget,) = api.list_namespaced_pod_disruption_budget(launch.namespace).items
        return bool(budget.status.current_healthy == len(names))

    assert eventually(counted)
    for name in names:
        with pytest.raises(client.ApiException) as caught:
            api.create_namespaced_pod_eviction(name, cluster.namespace, {"metadata": {"name": name}})
        code, message, details = status_of(caught)
        assert (code, details["causes"][0]["reason"]) == (429, "DisruptionBudget"), message
        assert cluster.read(name).metadata.deletion_timestamp is None
    assert gang.delete(api, launch.namespace, launch.selector, grace_seconds=0) == 2
    assert eventually(lambda: left(api, launch) == [], within_seconds=60)


def test_the_owner_of_the_token_may_do_what_the_platform_needs(cluster: Any) -> None:
    api = client.AuthorizationV1Api(cluster.api_client)
    wanted = {"namespace": cluster.namespace, "verb": "create", "resource": "pods"}
    answer = api.create_self_subject_access_review({"spec": {"resourceAttributes": wanted}})
    assert answer.status.allowed is True
    rules = api.create_self_subject_rules_review({"spec": {"namespace": cluster.namespace}})
    assert rules.status.incomplete or any(  # a webhook that decides does not list what it would say
        {"*", "create"} & set(rule.verbs) and {"*", "pods"} & set(rule.resources)
        for rule in rules.status.resource_rules
    )


# --- claims: on the local node they are folders -------------------------------------------------------------


def test_a_folder_is_a_claim_and_is_read_by_pods(local_cluster: Any) -> None:
    folder = local_cluster.node.state_dir / "claims" / local_cluster.namespace / "digits" / "training"
    folder.mkdir(parents=True)
    (folder / "a.csv").write_text("1,2\n")
    found = local_cluster.core.read_namespaced_persistent_volume_claim("digits", local_cluster.namespace)
    assert (found.status.phase, found.status.access_modes) == ("Bound", ["ReadOnlyMany", "ReadWriteMany"])
    listed = local_cluster.core.list_namespaced_persistent_volume_claim(local_cluster.namespace)
    assert [item.metadata.name for item in listed.items] == ["digits"]
    pod = local_cluster.pod("reads", 'cat "$DATA/a.csv"; cat "$ROOT/data/in/a.csv"')
    pod["spec"]["volumes"] = [
        {"name": "job", "emptyDir": {}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "digits", "readOnly": True}},
    ]
    base = pod["spec"]["containers"][0]
    base["env"] = [{"name": "DATA", "value": "/updraft/data/in"}, {"name": "ROOT", "value": "/updraft"}]
    base["volumeMounts"] = [
        {"name": "job", "mountPath": "/updraft"},
        {"name": "data", "mountPath": "/updraft/data/in", "subPath": "training", "readOnly": True},
    ]
    local_cluster.create(pod)
    assert local_cluster.finished("reads").status.phase == "Succeeded"
    assert local_cluster.log("reads") == "1,2\n1,2\n"
    local_cluster.core.delete_namespaced_pod("reads", local_cluster.namespace, grace_period_seconds=0)
    assert eventually(lambda: local_cluster.gone("reads"))
    assert (folder / "a.csv").read_text() == "1,2\n"


def test_a_claim_that_does_not_exist_is_404_and_a_pod_that_names_it_waits(local_cluster: Any) -> None:
    with pytest.raises(client.ApiException) as caught:
        local_cluster.core.read_namespaced_persistent_volume_claim("none", local_cluster.namespace)
    assert status_of(caught)[:2] == (404, 'persistentvolumeclaims "none" not found')
    pod = local_cluster.pod("waits", "true")
    pod["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "none"}}]
    local_cluster.create(pod)

    def told() -> bool:
        events = local_cluster.core.list_namespaced_event(local_cluster.namespace).items
        return any('persistentvolumeclaim "none" not found' in (event.message or "") for event in events)

    assert eventually(told)
    assert local_cluster.read("waits").status.phase == "Pending"


@pytest.mark.parametrize("name", ["..", ".", "a/b", ""])
def test_no_name_of_a_claim_leads_out_of_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "n" / "a" / "b").mkdir(parents=True)
    assert folder_of(tmp_path, "n", name) is None
    assert folder_of(tmp_path, name, "a") is None
