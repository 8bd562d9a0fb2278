from __future__ import annotations

import hashlib
import json
import shutil
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
    "data": [{"source": "tree:DATA", "expectations": {"expectations": [{"type": "x"}]}}],
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
        train_tasks(dag, params())
    return dag


@pytest.fixture
def make_platform(
    environment: Path, empty_ledger: bytes, dag: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    """Makes a platform with one job of this manifest, or a copy of another one. The newest is the one in use."""
    from unit.operators.airflow_fakes import Platform
    from unit.operators.platform_fakes import FakeTrackingServer, Watched

    import updraft.guardian.outbox
    import updraft.kubernetes.secrets
    import updraft.ledger
    import updraft.storage
    import updraft.storage.logbook
    import updraft.storage.objects
    import updraft.storage.platform
    import updraft.storage.signals
    import updraft.tracking
    import updraft.validation
    from updraft.ledger import Ledger
    from updraft.settings import settings
    from updraft.validation import ValidationResult
    from updraft_learner.trees import Tree, TreeFile

    made: list[Ledger] = []

    def make(like: Platform | None = None, **changes: Any) -> Platform:
        folder = environment / str(len(made))
        folder.mkdir()
        if like is None:
            (folder / "ledger.db").write_bytes(empty_ledger)
        else:
            shutil.copytree(like.store.root, folder / "store")
            with (
                closing(sqlite3.connect(like.store.root.parent / "ledger.db")) as source,
                closing(sqlite3.connect(folder / "ledger.db")) as target,
            ):
                source.backup(target)
        monkeypatch.setenv("UPDRAFT_LEDGER_URL", f"sqlite:///{folder}/ledger.db")
        settings.cache_clear()
        ledger = Ledger(f"sqlite:///{folder}/ledger.db")
        made.append(ledger)
        platform = Platform(folder, ledger, dag, {**dag.params.dump(), "manifest": {**MANIFEST, **changes}})
        if like is not None:
            platform.become(like)
        store = Watched(platform.store, platform.blade)
        watched_ledger = Watched(ledger, platform.blade)
        monkeypatch.setattr(updraft.ledger, "open_ledger", lambda url: watched_ledger)
        for module in (
            updraft.storage,
            updraft.storage.platform,
            updraft.storage.objects,
            updraft.storage.logbook,
            updraft.storage.signals,
        ):
            monkeypatch.setattr(module, "platform_store", lambda *_: store)
        core = Watched(platform.cluster, platform.blade)
        monkeypatch.setattr(updraft.kubernetes.secrets, "core_api", lambda _: core)
        mlflow = Watched(platform.mlflow, platform.blade)
        monkeypatch.setattr(updraft.tracking, "client", lambda: mlflow)
        monkeypatch.setattr(updraft.guardian.outbox, "tracking_server", lambda run: FakeTrackingServer(mlflow, run))
        monkeypatch.setattr(
            updraft.validation, "validate_stored", lambda fetch, tree, suite, format: ValidationResult(True, 1)
        )
        for name in () if like else ("CODE", "DATA"):
            data = name.encode()
            digest = hashlib.sha256(data).hexdigest()
            tree = Tree((TreeFile("file.txt", digest, len(data)),))
            platform.store.put_bytes(f"default/blobs/{digest}", data)
            platform.store.put_bytes(f"default/trees/{tree.sha256}.json", tree.to_json())
            text = json.dumps(platform.params["manifest"]).replace(f"tree:{name}", f"tree:{tree.sha256}")
            platform.params["manifest"] = json.loads(text)
        return platform

    yield make
    for ledger in made:
        ledger.close()
