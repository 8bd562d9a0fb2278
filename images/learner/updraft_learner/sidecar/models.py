"""Handle logged models (`mlflow.<flavour>.log_model(name=...)`): only those of the job's own run.

The model that the platform makes from the checked export also belongs to that run; a program may only read it. The
server gives a model its id, so creating one needs the server; everything else follows the endpoint's rules.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from updraft_learner.contract import PodConfig
from updraft_learner.mlflow_rest import TAG_JOB, ServerUnavailable, TrackingServer, artifact_path
from updraft_learner.record.disk import POD_DISK, PodDisk
from updraft_learner.record.files import read_json
from updraft_learner.sidecar.artifact_uris import ArtifactUris
from updraft_learner.sidecar.children import ChildRuns
from updraft_learner.sidecar.recorder import is_platform_tag
from updraft_learner.sidecar.refusals import EndpointError

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_WRITES = {("PATCH", ""), ("POST", "params"), ("PATCH", "tags")}

Json = dict[str, Any]


class LoggedModels:
    """The logged models of the job, with the server's path of each model's artifacts; remembered in `state_file`."""

    def __init__(
        self,
        config: PodConfig,
        server: TrackingServer,
        places: ArtifactUris,
        children: ChildRuns,
        state_file: Path,
        disk: PodDisk = POD_DISK,
    ) -> None:
        self._config, self._server, self._places, self._children = config, server, places, children
        self._state_file, self._disk = state_file, disk
        self._roots: dict[str, str] = read_json(state_file, {})
        self._lock = threading.Lock()
        self.before_finalising: list[Any] = []  # called first, so that a ready model has all its files

    def answer(self, method: str, rest: str, body: Mapping[str, Any]) -> Json:
        """Answer a request below `logged-models`; raises EndpointError or ServerUnavailable."""
        if (method, rest) == ("POST", ""):
            return self._create(body)
        if (method, rest) == ("POST", "search"):
            return self._search(body)
        model_id, _, action = rest.partition("/")
        if (method, action) == ("GET", ""):
            return self._localised(self._own(model_id))
        if (method, action) not in _WRITES:
            raise EndpointError.permission(
                f"{method} logged-models/{rest}: a program creates, reads and finishes models"
            )
        _check_tags(body)
        self.root_of(model_id, write=True)
        if action == "":
            for hook in self.before_finalising:
                hook()
        answer = self._checked(method, f"logged-models/{rest}", {**body, "model_id": model_id})
        return self._localised(answer) if "model" in answer else answer

    def root_of(self, model_id: str, *, write: bool = False) -> str:
        """Return the path of a model's artifacts below the server's artifact API.

        Raises EndpointError if the model is not the job's, or if it is the platform's and `write` is set.
        """
        with self._lock:
            root = self._roots.get(model_id)
        if root is not None:  # the program's own; the platform's has its tag from the beginning
            return root
        answer = self._own(model_id)
        if not _is_platforms(answer["model"]):
            return self._remember(answer)
        if write:
            raise EndpointError.permission(
                f"logged model {model_id} is the one that the platform made of the job's export; programs may read it, "
                "and log models of their own"
            )
        return _root(answer)

    def _create(self, body: Mapping[str, Any]) -> Json:
        _check_tags(body)
        source = str(body.get("source_run_id") or "")
        run_id = source if self._children.owns(source) else self._config.mlflow_run_id
        own = {"experiment_id": self._config.mlflow_experiment_id, "source_run_id": run_id}
        answer = self._checked("POST", "logged-models", {**body, **own})
        self._remember(answer)
        return self._localised(answer)

    def _search(self, body: Mapping[str, Any]) -> Json:
        own = {"experiment_ids": [self._config.mlflow_experiment_id]}
        answer = self._checked("POST", "logged-models/search", {**body, **own})
        models = [model for model in answer.get("models", []) if self._is_own(model)]
        return {"models": [self._localised({"model": model})["model"] for model in models]}

    def _own(self, model_id: str) -> Json:
        if not _ID.fullmatch(model_id):
            raise EndpointError.invalid(f"{model_id!r} is no id of a logged model")
        answer = self._checked("GET", f"logged-models/{model_id}", None)
        if not self._is_own(answer["model"]):
            raise EndpointError.permission(f"logged model {model_id} does not belong to the job's run")
        return answer

    def _is_own(self, model: Mapping[str, Any]) -> bool:
        source = model["info"].get("source_run_id")
        return bool(source == self._config.mlflow_run_id) or self._children.owns(source)

    def _checked(self, method: str, path: str, body: Mapping[str, Any] | None) -> Json:
        answer = self._server.call(method, path, body=body)
        if not answer.ok:
            raise EndpointError(str(answer.body.get("error_code", "INTERNAL_ERROR")), answer.message, answer.status)
        return answer.body

    def _remember(self, answer: Mapping[str, Any]) -> str:
        root = _root(answer)
        with self._lock:
            self._roots[str(answer["model"]["info"]["model_id"])] = root
            self._disk.save_json(self._state_file, self._roots)
        return root

    def _localised(self, answer: Mapping[str, Any]) -> Json:
        model = answer["model"]
        uri = self._places.model_uri(str(model["info"]["model_id"]))
        return {**answer, "model": {**model, "info": {**model["info"], "artifact_uri": uri}}}


def _root(answer: Mapping[str, Any]) -> str:
    try:
        return artifact_path(str(answer["model"]["info"]["artifact_uri"]))
    except ServerUnavailable as exc:
        raise EndpointError("INTERNAL_ERROR", str(exc), 501) from exc


def _is_platforms(model: Mapping[str, Any]) -> bool:
    return any(tag.get("key") == TAG_JOB for tag in model["info"].get("tags") or ())


def _check_tags(body: Mapping[str, Any]) -> None:
    """Refuse the tags by which the platform knows the model that it made itself from the verified export."""
    tags = body.get("tags") or []
    if not isinstance(tags, list) or not all(isinstance(tag, dict) for tag in tags):
        raise EndpointError.invalid("tags is no list of objects")
    if refused := sorted(name for name in (str(tag.get("key")) for tag in tags) if is_platform_tag(name)):
        raise EndpointError.permission(f"tag {refused[0]!r} belongs to the platform; choose a name without 'updraft.'")
