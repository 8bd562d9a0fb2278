"""Answer requests for a nested run of the job: the same calls as for the job's run, under the nested run's own id.

Writes are recorded and sent in their turn. Unlike the job's run, a nested run may be named and ended by the program.
"""

from __future__ import annotations

from collections.abc import Mapping

from updraft_learner.mlflow_rest import TrackingServer
from updraft_learner.record.forward import Forwarder
from updraft_learner.record.spool import Spool
from updraft_learner.sidecar import recorder as rec
from updraft_learner.sidecar.artifact_uris import ArtifactUris
from updraft_learner.sidecar.children import ChildRuns
from updraft_learner.sidecar.models import LoggedModels
from updraft_learner.sidecar.recorder import Recorder
from updraft_learner.sidecar.refusals import EndpointError
from updraft_learner.sidecar.requests import Call, Json, checked, items, key_of, number, texts, whole

READ_AFTER_WRITE_SECONDS = 3.0
ARTIFACT_WAIT_SECONDS = 120.0
STATUSES = ("RUNNING", "FINISHED", "FAILED", "KILLED")
_AS_THEY_ARE = ("runs/log-inputs", "runs/log-model")
_CALLS = {
    ("POST", "runs/update"),
    ("GET", "runs/get"),
    ("POST", "runs/log-metric"),
    ("POST", "runs/log-batch"),
    ("POST", "runs/log-parameter"),
    ("POST", "runs/set-tag"),
    ("POST", "runs/delete-tag"),
    ("POST", "runs/outputs"),
    *(("POST", path) for path in _AS_THEY_ARE),
    ("GET", "metrics/get-history"),
    ("GET", "artifacts/list"),
}


class NestedRoutes:
    """The routes of nested runs. They have no state besides their parts; many threads use them."""

    def __init__(
        self,
        recorder: Recorder,
        forwarder: Forwarder,
        spool: Spool,
        server: TrackingServer,
        models: LoggedModels,
        places: ArtifactUris,
        children: ChildRuns,
    ) -> None:
        self._recorder, self._forwarder, self._spool = recorder, forwarder, spool
        self._server, self._models, self._places, self._children = server, models, places, children

    def takes(self, call: Call) -> bool:
        """Return whether the request is for a nested run of the job. Raises ServerUnavailable if it cannot be known."""
        return (call.method, call.path) in _CALLS and self._children.owns(call.text("run_id", "run_uuid"))

    def answer(self, call: Call) -> Json:
        """Answer a request that `takes` accepts. Raises EndpointError or ServerUnavailable."""
        run_id = str(call.text("run_id", "run_uuid"))
        if call.method == "GET":
            return self._read(call, run_id)
        if call.path == "runs/update":
            self._write(call.path, run_id, _changes(call.body))
            return {"run_info": {"run_id": run_id, "run_uuid": run_id}}
        if call.path == "runs/outputs":
            for item in items(call.body, "models"):
                self._models.root_of(str(item.get("model_id")), write=True)
            self._write(call.path, run_id, {"models": call.body.get("models")})
        elif call.path in _AS_THEY_ARE:
            self._write(call.path, run_id, {k: v for k, v in call.body.items() if k not in ("run_id", "run_uuid")})
        elif call.path == "runs/delete-tag":
            self._write(call.path, run_id, {"key": _own_tag(key_of(call.body))})
        else:
            self._write("runs/log-batch", run_id, self._batch(call))
        return {}

    def localised(self, run: Mapping[str, object]) -> Json:
        """Return the server's run with the location of its artifacts below this endpoint."""
        info = dict(run["info"])  # type: ignore[call-overload]
        return {**run, "info": {**info, "artifact_uri": self._places.child_uri(str(info["run_id"]))}}

    def _batch(self, call: Call) -> Json:
        """Return a request's metrics, params and tags, each checked, as one batch."""
        one = [call.body]
        metrics = items(call.body, "metrics") if call.path == "runs/log-batch" else []
        params = items(call.body, "params") if call.path == "runs/log-batch" else []
        tags = items(call.body, "tags") if call.path == "runs/log-batch" else []
        metrics = one if call.path == "runs/log-metric" else metrics
        params = one if call.path == "runs/log-parameter" else params
        tags = one if call.path == "runs/set-tag" else tags
        for model_id in {str(item["model_id"]) for item in metrics if item.get("model_id")}:
            self._models.root_of(model_id, write=True)
        named = texts(tags)
        return {
            "metrics": [_point(item) for item in metrics],
            "params": [{"key": name, "value": value} for name, value in texts(params).items()],
            "tags": [
                {"key": _own_tag(name), "value": value}
                for name, value in named.items()
                if name == "mlflow.runName" or not rec.is_client_tag(name)
            ],
        }

    def _write(self, path: str, run_id: str, body: Mapping[str, object]) -> None:
        self._recorder.record([self._recorder.call_entry(path, {**body, "run_id": run_id})])

    def _read(self, call: Call, run_id: str) -> Json:
        if self._server.seems_up:
            self._forwarder.flush(READ_AFTER_WRITE_SECONDS)
        if call.path == "artifacts/list":
            self._spool.wait_empty(ARTIFACT_WAIT_SECONDS)
        answer = checked(self._server.get(call.path, {**call.query, "run_id": run_id}))
        if call.path == "runs/get":
            return {"run": self.localised(answer["run"])}
        if call.path == "artifacts/list":
            return {**answer, "root_uri": self._places.child_uri(run_id)}
        return answer


def _changes(body: Mapping[str, object]) -> Json:
    """Return the fields of an update that a program may set."""
    status = str(body.get("status") or "RUNNING")
    if status not in STATUSES:
        raise EndpointError.invalid(f"status {status[:60]!r} is refused; allowed are {', '.join(STATUSES)}")
    found: Json = {"status": status}
    if body.get("end_time"):
        found["end_time"] = whole(body, "end_time", 0)
    if body.get("run_name"):
        found["run_name"] = str(body["run_name"])[:250]
    return found


def _point(item: Mapping[str, object]) -> Json:
    point: Json = {
        "key": key_of(item),
        "value": rec.as_text(number(item, "value")),
        "timestamp": whole(item, "timestamp", 0),
        "step": whole(item, "step", 0),
    }
    names = ("model_id", "dataset_name", "dataset_digest")
    return point | {name: str(item[name]) for name in names if item.get(name)}


def _own_tag(name: str) -> str:
    if rec.is_platform_tag(name):
        raise EndpointError.permission(f"tag {name!r} belongs to the platform; choose a name without 'updraft.'")
    return name
