"""Carries a learner's record to its MLflow run after the pod has gone: what the sidecar could not send in time.

The record in the object store is the sidecar's own journal, so the sidecar's own forwarder reads it: each point is
seen once, also when this runs twice or the sidecar had sent a part. Called by `updraft.operators.replay`.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from updraft.exceptions import UnavailableError
from updraft.settings import Settings
from updraft_learner.pod import MlflowCredentials
from updraft_learner.sidecar.forward import Forwarder
from updraft_learner.sidecar.journal import Journal
from updraft_learner.sidecar.report import Warnings
from updraft_learner.sidecar.spool import RUN, Spool
from updraft_learner.sidecar.tracking import ServerUnavailable, TrackingServer, artifact_path
from updraft_learner.store import ObjectStore

CHUNK = re.compile(r"\d+\.jsonl")
ARTIFACT = re.compile(r"\d+\.(data|json)")


@dataclass(frozen=True)
class Replayed:
    """What MLflow did not have before."""

    points: int
    artifacts: int
    warnings: tuple[str, ...] = ()


def replay(settings: Settings, store: ObjectStore, run_id: str, metrics_key: str, artifacts_key: str) -> Replayed:
    """Bring one learner's metrics, params, tags and artifacts into the run. Raises UnavailableError, StorageError."""
    credentials = settings.credentials().mlflow
    server = TrackingServer(
        MlflowCredentials(settings.mlflow_uri, credentials.username, credentials.password.get_secret_value()),
        run_id=run_id,
    )
    warnings = Warnings()
    with tempfile.TemporaryDirectory(prefix="updraft-replay-") as temporary:
        folder = Path(temporary)
        try:
            points = _points(store, metrics_key, server, warnings, folder)
            artifacts = _artifacts(store, artifacts_key, server, warnings, folder / "spool")
        except ServerUnavailable as exc:
            raise UnavailableError(f"MLflow at {settings.mlflow_uri}: {exc}") from exc
    return Replayed(points, artifacts, warnings.texts())


def _points(store: ObjectStore, prefix: str, server: TrackingServer, warnings: Warnings, folder: Path) -> int:
    if not _fetch(store, prefix, CHUNK, folder / "journal"):
        return 0
    journal = Journal(folder / "journal")
    try:
        forwarder = Forwarder(journal, server, warnings, folder / "forward.json", min_seconds=0)
        while forwarder.step():
            pass
        return forwarder.sent
    finally:
        journal.close()


def _artifacts(store: ObjectStore, prefix: str, server: TrackingServer, warnings: Warnings, folder: Path) -> int:
    if not _fetch(store, prefix, ARTIFACT, folder):
        return 0

    def root_of(owner: str) -> str:
        if owner == RUN:
            return server.artifact_root()
        answer = server.get(f"logged-models/{owner}")
        if not answer.ok:
            raise ServerUnavailable(f"MLflow does not give model {owner}: {answer.message}", ambiguous=False)
        return artifact_path(str(answer.body["model"]["info"]["artifact_uri"]))

    spool, count = Spool(folder, server, warnings, root_of), 0
    while spool.step():
        count += 1
    return count


def _fetch(store: ObjectStore, prefix: str, names: re.Pattern[str], folder: Path) -> int:
    folder.mkdir()
    count = 0
    for item in store.list(f"{prefix}/"):
        name = item.key[len(prefix) + 1 :]
        if names.fullmatch(name):
            with store.open(item.key) as source, (folder / name).open("wb") as target:
                shutil.copyfileobj(source, target)
            count += 1
    return count
