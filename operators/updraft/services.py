"""What the code that guards jobs reaches outside its own process: made at the edge, and handed down from there.

The edges are an operator's `execute`, a trigger's `run` and the extra links; everything below takes a `Services` as an
argument. Tests make one of fakes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from updraft.settings import Settings, settings
from updraft.timing import TIMING, Timing

if TYPE_CHECKING:
    from kubernetes.client import CoreV1Api
    from mlflow import MlflowClient

    from updraft.kubernetes.watch import PodWatch
    from updraft.ledger import Ledger
    from updraft.storage import ContentStore
    from updraft.tenants import Tenancy
    from updraft_learner.mlflow_rest import TrackingServer
    from updraft_learner.store import ObjectStore


@dataclass(frozen=True)
class Services:
    """The platform's settings and how to reach its ledger, its store, the cluster and MLflow.

    Each is opened when it is used: importing a library may take seconds, and what is open does not survive a fork.

    Args:
        settings: the platform's settings.
        open_ledger: returns the ledger; the same one at each call within a process.
        open_store: returns the platform's bucket, with the credentials of this moment.
        open_cluster: returns a client of the cluster. Raises UnavailableError.
        open_tracking: returns a client of the tracking server and registry.
        open_run: returns MLflow's REST API for one run, given its id and the timeout of a request in seconds.
            Importing it costs little, which a triggerer needs.
        watch_pods: returns the watch of a namespace's pods, given the Airflow connection and the namespace. All that
            use it in one event loop share it.
        list_nodes: returns the nodes of the cluster of an Airflow connection, as the API lists them. The list is the
            same object while nothing has changed. Raises UnavailableError.
        timing: how often what waits looks again.
    """

    settings: Settings
    open_ledger: Callable[[], Ledger]
    open_store: Callable[[], ObjectStore]
    open_cluster: Callable[[], CoreV1Api]
    open_tracking: Callable[[], MlflowClient]
    open_run: Callable[[str, float], TrackingServer]
    watch_pods: Callable[[str, str], AbstractAsyncContextManager[PodWatch]]
    list_nodes: Callable[[str], Awaitable[list[dict[str, Any]]]]
    timing: Timing = TIMING

    @property
    def ledger(self) -> Ledger:
        return self.open_ledger()

    @property
    def store(self) -> ObjectStore:
        return self.open_store()

    @property
    def core(self) -> CoreV1Api:
        return self.open_cluster()

    @property
    def tracking(self) -> MlflowClient:
        return self.open_tracking()

    def tenancy(self) -> Tenancy:
        """Return the tenants in force. Raises UpdraftError as `tenancy_of`."""
        return tenancy_of(self.settings, self.open_ledger)

    def content(self, tenant: str) -> ContentStore:
        """Return the tenant's part of the content store."""
        from updraft.storage import ContentStore
        from updraft_learner.contract import Keys

        return ContentStore(self.store, Keys(tenant))


def tenancy_of(settings: Settings, open_ledger: Callable[[], Ledger]) -> Tenancy:
    """Return the tenants in force: those that the file of tenants names now, or named when it was last right.

    Raises UpdraftError if the file is wrong and never was right.
    """
    from updraft.exceptions import UpdraftError
    from updraft.tenants import Tenancy, read_tenants

    path = settings.tenants_file
    if path is None:
        return Tenancy.of(*settings.tenants)
    try:
        found = read_tenants(path, trusted=settings.trusted_tenants)
    except UpdraftError as exc:
        kept = open_ledger().tenants.in_force()
        if kept is None:
            raise
        return replace(kept, problem=str(exc))
    if _stored.get(settings.ledger_url) is not found:  # the same object while the file is the same
        open_ledger().tenants.put(found)
        _stored[settings.ledger_url] = found
    return found


_stored: dict[str, Tenancy] = {}  # what this process has put in force last, by the ledger's URL


def services_of(settings: Settings) -> Services:
    """Return the services of the platform that these settings describe. Connects to nothing."""

    def open_ledger() -> Ledger:
        from updraft.ledger import open_ledger

        return open_ledger(settings.ledger_url)

    def open_store() -> ObjectStore:
        from updraft.storage import platform_store

        return platform_store(settings)

    def open_cluster() -> CoreV1Api:
        from updraft.kubernetes.clients import core_api

        return core_api(settings)

    def open_tracking() -> MlflowClient:
        from updraft import tracking

        return tracking.client(settings)

    def open_run(run_id: str, timeout_seconds: float) -> TrackingServer:
        from updraft_learner.mlflow_rest import TrackingServer
        from updraft_learner.pod import MlflowCredentials

        login = settings.credentials().mlflow
        access = MlflowCredentials(settings.mlflow_uri, login.username, login.password.get_secret_value())
        return TrackingServer(access, run_id=run_id, timeout_seconds=timeout_seconds)

    def watch_pods(conn_id: str, namespace: str) -> AbstractAsyncContextManager[PodWatch]:
        from updraft.kubernetes.watch import shared_watch

        return shared_watch(conn_id, namespace)

    async def list_nodes(conn_id: str) -> list[dict[str, Any]]:
        from updraft.kubernetes.nodes import nodes_of

        return await nodes_of(conn_id)

    return Services(settings, open_ledger, open_store, open_cluster, open_tracking, open_run, watch_pods, list_nodes)


def platform_services() -> Services:
    """Return the services of this process's own platform, by its environment."""
    return services_of(settings())


class UsesServices:
    """Gives an operator or a trigger its services. `make_services` is the one place to give it others."""

    make_services: Callable[[], Services] = staticmethod(platform_services)

    @property
    def services(self) -> Services:
        return self.make_services()
