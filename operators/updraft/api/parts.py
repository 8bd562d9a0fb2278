"""Define the systems that the routes use. There is one `Parts` per application; tests bring one with fakes.

Every call may block, so routes make it through `Deadline`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from updraft.api.accepted import AcceptedRuns, AirflowRuns
from updraft.api.deadline import Deadline
from updraft.api.room import UploadRoom
from updraft.api.store import JobStore
from updraft.exceptions import UnavailableError
from updraft.services import Services, services_of, tenancy_of
from updraft.settings import Settings
from updraft.tenants import Tenancy

if TYPE_CHECKING:
    from updraft.ledger import Ledger, SeriesEvent
    from updraft.manifest.pod import Pod

HEALTH_SECONDS = 4.0
HISTORY_SECONDS = 4.0
POINTS = 2_000  # of one metric; MLflow spreads at most 2,500 evenly


class Tracking(Protocol):
    """MLflow, read only."""

    def check(self) -> str: ...

    def last(self, run_id: str) -> Mapping[str, float]: ...

    def last_of(self, experiment_ids: Sequence[str], run_ids: Sequence[str]) -> Mapping[str, Mapping[str, float]]:
        """Return the last value of each metric of each run, by run id."""

    def history(self, run_id: str, key: str) -> Sequence[tuple[int, float, float]]:
        """Return (step, Unix time in seconds, value) in the order of steps."""


class Cluster(Protocol):
    """The parts of Kubernetes that the routes need."""

    def check(self) -> str: ...

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes as the API lists them, in plain JSON."""

    def check_claim(self, tenant: str, name: str, learners: int) -> None:
        """Raise RefusedError if this many learners cannot read the claim."""

    def lacking(self, tenant: str, pod: Pod | None, learners: int) -> list[tuple[str, str]]:
        """Return each field of the section `pod` that names what does not exist, and what to do about it."""

    def node_cache_problem(self, tenant: str) -> str | None:
        """Return why the learners of a node cannot share data, and what to do; None if they can."""

    def addresses(self) -> Sequence[str]:
        """Return the known addresses of the API server."""

    def put_secret(self, tenant: str, name: str, data: Mapping[str, str]) -> None: ...

    def list_secrets(self, tenant: str) -> list[str]: ...

    def delete_secret(self, tenant: str, name: str) -> None: ...


def _no_roll_back(**_: Any) -> SeriesEvent:
    raise UnavailableError("MLflow is not connected")


@dataclass(frozen=True)
class Parts:
    """The systems that one application uses."""

    settings: Settings
    ledger: Callable[[], Ledger]
    store: JobStore
    tracking: Tracking
    cluster: Cluster
    accepted: AcceptedRuns
    deadline: Deadline = field(default_factory=Deadline)
    room: UploadRoom = field(default_factory=UploadRoom)
    roll_back: Callable[..., SeriesEvent] = _no_roll_back  # as `controller.promotion.roll_back`
    check_data: Callable[[str, str], None] = lambda _source, _tenant: None  # raises DataError, RefusedError

    def tenancy(self) -> Tenancy:
        """Return the tenants in force."""
        return tenancy_of(self.settings, self.ledger)

    def check_ledger(self) -> str:
        self.ledger().jobs.find(limit=1)
        return "the ledger answers"


def _roll_back(services: Services, **wanted: Any) -> SeriesEvent:
    from updraft.api.champion_events import record_roll_back
    from updraft.controller.promotion import roll_back

    event = roll_back(services, **wanted)
    record_roll_back(wanted["tenant"], event)
    return event


def platform_parts(settings: Settings) -> Parts:
    """Return the parts of the platform that these settings describe. Connects to nothing."""
    from updraft.storage import check_there

    services = services_of(settings)
    return Parts(
        settings=settings,
        ledger=services.open_ledger,
        store=JobStore(services.open_store),
        tracking=MlflowTracking(services),
        cluster=KubernetesCluster(services),
        accepted=AirflowRuns(),
        roll_back=partial(_roll_back, services),
        check_data=lambda source, tenant: check_there(source, tenant, settings),
    )


@dataclass(frozen=True)
class MlflowTracking:
    services: Services

    def check(self) -> str:
        """Return a message that MLflow answers. Raises UnavailableError, also for a wrong log-in, which `/health` does
        not notice."""
        from updraft_learner.mlflow_rest import ServerUnavailable

        uri = self.services.settings.mlflow_uri
        try:
            answer = self.services.open_run("", HEALTH_SECONDS).get("experiments/search", {"max_results": 1})
        except ServerUnavailable as exc:
            raise UnavailableError(f"MLflow at {uri} does not answer ({exc})") from exc
        if not answer.ok:
            raise UnavailableError(f"MLflow at {uri} answers {answer.status}")
        return f"MLflow at {uri} answers"

    def last(self, run_id: str) -> Mapping[str, float]:
        from updraft import tracking

        return tracking.metrics(self.services.tracking, run_id)

    def last_of(self, experiment_ids: Sequence[str], run_ids: Sequence[str]) -> Mapping[str, Mapping[str, float]]:
        from updraft import tracking

        return tracking.metrics_of(self.services.tracking, experiment_ids, run_ids)

    def history(self, run_id: str, key: str) -> Sequence[tuple[int, float, float]]:
        """Return (step, time in seconds, value) of each point; of more than POINTS, as many at steps that are evenly
        spread, and the last."""
        query = {"run_id": run_id, "metric_key": key, "max_results": POINTS}
        answer = self._get("metrics/get-history", query)
        if answer.get("next_page_token"):
            query = {"run_ids": [run_id], "metric_key": key, "max_results": POINTS}
            sampled = self._get("metrics/get-history-bulk-interval", query).get("metrics", [])
            found = self._get("runs/get", {"run_id": run_id})["run"]["data"]["metrics"]
            # Steps that were repeated after a loss have several points, so those of the last steps may be missing.
            points = [*sampled, *(point for point in found if point["key"] == key)]
        else:
            points = answer.get("metrics", [])
        return sorted({(int(p.get("step", 0)), int(p["timestamp"]) / 1000, float(p["value"])) for p in points})

    def _get(self, path: str, query: Mapping[str, Any]) -> dict[str, Any]:
        from updraft_learner.mlflow_rest import ServerUnavailable

        try:
            answer = self.services.open_run("", HISTORY_SECONDS).get(path, query)
        except ServerUnavailable as exc:
            raise UnavailableError(f"MLflow did not answer ({exc})") from exc
        if not answer.ok:
            raise UnavailableError(f"MLflow did not give the history of a metric ({answer.status})")
        return answer.body


@dataclass(frozen=True)
class KubernetesCluster:
    services: Services

    def check(self) -> str:
        with self._errors():
            nodes = self.services.core.list_node(limit=1, _request_timeout=HEALTH_SECONDS)
        if not nodes.items:
            raise UnavailableError("the cluster answers, but has no node")
        return "the cluster answers"

    def nodes(self) -> list[dict[str, Any]]:
        from updraft.kubernetes.nodes import with_other_pods

        with self._errors():
            core = self.services.core
            listed = core.list_node(_request_timeout=HEALTH_SECONDS)
            nodes = list(core.api_client.sanitize_for_serialization(listed)["items"])
            return with_other_pods(core, nodes, HEALTH_SECONDS)

    def check_claim(self, tenant: str, name: str, learners: int) -> None:
        from updraft.kubernetes.claims import read_claim

        with self._errors():
            read_claim(self.services.core, self._namespace(tenant), name, learners)

    def lacking(self, tenant: str, pod: Pod | None, learners: int) -> list[tuple[str, str]]:
        from updraft.kubernetes.pod_needs import lacking

        with self._errors():
            return lacking(self.services.core, self._namespace(tenant), pod, learners)

    def node_cache_problem(self, tenant: str) -> str | None:
        from updraft.kubernetes.pod_needs import why_no_node_cache

        with self._errors():
            settings = self.services.settings
            return why_no_node_cache(self.services.core, self._namespace(tenant), settings.node_cache_claim)

    def addresses(self) -> Sequence[str]:
        from updraft.kubernetes.clients import api_server_addresses

        with self._errors():
            return api_server_addresses(self.services.core)

    def put_secret(self, tenant: str, name: str, data: Mapping[str, str]) -> None:
        from updraft.kubernetes.secrets import put_secret

        with self._errors():
            put_secret(self.services.core, self._namespace(tenant), tenant, name, dict(data))

    def list_secrets(self, tenant: str) -> list[str]:
        from updraft.kubernetes.secrets import list_secrets

        with self._errors():
            return list_secrets(self.services.core, self._namespace(tenant), tenant)

    def delete_secret(self, tenant: str, name: str) -> None:
        from updraft.kubernetes.secrets import delete_secret

        with self._errors():
            delete_secret(self.services.core, self._namespace(tenant), name)

    def _namespace(self, tenant: str) -> str:
        return self.services.settings.namespace(tenant)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn the Kubernetes client's errors into the platform's."""
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            yield
        except ApiException as exc:
            raise UnavailableError(f"the cluster answers {exc.status} ({exc.reason})") from exc
        except HTTPError as exc:
            raise UnavailableError(f"the cluster does not answer ({type(exc).__name__})") from exc
