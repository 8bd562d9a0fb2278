"""Requests and answers that are not about running: lists, selectors, watches, patches, errors."""

from __future__ import annotations

import asyncio
import json

import pytest
import urllib3
from conformance_helpers import eventually
from kubernetes import client, watch

IDLE = "sleep 300"


def status_of(caught):
    body = json.loads(caught.value.body)
    return caught.value.status, body["kind"], body["reason"]


def labelled(cluster):
    for name, labels in {"a": {"app": "x", "n": "1"}, "b": {"app": "x", "n": "2"}, "c": {"app": "y"}}.items():
        cluster.create(cluster.pod(name, IDLE, labels=labels))


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("app=x", "ab"),
        ("app==x,n!=1", "b"),
        ("n!=1", "bc"),
        ("app in (x, y),n", "ab"),
        ("n notin (2)", "ac"),
        ("!n", "c"),
        ("already_checked!=True,!airflow-worker,app=y", "c"),
    ],
)
def test_label_selectors(cluster, selector, names):
    labelled(cluster)
    found = cluster.core.list_namespaced_pod(cluster.namespace, label_selector=selector)
    assert "".join(pod.metadata.name for pod in found.items) == names


def test_lists_over_all_namespaces(free_cluster):
    labelled(free_cluster)
    selector = f"metadata.namespace={free_cluster.namespace}"
    assert len(free_cluster.core.list_pod_for_all_namespaces(field_selector=selector).items) == 3


def test_field_selectors(cluster):
    labelled(cluster)
    one = cluster.core.list_namespaced_pod(cluster.namespace, field_selector="metadata.name=b")
    assert [pod.metadata.name for pod in one.items] == ["b"]
    with pytest.raises(client.ApiException) as caught:
        cluster.core.list_namespaced_pod(cluster.namespace, field_selector="spec.colour=red")
    assert status_of(caught) == (400, "Status", "BadRequest")


def test_long_lists_come_in_pages(cluster):
    labelled(cluster)
    first = cluster.core.list_namespaced_pod(cluster.namespace, limit=2)
    assert [p.metadata.name for p in first.items] == ["a", "b"]
    assert first.metadata.remaining_item_count == 1
    second = cluster.core.list_namespaced_pod(cluster.namespace, limit=2, _continue=first.metadata._continue)
    assert [p.metadata.name for p in second.items] == ["c"]
    assert second.metadata._continue is None


def test_what_does_not_exist_is_404(cluster):
    for ask in (
        lambda: cluster.read("nobody"),
        lambda: cluster.log("nobody"),
        lambda: cluster.core.delete_namespaced_pod("nobody", cluster.namespace),
        lambda: cluster.core.create_namespaced_pod("no-such-namespace", cluster.pod("x", IDLE)),
    ):
        with pytest.raises(client.ApiException) as caught:
            ask()
        assert status_of(caught) == (404, "Status", "NotFound")


def test_a_wrong_token_is_401(cluster):
    given = cluster.api_client.configuration
    for token in ("wrong", "x y"):
        settings = client.Configuration(host=given.host)
        settings.ssl_ca_cert = given.ssl_ca_cert
        settings.api_key = {"authorization": f"Bearer {token}"}
        core = client.CoreV1Api(client.ApiClient(settings))
        with pytest.raises(client.ApiException) as caught:
            core.list_namespaced_pod("default")
        assert status_of(caught) == (401, "Status", "Unauthorized")


def test_a_wrong_pod_is_422_and_every_field_is_named(cluster):
    body = cluster.pod("Bad_Name", IDLE, restartPolicy="Sometimes", labels={"ok": "not valid!"})
    body["spec"]["containers"][0].pop("image")
    with pytest.raises(client.ApiException) as caught:
        cluster.create(body)
    assert status_of(caught) == (422, "Status", "Invalid")
    fields = {cause["field"] for cause in json.loads(caught.value.body)["details"]["causes"]}
    assert {"metadata.name", "metadata.labels", "spec.restartPolicy", "spec.containers[0].image"} <= fields


def test_labels_are_patched_and_nothing_else(cluster):
    cluster.create(cluster.pod("p", IDLE, labels={"keep": "1", "drop": "1"}))
    patch = {"metadata": {"labels": {"already_checked": "True", "drop": None}}}
    changed = cluster.core.patch_namespaced_pod("p", cluster.namespace, patch)
    assert changed.metadata.labels == {"keep": "1", "already_checked": "True"}
    with pytest.raises(client.ApiException) as caught:
        cluster.core.patch_namespaced_pod("p", cluster.namespace, {"spec": {"restartPolicy": "Always"}})
    assert status_of(caught) == (422, "Status", "Invalid")


def test_a_secret_is_kept_replaced_and_never_listed_with_content(cluster):
    core, namespace = cluster.core, cluster.namespace
    core.create_namespaced_secret(namespace, {"metadata": {"name": "s"}, "stringData": {"k": "one"}})
    read = core.read_namespaced_secret("s", namespace)
    assert read.data == {"k": "b25l"}
    replaced = core.replace_namespaced_secret("s", namespace, {"metadata": {"name": "s"}, "data": {"k": "dHdv"}})
    assert replaced.data == {"k": "dHdv"}
    old = {"metadata": {"name": "s", "resourceVersion": read.metadata.resource_version}, "data": {}}
    with pytest.raises(client.ApiException) as caught:
        core.replace_namespaced_secret("s", namespace, old)
    assert status_of(caught) == (409, "Status", "Conflict")
    if cluster.node is not None:
        assert [item.data for item in core.list_namespaced_secret(namespace).items] == [None]
    core.delete_namespaced_secret("s", namespace)
    with pytest.raises(client.ApiException) as caught:
        core.read_namespaced_secret("s", namespace)
    assert caught.value.status == 404


def test_a_headless_service_lives_and_dies(cluster):
    core, namespace = cluster.core, cluster.namespace
    body = {"metadata": {"name": "gang"}, "spec": {"clusterIP": "None", "ports": [{"port": 29500}]}}
    created = core.create_namespaced_service(namespace, body)
    assert (created.spec.cluster_ip, created.spec.ports[0].target_port) == ("None", 29500)
    assert [s.metadata.name for s in core.list_namespaced_service(namespace).items] == ["gang"]
    core.delete_namespaced_service("gang", namespace)
    assert core.list_namespaced_service(namespace).items == []


def test_a_watch_from_a_list_tells_the_whole_story(cluster):
    start = cluster.core.list_namespaced_pod(cluster.namespace).metadata.resource_version
    cluster.create(cluster.pod("seen", "true"))
    cluster.finished("seen")
    cluster.core.delete_namespaced_pod("seen", cluster.namespace)
    story = []
    for event in watch.Watch().stream(
        cluster.core.list_namespaced_pod, cluster.namespace, resource_version=start, timeout_seconds=5
    ):
        story.append((event["type"], event["object"].status.phase))
        if event["type"] == "DELETED":
            break
    assert story[0] == ("ADDED", "Pending")
    assert ("MODIFIED", "Succeeded") in story
    assert story[-1][0] == "DELETED"


def test_a_watch_without_version_begins_with_what_is_there_and_ends_in_time(cluster):
    labelled(cluster)
    stream = watch.Watch().stream(
        cluster.core.list_namespaced_pod, cluster.namespace, label_selector="app=x", timeout_seconds=1
    )
    added = {event["object"].metadata.name for event in stream if event["type"] == "ADDED"}
    assert added == {"a", "b"}


def test_an_object_that_leaves_the_selector_is_deleted_from_the_watch(cluster):
    cluster.create(cluster.pod("moving", IDLE, labels={"app": "x"}))
    start = cluster.wait_phase("moving", "Running").metadata.resource_version
    cluster.core.patch_namespaced_pod("moving", cluster.namespace, {"metadata": {"labels": {"app": "y"}}})
    stream = watch.Watch().stream(
        cluster.core.list_namespaced_pod,
        cluster.namespace,
        label_selector="app=x",
        resource_version=start,
        timeout_seconds=2,
    )
    assert [event["type"] for event in stream][-1] == "DELETED"


def test_an_expired_version_is_an_error_event_410(local_cluster):
    cluster = local_cluster
    with pytest.raises(client.ApiException) as caught:
        for _ in watch.Watch().stream(
            cluster.core.list_namespaced_pod, cluster.namespace, resource_version="999999999", timeout_seconds=5
        ):
            pass
    assert caught.value.status == 410


def test_events_are_listed_and_watched_by_the_async_client(cluster):
    cluster.create(cluster.pod("told", "true"))
    cluster.finished("told")
    wanted = {"Scheduled", "Created", "Started"}

    async def reasons():
        from kubernetes_asyncio import client as async_client
        from kubernetes_asyncio import watch as async_watch

        async with cluster.async_client() as api_client:
            core = async_client.CoreV1Api(api_client)
            selector = "involvedObject.name=told"
            async with async_watch.Watch() as stream:
                found = []
                async for event in stream.stream(
                    core.list_namespaced_event, cluster.namespace, field_selector=selector, timeout_seconds=30
                ):
                    found.append(event["object"].reason)
                    if wanted <= set(found):  # a kubelet tells them in its own time
                        break
                return found

    found = asyncio.run(reasons())
    assert wanted <= set(found)


def test_nodes_say_what_can_be_allocated(cluster):
    nodes = cluster.core.list_node().items
    assert nodes
    for node in nodes:
        assert {"cpu", "memory"} <= set(node.status.allocatable)
        assert any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)
    if cluster.node is not None:
        assert nodes[0].status.allocatable["nvidia.com/gpu"] == "2"
        assert nodes[0].metadata.labels["updraft.dev/gpu-type"] == "nvidia-a100"


def test_capitalised_booleans_and_unknown_routes(local_cluster):
    node, http = local_cluster.node, urllib3.PoolManager()
    headers = {"Authorization": f"Bearer {node.token}"}
    url = f"{node.url}/api/v1/namespaces/{local_cluster.namespace}/events"
    answer = http.request(
        "GET", f"{url}?watch=True&timeoutSeconds=1&fieldSelector=involvedObject.name%3Dx", headers=headers
    )
    assert (answer.status, answer.data) == (200, b"")
    assert http.request("GET", f"{node.url}/apis/batch/v1/jobs", headers=headers).status == 404
    assert http.request("GET", f"{node.url}/healthz").data == b"ok"
    assert http.request("GET", f"{node.url}/version").json()["gitVersion"] == "v1.34.4-local"


def test_a_deleted_namespace_takes_its_content_along(cluster):
    name = f"{cluster.namespace}-b"
    cluster.core.create_namespace({"metadata": {"name": name}})
    cluster.core.create_namespaced_secret(name, {"metadata": {"name": "s"}, "stringData": {"k": "v"}})
    cluster.core.delete_namespace(name)

    def gone():
        try:
            cluster.core.read_namespace(name)
        except client.ApiException as exc:
            return exc.status == 404
        return False

    eventually(gone, within_seconds=60)
