"""The platform's rights are enough for a whole launch, and it asks for nothing beyond them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from conformance_helpers import eventually
from kubernetes import client

from updraft.exceptions import RefusedError
from updraft.kubernetes import claims, gang, objects, pod_needs, policies, preflight, rbac, secrets
from updraft.kubernetes.clients import api_server_addresses, cluster_api
from updraft.kubernetes.launch import LaunchObjects
from updraft.kubernetes.objects import Launch
from updraft.lifecycle.membership import Membership
from updraft.manifest.pod import Pod

KUSTOMIZE = Path(__file__).parents[2] / "deploy" / "kustomize"
PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/v1(?:/namespaces/(?P<namespace>[^/]+))?(?:/(?P<resource>[a-z]+))?"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<part>[a-z]+))?"
)


def asked(method: str, url: str) -> tuple[str, str, str]:
    """Verb, group and resource of a request, as the API server's authorization sees them."""
    path = urlsplit(url).path
    if path in ("/version/", "/api/"):
        return "get", "", path.strip("/")
    found = PATH.fullmatch(path)
    assert found, path
    resource, name = found["resource"], found["name"]
    if resource is None:  # /api/v1/namespaces/n is about n itself
        resource, name = "namespaces", found["namespace"]
    verb = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(method)
    verb = verb or ("get" if name else "list")
    return verb, found["group"] or "", f"{resource}/{found['part']}" if found["part"] else resource


@pytest.fixture
def recorded(cluster: Any) -> Iterator[tuple[Any, list[tuple[str, str, str]]]]:
    """A client of the platform's, and what it asks for."""
    api_client = client.ApiClient(cluster.api_client.configuration)
    seen: list[tuple[str, str, str]] = []
    request = api_client.request

    def recording(method: str, url: str, *args: Any, **kwargs: Any) -> Any:
        seen.append(asked(method, url))
        return request(method, url, *args, **kwargs)

    api_client.request = recording
    yield cluster_api(api_client), seen
    api_client.close()


def live_and_die(api: Any, cluster: Any) -> None:
    """Everything that the platform asks a cluster for in the life of a job, but for watching."""
    launch = Launch(cluster.namespace, "default", "rights-1", "train", 1, Membership.first(2))
    preflight.require(api, launch.namespace)
    assert all(f.ok for f in preflight.examine(api, [launch.namespace]) if f.name not in ("nodes", "GPUs"))
    for value in ("one", "two"):
        secrets.put_secret(api, cluster.namespace, "default", "hub", {"value": value})
    assert secrets.list_secrets(api, cluster.namespace, "default") == ["hub"]
    assert secrets.read_secret(api, cluster.namespace, "hub") == {"value": "two"}
    secrets.delete_secret(api, cluster.namespace, "hub")
    with pytest.raises(RefusedError, match="claim 'none' does not exist"):
        claims.read_claim(api, launch.namespace, "none", 1)
    pod = Pod(service_account="none")
    assert [field for field, _ in pod_needs.lacking(api, launch.namespace, pod, 1)] == ["pod.service_account"]
    outside = policies.outside_of(launch.namespace, ["http://10.9.8.7:9000"], api_server_addresses(api))
    made: dict[str, Any] = {
        "secret": objects.credentials_secret(launch, {}, "t"),
        "policy": policies.network_policy(launch, outside),
        "service": objects.headless_service(launch),
        "budget": policies.disruption_budget(launch),
        "pods": [cluster.pod(launch.pod_name(n), "echo said; sleep 600", labels=launch.labels(n)) for n in (1, 2)],
    }
    for _ in range(2):
        gang.create(api, launch, LaunchObjects(**made))
    assert len(gang.observe(api, launch)) == 2
    name = launch.pod_name(1)

    def said() -> bool:
        try:
            return "said" in str(api.read_namespaced_pod_log(name, launch.namespace, container="base"))
        except client.ApiException:  # its container is being made
            return False

    assert eventually(said, within_seconds=60)
    assert gang.delete(api, launch.namespace, launch.selector, grace_seconds=0) == 2
    assert gang.wait_gone(api, launch.namespace, launch.selector, timeout_seconds=60)
    gang.delete(api, launch.namespace, launch.selector, grace_seconds=0)


def test_a_launch_asks_for_nothing_beyond_the_rights_and_uses_them_all(
    cluster: Any, recorded: tuple[Any, list[tuple[str, str, str]]]
) -> None:
    api, seen = recorded
    live_and_die(api, cluster)
    namespaced, whole = set(rbac.each(rbac.NAMESPACED)), set(rbac.each(rbac.CLUSTER))
    assert set(seen) <= namespaced | whole | rbac.OF_EVERYBODY
    assert namespaced - set(seen) == {("watch", "", "pods")}


# --- as the account of deploy/kustomize: on a cluster that knows accounts ------------------------------------------


@pytest.fixture
def account(cluster: Any) -> Iterator[Any]:
    """A client with the rights of the tenant's Role, and no other, in the test's namespace."""
    if cluster.node is not None:
        pytest.skip("the local node knows one account alone")
    namespace = cluster.namespace
    rights = client.RbacAuthorizationV1Api(cluster.api_client)
    role, binding = yaml.safe_load_all((KUSTOMIZE / "tenant" / "rights.yaml").read_text())
    for obj in (role, binding):
        obj["metadata"]["namespace"] = namespace
    binding["subjects"][0]["namespace"] = namespace
    body = {"metadata": {"name": "updraft"}, "automountServiceAccountToken": False}
    cluster.core.create_namespaced_service_account(namespace, body)
    rights.create_namespaced_role(namespace, role)
    rights.create_namespaced_role_binding(namespace, binding)
    ask: dict[str, Any] = {"spec": {"expirationSeconds": 600}}
    token = cluster.core.create_namespaced_service_account_token("updraft", namespace, ask).status.token
    given = cluster.api_client.configuration
    settings = client.Configuration(host=given.host)
    settings.ssl_ca_cert, settings.verify_ssl = given.ssl_ca_cert, given.verify_ssl
    settings.api_key = {"authorization": f"Bearer {token}"}
    api_client = client.ApiClient(settings)
    yield cluster_api(api_client)
    api_client.close()


@pytest.fixture
def whole_account(cluster: Any, account: Any) -> Iterator[Any]:
    """With the ClusterRole as well: nodes belong to no namespace. Both of its objects have the namespace's name."""
    name = f"{cluster.namespace}-nodes"
    rights = client.RbacAuthorizationV1Api(cluster.api_client)
    documents = yaml.safe_load_all((KUSTOMIZE / "platform" / "platform.yaml").read_text())
    role, binding = (obj for obj in documents if obj["kind"].startswith("ClusterRole"))
    for obj in (role, binding):
        obj["metadata"]["name"] = name
    binding["roleRef"]["name"], binding["subjects"][0]["namespace"] = name, cluster.namespace
    rights.create_cluster_role(role)
    try:
        rights.create_cluster_role_binding(binding)
        try:
            yield account
        finally:
            rights.delete_cluster_role_binding(name)
    finally:
        rights.delete_cluster_role(name)


def test_the_rights_of_deploy_kustomize_are_enough_for_a_launch(cluster: Any, whole_account: Any) -> None:
    live_and_die(whole_account, cluster)


@pytest.mark.parametrize(
    "attempt",
    [
        lambda api, namespace: api.list_namespaced_secret("kube-system"),
        lambda api, namespace: api.list_secret_for_all_namespaces(),
        lambda api, namespace: api.create_namespace({"metadata": {"name": "updraft-made-by-a-test"}}),
        lambda api, namespace: api.connect_get_namespaced_pod_exec("any", namespace, command="id"),
        lambda api, namespace: api.create_namespaced_service_account_token("updraft", namespace, {"spec": {}}),
        lambda api, namespace: api.list_node(),
    ],
    ids=["secrets of others", "all secrets", "namespaces", "exec", "tokens", "nodes"],
)
def test_the_role_gives_nothing_else(cluster: Any, account: Any, attempt: Any) -> None:
    with pytest.raises(client.ApiException) as caught:
        attempt(account, cluster.namespace)
    assert caught.value.status == 403


def test_a_job_in_a_namespace_that_is_missing_is_refused_with_what_to_do(account: Any) -> None:
    with pytest.raises(RefusedError, match="made-this does not exist, or nothing was granted to the platform"):
        preflight.require(account, "updraft-nobody-made-this")


def test_a_token_that_nobody_gave_is_told(account: Any) -> None:
    account.api_client.configuration.api_key = {"authorization": "Bearer ran.out.now"}
    (last,) = [f for f in preflight.examine(account, []) if not f.ok]
    assert (last.name, "does not accept the token" in last.detail) == ("cluster's log-in", True)
