"""The pod that prepares code and data, in this process: its three containers' work, one after the other."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from updraft.storage import ContentStore, Staged, look
from updraft.storage.prepared import Prepared, put_request, read_prepared
from updraft.storage.sources import staged_of
from updraft_data.__main__ import main
from updraft_learner import contract
from updraft_learner.contract import PodConfig
from updraft_learner.pod import PodPaths, S3Credentials
from updraft_learner.prepare.documents import CREDENTIALS, PrepareRequest
from updraft_learner.prepare.keeping import keep_trees
from updraft_learner.stage import StageError, stage

JOB = "job-1"


def pod_config(attempt: int = 1) -> PodConfig:
    """Of a pod of the role `prepare`, for the tenant `default`."""
    return PodConfig(JOB, "default", "prepare", attempt, 1, 1, "unused", "default", "", "")


class Pod:
    """One pod: `run` does all of it; the parts can be run by themselves."""

    def __init__(
        self,
        store: Any,
        folder: Path,
        credentials: S3Credentials,
        *,
        secrets: Mapping[str, Mapping[str, str]] | None = None,
        code_secret: Mapping[str, str] | None = None,
    ) -> None:
        self.store, self.config = store, pod_config()
        self.paths = PodPaths(folder / "root", folder / "private")
        self.paths.root.mkdir(parents=True)
        self._file = folder / "credentials.json"
        s3 = {name: getattr(credentials, name) for name in S3Credentials.__dataclass_fields__}
        document = {
            "s3": s3,
            "mlflow": {"uri": "http://127.0.0.1:1"},
            "sources": dict(secrets or {}),
            "endpoint_token": "t",
        }
        self._file.write_text(json.dumps(document))
        self.environment = {contract.ROOT_ENV: str(self.paths.root)}
        self.environment |= {CREDENTIALS[key]: value for key, value in (code_secret or {}).items()}

    def copy(self, request: PrepareRequest) -> None:
        """The step with credentials, before the program."""
        put_request("default", JOB, 1, request, store=self.store)
        with _variable(contract.CREDENTIALS_ENV, str(self._file)):
            stage(self.config, self.paths, self.store, io.StringIO())

    def work(self) -> int:
        """The program; returns its exit code."""
        return main(self.environment)

    def keep(self) -> None:
        """The sidecar, after it."""
        keep_trees(self.config, self.paths, self.store)

    def run(self, request: PrepareRequest) -> Prepared:
        try:
            self.copy(request)
        except StageError:
            pass
        else:
            self.work()
            self.keep()
        found = read_prepared("default", JOB, 1, store=self.store)
        assert found is not None
        return found


def prepare(
    source: str,
    content: ContentStore,
    *,
    settings: Any,
    credentials: Mapping[str, str] | None = None,
    secret_name: str | None = None,
    **options: Any,
) -> Staged:
    """`source` as a tree, as a worker and a pod of the job make it. Raises the platform's error."""
    keys = credentials if source.startswith("s3:") else None
    found = look(source, content, name="code", settings=settings, credentials=keys, secret_name=secret_name, **options)
    if isinstance(found, Staged):
        return found
    request = PrepareRequest((found,), settings.git_protocols)
    made = prepared(request, content, settings, credentials, secret_name)
    if made.error is not None:
        raise made.error.error()
    provenance = made.sources["code"].provenance.model_dump(exclude_none=True)
    return staged_of(source, content.get_tree(made.sources["code"].tree), **provenance)


def prepared(
    request: PrepareRequest,
    content: ContentStore,
    settings: Any,
    secret: Mapping[str, str] | None = None,
    secret_name: str | None = None,
) -> Prepared:
    """What a pod of its own leaves of the request."""
    from updraft.storage.platform import platform_credentials

    secrets = {secret_name: secret} if secret and secret_name else {}
    with tempfile.TemporaryDirectory(prefix="prepare-pod-") as folder:
        pod = Pod(
            content.store,
            Path(folder),
            platform_credentials(settings),
            secrets=secrets,
            code_secret=secret if request.sources[0].kind == "git" else None,
        )
        return pod.run(request)


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
