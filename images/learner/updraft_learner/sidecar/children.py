"""Serve nested runs (`mlflow.start_run(nested=True)`): children of the job's run, which belong to the job alone.

The server gives a run its id, so starting one needs the server. What is logged to it afterwards is recorded and sent
in its turn, like the job's own calls. A child is known by a tag that only this module sets, so that a later attempt of
the job finds those of an earlier one. The platform ends the children that are left when the job ends.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from updraft_learner.contract import PodConfig
from updraft_learner.mlflow_rest import CHILD_RUNS, TAG_ROOT_RUN, ServerUnavailable, TrackingServer, artifact_path
from updraft_learner.record.disk import POD_DISK, PodDisk
from updraft_learner.record.files import read_json
from updraft_learner.sidecar import recorder as rec
from updraft_learner.sidecar.refusals import EndpointError

PARENT = "mlflow.parentRunId"
_ID = re.compile(r"[A-Za-z0-9]{1,64}", re.ASCII)

Json = dict[str, Any]


class ChildRuns:
    """The nested runs of the job, with the server's path of each one's artifacts; remembered in `state_file`."""

    def __init__(self, config: PodConfig, server: TrackingServer, state_file: Path, disk: PodDisk = POD_DISK) -> None:
        self._config, self._server, self._state_file, self._disk = config, server, state_file, disk
        self._roots: dict[str, str] = read_json(state_file, {})
        self._started = len(self._roots)
        self._lock = threading.Lock()

    def is_nested(self, tags: Mapping[str, str]) -> bool:
        """Return whether a run with these tags is to be a child of the job's run, or of one of its children."""
        parent = tags.get(PARENT)
        return parent is not None and (parent == self._config.mlflow_run_id or self.owns(parent))

    def create(self, body: Mapping[str, Any], tags: Mapping[str, str]) -> Json:
        """Start a run and return it as the server has it.

        Raises EndpointError if the job has too many, and ServerUnavailable.
        """
        if refused := sorted(filter(rec.is_platform_tag, tags)):
            raise EndpointError.permission(
                f"tag {refused[0]!r} belongs to the platform; choose a name without 'updraft.'"
            )
        with self._lock:
            if self._started >= CHILD_RUNS:
                raise EndpointError.invalid(
                    f"the job has started {CHILD_RUNS} nested runs in this launch, which is the limit; log the results "
                    "of further ones as metrics, or as a table"
                )
            self._started += 1
        own = {PARENT: tags[PARENT], TAG_ROOT_RUN: self._config.mlflow_run_id}
        kept = {name: value for name, value in tags.items() if not rec.is_client_tag(name)} | own
        answer = self._server.post(
            "runs/create",
            {
                "experiment_id": self._config.mlflow_experiment_id,
                "run_name": str(body.get("run_name") or tags.get("mlflow.runName") or "")[:250],
                "start_time": round(time.time() * 1000),
                "tags": [{"key": name, "value": value[:5000]} for name, value in kept.items()],
            },
        )
        if not answer.ok:
            raise EndpointError(str(answer.body.get("error_code", "INTERNAL_ERROR")), answer.message, answer.status)
        run: Json = answer.body["run"]
        self._remember(run)
        return run

    def owns(self, run_id: str | None) -> bool:
        """Return whether this is a nested run of the job. Raises ServerUnavailable if only the server could tell."""
        if run_id is None or not _ID.fullmatch(run_id) or run_id == self._config.mlflow_run_id:
            return False
        with self._lock:
            if run_id in self._roots:
                return True
        answer = self._server.get("runs/get", {"run_id": run_id})
        if not answer.ok or not self.is_child(answer.body["run"]):
            return False
        self._remember(answer.body["run"])
        return True

    def is_child(self, run: Mapping[str, Any]) -> bool:
        """Return whether the server's run has the tag of this job's nested runs."""
        tags = run.get("data", {}).get("tags") or []
        return {"key": TAG_ROOT_RUN, "value": self._config.mlflow_run_id} in tags

    def root_of(self, run_id: str) -> str:
        """Return the path of a nested run's artifacts below the server's artifact API."""
        if not self.owns(run_id):
            raise EndpointError.permission(f"run {run_id} is no nested run of the job")
        with self._lock:
            return self._roots[run_id]

    def _remember(self, run: Mapping[str, Any]) -> None:
        try:
            root = artifact_path(str(run["info"]["artifact_uri"]))
        except ServerUnavailable as exc:
            raise EndpointError("INTERNAL_ERROR", str(exc), 501) from exc
        with self._lock:
            self._roots[str(run["info"]["run_id"])] = root
            self._disk.save_json(self._state_file, self._roots)
