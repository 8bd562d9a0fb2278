"""Fakes for the routes' tests: a real SQLite ledger, a folder as the store, MLflow and the cluster in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import HTTPException, Request
from fastapi.testclient import TestClient
from folder_store import FolderStore

from updraft.api.accepted import AcceptedRun
from updraft.api.access import Caller, Guards, Policy, tenant_policy
from updraft.api.app import create_app
from updraft.api.deadline import Deadline
from updraft.api.parts import Parts
from updraft.api.room import UploadRoom
from updraft.api.store import JobStore
from updraft.exceptions import DataError, NotFoundError, RefusedError, UnavailableError
from updraft.ledger import Job, Ledger, NewJob, NewSeriesEvent, SeriesEvent, upgrade
from updraft.lifecycle.workflow import tenant_dag
from updraft.manifest.pod import Pod
from updraft.settings import Settings

MANIFEST = {
    "name": "digits",
    "framework": {"name": "pytorch"},
    "command": "python train.py",
    "resources": {"learners": 2},
}


@dataclass
class FakeTracking:
    runs: dict[str, dict[str, list[tuple[int, float, float]]]] = field(default_factory=dict)
    down: bool = False

    def check(self) -> str:
        if self.down:
            raise UnavailableError("MLflow at http://mlflow does not answer (ConnectError)")
        return "MLflow answers"

    def last(self, run_id: str) -> Mapping[str, float]:
        self.check()
        return {key: points[-1][2] for key, points in self.runs[run_id].items()}

    def last_of(self, experiment_ids: Sequence[str], run_ids: Sequence[str]) -> Mapping[str, Mapping[str, float]]:
        return {run_id: self.last(run_id) for run_id in run_ids if run_id in self.runs}

    def history(self, run_id: str, key: str) -> Sequence[tuple[int, float, float]]:
        self.check()
        return self.runs[run_id][key]


@dataclass
class FakeCluster:
    secrets: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    listed: list[dict[str, Any]] = field(default_factory=list)

    def check(self) -> str:
        return "the cluster answers"

    def nodes(self) -> list[dict[str, Any]]:
        return self.listed

    def addresses(self) -> Sequence[str]:
        return ("10.0.0.1",)

    def node_cache_problem(self, tenant: str) -> str | None:
        return "this platform has no cache on its nodes"

    def check_claim(self, tenant: str, name: str, learners: int) -> None:
        raise RefusedError(f"data.source: claim {name!r} does not exist")

    def lacking(self, tenant: str, pod: Pod | None, learners: int) -> list[tuple[str, str]]:
        names = (
            {} if pod is None else {f"pod.volumes[{n}].claim": v.claim for n, v in enumerate(pod.volumes) if v.claim}
        )
        return [(field, f"claim {name!r} does not exist") for field, name in names.items()]

    def put_secret(self, tenant: str, name: str, data: Mapping[str, str]) -> None:
        self.secrets[tenant, name] = dict(data)

    def list_secrets(self, tenant: str) -> list[str]:
        return sorted(name for owner, name in self.secrets if owner == tenant)

    def delete_secret(self, tenant: str, name: str) -> None:
        if self.secrets.pop((tenant, name), None) is None:
            raise NotFoundError(f"secret {name!r} does not exist")


@dataclass
class FakeRuns:
    """Airflow's runs, newest first."""

    runs: list[AcceptedRun] = field(default_factory=list)

    def unrecorded(self, recorded: Callable[[Any], set[tuple[str, str]]]) -> list[AcceptedRun]:
        known = recorded([(run.dag_id, run.run_id) for run in self.runs])
        return [run for run in self.runs if (run.dag_id, run.run_id) not in known]


TENANTS = frozenset({"default", "vision", "speech"})  # whose DAGs all users may use in Airflow


def guards() -> Guards:
    """`Bearer NAME` or `Bearer NAME:team,team` is that user; `reader` may not write."""

    def guard(write: bool) -> Callable[..., Caller]:
        def require(request: Request) -> Caller:
            header = request.headers.get("authorization", "")
            if not header.startswith("Bearer "):
                raise HTTPException(401, "Not authenticated")
            name, _, teams = header.removeprefix("Bearer ").partition(":")
            if write and name == "reader":
                raise HTTPException(403, "Forbidden")
            request.state.caller = Caller(name, TENANTS, frozenset(teams.split(",")) - {""})
            return request.state.caller  # type: ignore[no-any-return]

        return require

    return Guards(read=guard(False), write=guard(True), login_url=lambda back_to: f"/auth/login?next={back_to}")


@dataclass
class Platform:
    """One platform in a folder."""

    folder: Path
    ledger: Ledger
    store: FolderStore
    tracking: FakeTracking
    cluster: FakeCluster
    settings: Settings
    deadline: Deadline = field(default_factory=Deadline)
    data: set[str] = field(default_factory=set)
    accepted: FakeRuns = field(default_factory=FakeRuns)
    room: UploadRoom = field(default_factory=UploadRoom)

    @property
    def parts(self) -> Parts:
        return Parts(
            settings=self.settings,
            ledger=lambda: self.ledger,
            store=JobStore(lambda: self.store),
            tracking=self.tracking,
            cluster=self.cluster,
            accepted=self.accepted,
            deadline=self.deadline,
            room=self.room,
            roll_back=self.roll_back,
            check_data=self.check_data,
        )

    def roll_back(self, *, tenant: str, model: str, to: str | None, by: str, reason: str, key: str) -> SeriesEvent:
        if to == "9":
            raise RefusedError(f"{model} has no version 9 in the registry, or no longer; name another version")
        event = NewSeriesEvent(
            key, tenant, "digits", "rolled back", reason, model=model, version=to or "1", by=by, evidence={"over": "2"}
        )
        return self.ledger.series.record(event)

    def check_data(self, source: str, tenant: str) -> None:
        if source not in self.data:
            raise DataError(f"{source}: bucket has no objects there; upload the data or correct the prefix")

    def client(self, user: str | None = "ada", policy: Policy | None = None) -> TestClient:
        app = create_app(self.parts, guards(), policy or tenant_policy(self.parts.tenancy))
        headers = {} if user is None else {"Authorization": f"Bearer {user}"}
        # Mounted as in Airflow, so that paths in the tests are those that clients use.
        from fastapi import FastAPI

        root = FastAPI()
        root.mount("/updraft", app)
        return TestClient(root, headers=headers, raise_server_exceptions=False, follow_redirects=False)

    def job(self, job_id: str = "digits-1", tenant: str = "default", **manifest: Any) -> Job:
        name = job_id.rpartition("-")[0]
        owner = {} if tenant == "default" else {"tenant": tenant}
        new = NewJob(
            job_id,
            tenant,
            name,
            tenant_dag("train_model", tenant),
            job_id,
            {**MANIFEST, "name": name, **owner, **manifest},
            "ada",
        )
        return self.ledger.jobs.record(new)

    def put_json(self, key: str, value: Any) -> None:
        self.store.put_bytes(key, json.dumps(value).encode())


def make_platform(folder: Path, tenants: tuple[str, ...] = ("default",)) -> Platform:
    url = f"sqlite:///{folder}/ledger.db"
    upgrade(url)
    settings = Settings(
        ledger_url=url,
        s3_endpoint="http://127.0.0.1:1",
        mlflow_uri="http://127.0.0.1:2",
        credentials_file=folder / "credentials.json",
        tenants=tenants,
        trusted_tenants=len(tenants) > 1,
        data_limit_bytes=1_000_000,
        airflow_public_uri="http://airflow",
        mlflow_public_uri="http://mlflow",
    )
    return Platform(folder, Ledger(url), FolderStore(folder / "bucket"), FakeTracking(), FakeCluster(), settings)
