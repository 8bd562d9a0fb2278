"""Answer requests to the loopback endpoint: MLflow's REST API, limited to the job's own run.

Writes are recorded and acknowledged at once. Reads go to the server with the job's credentials, after the recorded
writes were sent. The program cannot end, rename or delete the run; if it creates a new run, it gets the job's run.
`nested_routes` answers for nested runs. This module uses no HTTP: `endpoint` parses requests and calls `Routes.answer`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from updraft_learner.contract import PodConfig
from updraft_learner.mlflow_rest import ServerUnavailable, TrackingServer
from updraft_learner.record.forward import Forwarder
from updraft_learner.record.spool import Spool
from updraft_learner.sidecar import recorder as rec
from updraft_learner.sidecar.artifact_uris import ArtifactUris
from updraft_learner.sidecar.children import ChildRuns
from updraft_learner.sidecar.models import LoggedModels
from updraft_learner.sidecar.nested_routes import NestedRoutes
from updraft_learner.sidecar.recorder import Recorder
from updraft_learner.sidecar.refusals import EndpointError
from updraft_learner.sidecar.registry_requests import RegistryRequests
from updraft_learner.sidecar.requests import (
    Call,
    checked,
    items,
    key_of,
    model_of,
    number,
    other_spelling,
    texts,
    whole,
)

READ_AFTER_WRITE_SECONDS = 3.0
ARTIFACT_WAIT_SECONDS = 120.0

Json = dict[str, Any]


class Routes:
    """The routes. They have no state besides their parts; many threads use them."""

    def __init__(
        self,
        config: PodConfig,
        recorder: Recorder,
        forwarder: Forwarder,
        spool: Spool,
        server: TrackingServer,
        models: LoggedModels,
        places: ArtifactUris,
        *,
        children: ChildRuns,
        registry: RegistryRequests,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._nested = NestedRoutes(recorder, forwarder, spool, server, models, places, children)
        self._children, self._registry = children, registry
        self._config, self._recorder, self._forwarder, self._spool = config, recorder, forwarder, spool
        self._server, self._models, self._places, self._clock = server, models, places, clock
        self._started_ms = round(clock() * 1000)
        self._routes: dict[tuple[str, str], Callable[[Call], Json]] = {
            ("POST", "runs/create"): self._run_create,
            ("POST", "runs/update"): self._run_update,
            ("GET", "runs/get"): self._run_get,
            ("POST", "runs/search"): self._run_search,
            ("POST", "runs/log-metric"): self._log_metric,
            ("POST", "runs/log-batch"): self._log_batch,
            ("POST", "runs/log-parameter"): self._log_parameter,
            ("POST", "runs/set-tag"): self._set_tag,
            ("POST", "runs/delete-tag"): self._delete_tag,
            ("POST", "runs/log-inputs"): self._queued,
            ("POST", "runs/outputs"): self._outputs,
            ("POST", "runs/log-model"): self._queued,
            ("GET", "metrics/get-history"): self._read,
            ("GET", "artifacts/list"): self._list_artifacts,
            ("GET", "experiments/get"): self._experiment_get,
            ("GET", "experiments/get-by-name"): self._experiment_get,
            ("POST", "experiments/create"): lambda call: {"experiment_id": config.mlflow_experiment_id},
            ("POST", "experiments/search"): lambda call: {"experiments": [self._experiment(None)]},
            ("POST", "experiments/set-experiment-tag"): lambda call: {},
        }

    def answer(self, call: Call) -> Json:
        """Return the response's body.

        Raises:
            EndpointError: the request is not for this run, not supported, invalid, or the server is away.
        """
        if (name := other_spelling([call.body, call.query])) is not None:
            raise EndpointError.invalid(
                f"field {name[:60]!r} is refused: names of fields are small letters and underscores"
            )
        route = self._routes.get((call.method, call.path))
        try:
            if self._nested.takes(call):
                return self._nested.answer(call)
            if route is not None:
                return route(call)
            if call.path == "logged-models" or call.path.startswith("logged-models/"):
                return self._models.answer(call.method, call.path.removeprefix("logged-models").strip("/"), call.body)
            if call.path.startswith(("registered-models/", "model-versions/")):
                return self._registry.answer(call.method, call.path, {**call.query, **call.body})
        except ServerUnavailable as exc:
            raise EndpointError.away(str(exc)) from exc
        except OSError as exc:
            raise EndpointError.disk(exc) from exc
        raise _unsupported(call)

    # --- the run itself ---------------------------------------------------------------------------------

    def _run_create(self, call: Call) -> Json:
        experiment = call.text("experiment_id")
        if experiment not in (None, "0", self._config.mlflow_experiment_id):
            raise EndpointError.permission(f"experiment {experiment} is not the job's; leave experiment_id out")
        tags = texts(items(call.body, "tags"))
        if self._children.is_nested(tags):
            return {"run": self._nested.localised(self._children.create(call.body, tags))}
        self._recorder.record(self._recorder.tags_entries(self._clock(), tags, "mlflow"))
        return {"run": self._run_document()}

    def _run_update(self, call: Call) -> Json:
        self._own_run(call)
        return {"run_info": self._run_document()["info"]}

    def _run_get(self, call: Call) -> Json:
        self._own_run(call)
        return {"run": self._run_document()}

    def _run_search(self, call: Call) -> Json:
        self._catch_up()
        body = {**call.body, "experiment_ids": [self._config.mlflow_experiment_id]}
        answer = checked(self._server.post("runs/search", body))
        found = []
        for run in answer.get("runs", []):
            if run["info"]["run_id"] == self._config.mlflow_run_id:
                found.append(self._localised(run))
            elif self._children.is_child(run):
                found.append(self._nested.localised(run))
        return {
            "runs": found,
            **({"next_page_token": answer["next_page_token"]} if "next_page_token" in answer else {}),
        }

    def _run_document(self) -> Json:
        """Return the run as the server has it; as this process knows it while the server is away."""
        if self._server.seems_up:
            self._catch_up()
            try:
                answer = self._server.get("runs/get", {"run_id": self._config.mlflow_run_id})
                if answer.ok:
                    return self._localised(answer.body["run"])
            except ServerUnavailable:
                pass
        info = {
            "run_id": self._config.mlflow_run_id,
            "run_uuid": self._config.mlflow_run_id,
            "run_name": self._config.job_id,
            "experiment_id": self._config.mlflow_experiment_id,
            "user_id": "",
            "status": "RUNNING",
            "start_time": self._started_ms,
            "lifecycle_stage": "active",
            "artifact_uri": self._places.run_uri,
        }
        return {"info": info, "data": self._recorder.run_data(), "inputs": {}}

    def _localised(self, run: Mapping[str, Any]) -> Json:
        return {**run, "info": {**run["info"], "artifact_uri": self._places.run_uri}}

    # --- writing ------------------------------------------------------------------------------------------

    def _log_metric(self, call: Call) -> Json:
        self._own_run(call)
        self._record_metrics([call.body])
        return {}

    def _log_parameter(self, call: Call) -> Json:
        self._own_run(call)
        self._recorder.record(self._recorder.params_entries(self._clock(), texts([call.body]), "mlflow"))
        return {}

    def _set_tag(self, call: Call) -> Json:
        self._own_run(call)
        self._record_tags(texts([call.body]))
        return {}

    def _delete_tag(self, call: Call) -> Json:
        self._own_run(call)
        key = key_of(call.body)
        if rec.is_platform_tag(key) or rec.is_client_tag(key):
            raise EndpointError.permission(f"tag {key!r} belongs to the platform and cannot be deleted")
        self._recorder.record([self._recorder.call_entry("runs/delete-tag", self._with_run({"key": key}))])
        return {}

    def _log_batch(self, call: Call) -> Json:
        self._own_run(call)
        params, tags = texts(items(call.body, "params")), texts(items(call.body, "tags"))
        self._record_metrics(items(call.body, "metrics"))
        self._recorder.record(self._recorder.params_entries(self._clock(), params, "mlflow"))
        self._record_tags(tags)
        return {}

    def _queued(self, call: Call) -> Json:
        """Record a write that is sent in its turn, after what was recorded before it."""
        self._own_run(call)
        self._recorder.record([self._recorder.call_entry(call.path, self._with_run(call.body))])
        return {}

    def _outputs(self, call: Call) -> Json:
        self._own_run(call)
        for item in items(call.body, "models"):
            self._models.root_of(str(item.get("model_id")), write=True)
        return self._queued(call)

    def _record_metrics(self, items: list[Mapping[str, Any]]) -> None:
        # A model's metric is written to the model's own record, and the model may belong to another job.
        for model_id in {str(item["model_id"]) for item in items if item.get("model_id")}:
            self._models.root_of(model_id, write=True)
        groups: dict[tuple[int, int, tuple[tuple[str, str], ...]], dict[str, float]] = {}
        repeated: list[tuple[tuple[int, int, tuple[tuple[str, str], ...]], dict[str, float]]] = []
        for item in items:
            key, value = key_of(item), number(item, "value")
            when = (whole(item, "timestamp", round(self._clock() * 1000)), whole(item, "step", 0), model_of(item))
            group = groups.setdefault(when, {})
            if key in group:
                repeated.append((when, {key: value}))
            else:
                group[key] = value
        entries = []
        for (timestamp, step, model), values in [*groups.items(), *repeated]:
            entries += self._recorder.metrics_entries(timestamp / 1000, step, values, "mlflow", model=dict(model))
        self._recorder.record(entries)

    def _record_tags(self, tags: dict[str, str]) -> None:
        if refused := sorted(filter(rec.is_platform_tag, tags)):
            raise EndpointError.permission(
                f"tag {refused[0]!r} belongs to the platform; choose a name without 'updraft.'"
            )
        self._recorder.record(self._recorder.tags_entries(self._clock(), tags, "mlflow"))

    # --- reading ------------------------------------------------------------------------------------------

    def _read(self, call: Call) -> Json:
        self._own_run(call)
        self._catch_up()
        return checked(self._server.get(call.path, {**call.query, "run_id": self._config.mlflow_run_id}))

    def _list_artifacts(self, call: Call) -> Json:
        self._own_run(call)
        self._spool.wait_empty(ARTIFACT_WAIT_SECONDS)
        body = checked(self._server.get(call.path, {**call.query, "run_id": self._config.mlflow_run_id}))
        return {**body, "root_uri": self._places.run_uri}

    def _experiment_get(self, call: Call) -> Json:
        experiment = call.text("experiment_id")
        if experiment not in (None, "0", self._config.mlflow_experiment_id):
            raise EndpointError.permission(
                f"experiment {experiment} is not the job's; the job's is MLFLOW_EXPERIMENT_ID"
            )
        return {"experiment": self._experiment(call.text("experiment_name"))}

    def _experiment(self, name: str | None) -> Json:
        return {
            "experiment_id": self._config.mlflow_experiment_id,
            "name": name or self._config.job_id,
            "artifact_location": self._places.experiment_uri,
            "lifecycle_stage": "active",
        }

    def _catch_up(self) -> None:
        """Send what the program wrote before it reads, so that the read sees it."""
        if self._server.seems_up:
            self._forwarder.flush(READ_AFTER_WRITE_SECONDS)

    def _own_run(self, call: Call) -> None:
        run_id = call.text("run_id", "run_uuid")
        if run_id != self._config.mlflow_run_id:
            raise EndpointError.permission(
                f"run {run_id!r} is not the job's; this endpoint serves run {self._config.mlflow_run_id} only, which "
                "mlflow.start_run() without a run_id gives"
            )

    def _with_run(self, body: Mapping[str, Any]) -> Json:
        kept = {key: value for key, value in body.items() if key != "run_uuid"}
        return {**kept, "run_id": self._config.mlflow_run_id}


def _unsupported(call: Call) -> EndpointError:
    if call.path in ("runs/delete", "runs/restore", "experiments/delete", "experiments/update", "experiments/restore"):
        return EndpointError.permission(f"{call.path}: the platform alone ends, deletes and renames the job's run")
    return EndpointError(
        "ENDPOINT_NOT_FOUND", f"{call.method} {call.path} is not part of the job's MLflow endpoint", 404
    )
