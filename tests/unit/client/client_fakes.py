"""A platform behind `httpx.MockTransport`: Airflow's log-in and REST, and the plugin's routes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from updraft.client import Client, Connection
from updraft.client.http import Session
from updraft.schemas import API_PREFIX

URL = "http://airflow.test"
NOW = "2026-01-01T00:00:00Z"


def job_answer(job_id: str = "digits-1", state: str = "PROCESSING", **more: Any) -> dict[str, Any]:
    return {
        "id": job_id,
        "name": "digits",
        "tenant": "default",
        "state": state,
        "reason": "because",
        "ended": state in ("COMPLETED", "FAILED", "CANCELLED"),
        "created_at": NOW,
        "updated_at": NOW,
        "dag_id": "train_model",
        "run_id": job_id,
        **more,
    }


@dataclass
class FakeAirflow:
    """Answers as Airflow and the plugin do; `requests` is what was asked, `override` answers first."""

    password: str = "right"
    tokens: int = 0
    valid: set[str] = field(default_factory=set)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    job_dags: dict[str, str] = field(default_factory=dict)  # DAGs of manifests, and the name of each manifest's job
    jobs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # successive answers; the last one stays
    blobs: dict[str, bytes] = field(default_factory=dict)
    trees: dict[str, Any] = field(default_factory=dict)
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    parts: dict[str, str] = field(default_factory=dict)  # part -> why it is down
    paused: bool = False
    requests: list[tuple[str, str]] = field(default_factory=list)
    override: Callable[[httpx.Request], httpx.Response | None] = lambda _request: None
    code_limit_bytes: int = 1_000_000

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.requests.append((request.method, path))
        answer = self.override(request)
        if answer is not None:
            return answer
        if path == "/auth/token":
            return self._log_in(request)
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in self.valid:
            return httpx.Response(401, json={"detail": "Not authenticated"})
        if path.startswith(API_PREFIX):
            return self._plugin(request, path.removeprefix(API_PREFIX))
        return self._rest(request, path.removeprefix("/api/v2"))

    def _log_in(self, request: httpx.Request) -> httpx.Response:
        if json.loads(request.content)["password"] != self.password:
            return httpx.Response(401, json={"detail": "Invalid credentials"})
        self.tokens += 1
        token = f"token-{self.tokens}"
        self.valid.add(token)
        return httpx.Response(201, json={"access_token": token})

    def _rest(self, request: httpx.Request, path: str) -> httpx.Response:
        if path == "/dags/~/dagRuns":
            wanted = request.url.params["run_id_pattern"]
            return httpx.Response(200, json={"dag_runs": [run for name, run in self.runs.items() if wanted in name]})
        dag_id = path.removeprefix("/dags/").partition("/")[0]
        if dag_id not in ("train_model", *self.job_dags):
            return httpx.Response(404, json={"detail": f"The Dag with ID: `{dag_id}` was not found"})
        return self._dag(request, dag_id, path.removeprefix(f"/dags/{dag_id}"))

    def _dag(self, request: httpx.Request, dag_id: str, path: str) -> httpx.Response:
        if path == "":
            return httpx.Response(200, json={"dag_id": dag_id, "is_paused": self.paused})
        if path == "/details":
            params = {"name": {"value": self.job_dags.get(dag_id, "")}}
            return httpx.Response(200, json={"dag_id": dag_id, "params": params})
        if path == "/dagRuns":
            body = json.loads(request.content)
            if body["dag_run_id"] in self.runs:
                return httpx.Response(409, json={"detail": {"reason": "Unique constraint violation"}})
            self.runs[body["dag_run_id"]] = {
                "dag_id": dag_id,
                "dag_run_id": body["dag_run_id"],
                "state": "queued",
                "conf": body["conf"],
                "queued_at": NOW,
            }
            return httpx.Response(200, json=self.runs[body["dag_run_id"]])
        run_id = path.removeprefix("/dagRuns/").partition("/")[0]
        if run_id not in self.runs:
            return httpx.Response(404, json={"detail": f"The DagRun {run_id} was not found"})
        if path.endswith("/taskInstances"):
            return httpx.Response(200, json={"task_instances": self.runs[run_id].get("tasks", [])})
        if request.method == "PATCH":
            self.runs[run_id]["state"] = json.loads(request.content)["state"]
        return httpx.Response(200, json=self.runs[run_id])

    def _plugin(self, request: httpx.Request, path: str) -> httpx.Response:
        if path == "/health":
            parts = [
                {"name": n, "ok": n not in self.parts, "detail": self.parts.get(n, "answers")}
                for n in ("ledger", "storage", "mlflow", "cluster")
            ]
            limits = {"code_bytes": self.code_limit_bytes, "data_bytes": 1_000_000}
            return httpx.Response(200, json={"ok": not self.parts, "parts": parts, "limits": limits})
        if path in ("/validate", "/possible"):
            return httpx.Response(200, json={"valid": True})
        if path == "/trees/missing":
            wanted = {file["sha256"] for file in json.loads(request.content)["files"]}
            return httpx.Response(200, json={"missing": sorted(wanted - set(self.blobs))})
        kind, _, name = path.strip("/").partition("/")
        if kind == "blobs":
            content = request.read()
            assert hashlib.sha256(content).hexdigest() == name
            self.blobs[name] = content
            return httpx.Response(200, json={"sha256": name, "size_bytes": len(content)})
        if kind == "trees":
            self.trees[name] = json.loads(request.content)
            return httpx.Response(200, json={"sha256": name, "size_bytes": 0})
        if kind == "secrets" and request.method == "PUT":
            self.secrets[name] = json.loads(request.content)["data"]
            return httpx.Response(204)
        if kind == "secrets":
            return httpx.Response(200, json={"secrets": sorted(self.secrets)})
        if kind == "jobs" and name in self.jobs:
            answers = self.jobs[name]
            return httpx.Response(200, json=answers.pop(0) if len(answers) > 1 else answers[0])
        message = f"job: {name!r} does not exist"
        return httpx.Response(404, json={"error": {"message": message, "fields": []}})


def make_client(airflow: FakeAirflow, password: str = "right", connection: Connection | None = None) -> Client:
    given = connection or Connection(URL, username="admin", password=password)
    session = Session(given, transport=httpx.MockTransport(airflow), retry_wait_seconds=0)
    return Client(session=session, sleep=lambda _seconds: None)
