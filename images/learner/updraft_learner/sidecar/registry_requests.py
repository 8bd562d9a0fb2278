"""Answer a program's calls to the model registry: they are held as requests, because the platform alone registers.

`mlflow.register_model` and `log_model(registered_model_name=...)` go on as if they had worked. The name is a tag of the
job's run. If the manifest trusts the job's code (`export.trust_code`), the task `register_model` carries the last
request out; otherwise a warning says what the manifest needs.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from updraft_learner.mlflow_rest import TAG_MODEL_NEWEST, TAG_MODEL_REQUEST
from updraft_learner.record.report import Warnings
from updraft_learner.sidecar.refusals import EndpointError

HELD_VERSION = "0"  # MLflow's own begin with 1
NAMES = 100
NAME_CHARACTERS = 256

Json = dict[str, Any]


class RegistryRequests:
    """The names under which the program asked to register models.

    Args:
        record: Called with the tags that tell of a request.
        carried_out: Whether the manifest lets the platform register the program's own model.
    """

    def __init__(
        self, warnings: Warnings, record: Callable[[dict[str, str]], None], *, carried_out: bool = False
    ) -> None:
        self._warnings, self._record, self._carried_out = warnings, record, carried_out
        self._versions: dict[str, Json] = {}
        self._lock = threading.Lock()

    def answer(self, method: str, path: str, fields: Mapping[str, Any]) -> Json:
        """Answer a request below `registered-models` or `model-versions`; raises EndpointError."""
        action = path.partition("/")[2]
        if action in ("search", "get-latest-versions"):
            return {}
        if method == "DELETE" or action in ("delete", "delete-tag", "transition-stage", "rename"):
            raise EndpointError.permission(f"{path}: a program cannot change the model registry; the platform does")
        name = str(fields.get("name") or "")
        if not 0 < len(name) <= NAME_CHARACTERS:
            raise EndpointError.invalid(f"name {name[:60]!r} is refused: 1 to {NAME_CHARACTERS} characters")
        if path == "registered-models/create":
            return {"registered_model": {"name": name, "creation_timestamp": _now_ms()}}
        if path == "model-versions/create":
            return {"model_version": self._hold(name, fields)}
        with self._lock:
            held = self._versions.get(name)
        if held is None:
            raise EndpointError.missing(f"the program has registered no model {name[:60]!r}")
        if path.startswith("model-versions/") or action == "alias":
            return {"model_version": held}
        return {"registered_model": {"name": name, "latest_versions": [held]}}

    def _hold(self, name: str, fields: Mapping[str, Any]) -> Json:
        version = {
            "name": name,
            "version": HELD_VERSION,
            "status": "READY",  # the client waits for it
            "current_stage": "None",
            "creation_timestamp": _now_ms(),
            **{key: str(fields[key]) for key in ("source", "run_id", "model_id") if fields.get(key)},
        }
        with self._lock:
            if name not in self._versions and len(self._versions) >= NAMES:
                raise EndpointError.invalid(f"the program has registered {NAMES} models, which is the limit")
            self._versions[name] = version
            names = ", ".join(self._versions)
        newest = {"name": name, "model_id": version.get("model_id", "")}
        self._record({TAG_MODEL_REQUEST: names[:5000], TAG_MODEL_NEWEST: json.dumps(newest)})
        if self._carried_out:
            self._say_later(names)
        else:
            self._warnings.add(
                "registry",
                f"the program registers {names[:200]}: held, since the platform registers models after checking them; "
                "set export: {formats: [mlflow], trust_code: true} in the manifest to have it done, or export: "
                "{register_as: NAME} for a checked model (docs/howto/mlflow.md)",
            )
        return version

    def _say_later(self, names: str) -> None:
        if len(self._versions) > 1:
            self._warnings.add(
                "registry", f"the program registers {names[:200]}: only the last one is registered, after the export"
            )


def _now_ms() -> int:
    return round(time.time() * 1000)
