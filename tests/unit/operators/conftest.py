from __future__ import annotations

import copy
import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from updraft.ledger import upgrade

KUBE_CONFIG = json.dumps(
    {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
)


@pytest.fixture(scope="session")
def empty_ledger(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("ledger") / "empty.db"
    upgrade(f"sqlite:///{path}")
    return path.read_bytes()


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Settings of a platform that nothing listens for."""
    from updraft.settings import settings

    credentials = tmp_path / "credentials.json"
    credentials.write_text(
        json.dumps(
            {"s3": {"access_key": "AK", "secret_key": "hush"}, "mlflow": {"username": "u", "password": "hush-too"}}
        )
    )
    values = {
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW_CONN_UPDRAFT_KUBERNETES": json.dumps(
            {"conn_type": "kubernetes", "extra": {"kube_config": KUBE_CONFIG}}
        ),
        "UPDRAFT_LEDGER_URL": f"sqlite:///{tmp_path}/ledger.db",
        "UPDRAFT_S3_ENDPOINT": "http://127.0.0.1:1",
        "UPDRAFT_MLFLOW_URI": "http://127.0.0.1:1",
        "UPDRAFT_CREDENTIALS_FILE": str(credentials),
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


MANIFEST: dict[str, Any] = {
    "name": "digits",
    "framework": {"name": "pytorch"},
    "command": "python train.py",
    "params": {"lr": 0.1},
    "resources": {"learners": 2, "cpus": 0.5, "memory": "256MiB"},
    "data": [
        {
            "source": "tree:DATA",
            "expectations": {"expectations": [{"type": "expect_table_row_count_to_equal", "kwargs": {"value": 1}}]},
        }
    ],
    "code": "tree:CODE",
    "checkpoints": {"keep": {"latest": 2, "best": 1}, "metric": "acc"},
    "evaluate": {"command": "python evaluate.py"},
    "export": {"formats": ["onnx"], "register_as": "digits", "promote_if": {"acc": ">= champion"}},
}


@pytest.fixture(scope="session")
def dag() -> Any:
    from airflow.sdk import DAG

    from updraft.operators.wiring import DAG_ARGS, params, train_tasks

    with DAG(dag_id="train_model", schedule=None, **DAG_ARGS) as dag:
        train_tasks(dag, params(), "default")
    return dag


@pytest.fixture(scope="session")
def form_values(dag: Any) -> dict[str, Any]:
    """The values of the DAG's form. Judging them all takes longer than many a task."""
    return dict(dag.params.dump())


@pytest.fixture
def make_platform(
    environment: Path, empty_ledger: bytes, dag: Any, form_values: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    """Makes a platform with one job of this manifest, or a copy of another one. The newest is the one in use. Without
    `judged`, its data has not been judged before: a pod of the role `prepare` is launched.

    Made for hundreds of copies: all share one file and one engine, which knows its statements by then.
    """
    from kubernetes.client.configuration import Configuration
    from outside import Outside
    from sqlalchemy import event
    from unit.operators.airflow_fakes import Platform
    from unit.operators.platform_fakes import FakeTrackingServer, Watched

    from updraft.ledger import Ledger
    from updraft.settings import settings
    from updraft_data.result import ValidationResult
    from updraft_data.suite import suite_digest
    from updraft_learner.trees import Tree, TreeFile

    made: list[Ledger] = []
    copies: list[Ledger] = []
    shared = Configuration()
    monkeypatch.setattr(Configuration, "get_default_copy", lambda: shared)  # each of a pod's objects makes its own

    def ledger_with(content: bytes) -> Ledger:
        file = environment / f"ledger-{len(made)}.db"
        file.write_bytes(content)
        ledger = Ledger(f"sqlite:///{file}")
        event.listen(ledger._engine, "connect", _hurry)
        made.append(ledger)
        return ledger

    def copy_of(ledger: Ledger) -> Ledger:
        with closing(sqlite3.connect(str(ledger._engine.url.database))) as source:
            content = source.serialize()
        if not copies:
            copies.append(ledger_with(content))
            return copies[0]
        copies[0]._engine.dispose()
        file = Path(str(copies[0]._engine.url.database))
        for left in environment.glob(f"{file.name}-*"):
            left.unlink()
        file.write_bytes(content)
        return copies[0]

    def make(like: Platform | None = None, *, judged: bool = True, **changes: Any) -> Platform:
        ledger = ledger_with(empty_ledger) if like is None else copy_of(like.ledger)
        monkeypatch.setenv("UPDRAFT_LEDGER_URL", str(ledger._engine.url))
        settings.cache_clear()
        platform = Platform(ledger, dag, {**copy.deepcopy(form_values), "manifest": {**MANIFEST, **changes}})
        if like is not None:
            platform.become(like)
        store = Watched(platform.store, platform.blade)
        watched_ledger = Watched(ledger, platform.blade)
        core = Watched(platform.cluster, platform.blade)
        mlflow = Watched(platform.mlflow, platform.blade)
        platform.outside = outside = Outside()
        outside.ledger, outside.store, outside.cluster, outside.mlflow = watched_ledger, store, core, mlflow
        outside.run = lambda run_id: FakeTrackingServer(mlflow, run_id)
        for name in () if like else ("CODE", "DATA"):
            data = name.encode()
            digest = hashlib.sha256(data).hexdigest()
            tree = Tree((TreeFile("file.txt", digest, len(data)),))
            platform.store.put_bytes(f"default/blobs/{digest}", data)
            platform.store.put_bytes(f"default/trees/{tree.sha256}.json", tree.to_json())
            text = json.dumps(platform.params["manifest"]).replace(f"tree:{name}", f"tree:{tree.sha256}")
            platform.params["manifest"] = json.loads(text)
            if name == "DATA" and judged:
                suite = MANIFEST["data"][0]["expectations"]
                verdict = ValidationResult(True, 1).to_json()
                digest = suite_digest(suite, "auto")
                ledger.validations.record("default", tree.sha256, digest, success=True, result=verdict)
        return platform

    yield make
    for ledger in made:
        ledger.close()


def _hurry(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA synchronous=OFF")  # no power is cut here
