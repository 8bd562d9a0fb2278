"""Create the cluster's clients: one object with every call that the platform makes, and the cluster's addresses.

Only this module knows how Airflow's connection names a cluster. Operators, the controller and the plugin call it.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from updraft.exceptions import RefusedError, UnavailableError
from updraft.settings import Settings

if TYPE_CHECKING:
    from kubernetes.client import ApiClient, CoreV1Api
    from kubernetes_asyncio.client import ApiClient as AsyncApiClient

FIELDS = ("kube_config_path", "kube_config", "cluster_context")  # fields of Airflow's connection


@cache
def _cluster_api_type() -> type:
    from kubernetes import client

    # The generated classes hold only their client, and no two of them share a method's name.
    apis = (client.CoreV1Api, client.NetworkingV1Api, client.PolicyV1Api, client.AuthorizationV1Api)
    return type("ClusterApi", (*apis, client.VersionApi, client.CoreApi), {})


def cluster_api(api_client: ApiClient) -> CoreV1Api:
    """Return one object that has every call of the platform as a method."""
    api: CoreV1Api = _cluster_api_type()(api_client)
    return api


def core_api(settings: Settings) -> CoreV1Api:
    """Create a client of the configured cluster from Airflow's connection.

    Raises UnavailableError when the connection does not lead to a cluster's address: a kubeconfig that is being
    replaced must not end a job that trains. At submission `check_connection` refuses what is permanently wrong.
    """
    from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
    from airflow.sdk.exceptions import AirflowException, AirflowNotFoundException
    from kubernetes.config import ConfigException
    from yaml import YAMLError

    name = settings.kubernetes_conn_id
    try:
        hook = KubernetesHook(conn_id=name)
        hook.cluster_context = _context(*(hook._get_field(field) for field in FIELDS))
        return cluster_api(hook.api_client)
    except RefusedError as exc:
        raise UnavailableError(f"connection {name!r} does not lead to a cluster: {exc}") from None
    except AirflowNotFoundException as exc:
        raise UnavailableError(
            f"Airflow has no connection {name!r}, which names the cluster; add it (type kubernetes, with the path of a "
            "kubeconfig and the name of its context), or set UPDRAFT_KUBERNETES_CONN_ID to one that exists"
        ) from exc
    except (ConfigException, AirflowException, OSError, ValueError, YAMLError) as exc:
        # Messages of other exceptions may quote the kubeconfig's content, which can be secret.
        why = str(exc) if isinstance(exc, ConfigException | OSError) else type(exc).__name__
        raise UnavailableError(
            f"connection {name!r} does not lead to a cluster: {why}; correct its kubeconfig and context, and look at "
            "them with `updraft doctor --kubeconfig FILE --context NAME`"
        ) from None


def check_connection(settings: Settings) -> None:
    """Raise RefusedError when the connection's kubeconfig does not say which cluster is meant."""
    from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        hook = KubernetesHook(conn_id=settings.kubernetes_conn_id)
        _context(*(hook._get_field(field) for field in FIELDS))
    except AirflowNotFoundException:
        pass  # `core_api` raises it with advice
    try:
        core_api(settings)
    except UnavailableError as exc:
        raise RefusedError(str(exc)) from exc


async def async_client(conn_id: str) -> AsyncApiClient:
    """Create a client for an event loop from what the connection says now; it never reads its kubeconfig twice.

    Raises UnavailableError for a kubeconfig that does not say which cluster is meant.
    """
    from airflow.providers.cncf.kubernetes.hooks.kubernetes import AsyncKubernetesHook
    from kubernetes_asyncio.client import ApiClient

    hook = AsyncKubernetesHook(conn_id=conn_id)
    try:
        hook.cluster_context = _context(*[await hook._get_field(field) for field in FIELDS])
    except RefusedError as exc:
        raise UnavailableError(f"connection {conn_id!r} does not lead to a cluster: {exc}") from None
    await hook._load_config()
    configuration: Any = hook.client_configuration
    # Each log that is followed holds a connection. With the client's default limit of 100, a hundred running learners
    # would keep a watch from being opened again.
    configuration.connection_pool_maxsize = 0
    return ApiClient(configuration=configuration)


def _context(path: str | None, inside: str | Mapping[str, Any] | None, context: str | None) -> str | None:
    """Return the chosen context of the connection's kubeconfig; the client alone would use kubectl's current one.

    The arguments are the values of FIELDS. Raises RefusedError as `choose` does.
    """
    from updraft.kubernetes.kubeconfig import choose, choose_inside

    if path:
        return choose(Path(path).expanduser(), context or None).context
    return choose_inside(inside, context or None) if inside else context


def api_server_addresses(core: CoreV1Api) -> tuple[str, ...]:
    """Return the known addresses of the API server, to keep learners away from it."""
    from updraft.kubernetes.calls import call
    from updraft.kubernetes.errors import ClientError

    known = [core.api_client.configuration.host, f"//{os.environ.get('KUBERNETES_SERVICE_HOST', '')}"]
    answer = call("tell its addresses", core.get_api_versions, ok=(ClientError,))
    told: dict[str, Any] = core.api_client.sanitize_for_serialization(answer) if answer is not None else {}
    known += [f"//{item['serverAddress']}" for item in told.get("serverAddressByClientCIDRs") or ()]
    found = {_address_in(url) for url in known} - {None}
    return tuple(sorted(str(address) for address in found))


def _address_in(url: str) -> str | None:
    try:
        return str(ipaddress.ip_address(urlsplit(url).hostname or ""))
    except ValueError:
        return None
