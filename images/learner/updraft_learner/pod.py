"""Read the sidecar's configuration: PodConfig, credentials, and the paths of the pod's folders.

Everything comes from the environment: on the local node the folders have other paths than in a cluster, and only
environment values are rewritten. Called by the sidecar; raises `PodError` for anything that is missing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from updraft_learner import contract
from updraft_learner.contract import PodConfig


class PodError(Exception):
    """The pod's configuration is invalid; the exit code is ExitCode.CONFIGURATION."""


@dataclass(frozen=True)
class S3Credentials:
    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class MlflowCredentials:
    uri: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    workspace: str | None = None


@dataclass(frozen=True)
class PodCredentials:
    s3: S3Credentials
    mlflow: MlflowCredentials
    endpoint_token: str = field(repr=False)  # the token that the program sends to the sidecar's MLflow endpoint
    sources: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)  # secrets of buckets, by name


@dataclass(frozen=True)
class PodPaths:
    """The folders of the contract below another root."""

    root: Path
    private_root: Path | None = None  # a folder that the program cannot reach; below `root` if there is none
    cache: Path | None = None  # the node's cache of data, if it has one

    def at(self, path: str) -> Path:
        """Return where a path of the contract lies, such as `contract.DATA_DIR`."""
        return self.root / self.below(path)

    def below(self, path: str | Path) -> str:
        """Return a path of the contract, or a path below `root`, relative to `root`."""
        base = self.root if isinstance(path, Path) else contract.ROOT_DIR
        return Path(path).relative_to(base).as_posix()

    @property
    def code(self) -> Path:
        return self.at(contract.CODE_DIR)

    @property
    def data(self) -> Path:
        return self.at(contract.DATA_DIR)

    @property
    def result(self) -> Path:
        return self.at(contract.RESULT_DIR)

    @property
    def checkpoints(self) -> Path:
        return self.at(contract.CHECKPOINT_DIR)

    @property
    def logs(self) -> Path:
        return self.at(contract.LOG_DIR)

    @property
    def io(self) -> Path:
        return self.at(contract.IO_DIR)

    @property
    def trees(self) -> Path:
        return self.at(contract.TREES_DIR)

    @property
    def work_file(self) -> Path:
        """Return the file that `stage` writes for the program of the role prepare, which may change it."""
        return self.at(contract.PREPARE_FILE)

    @property
    def kept_work_file(self) -> Path:
        """Return the same for the sidecar."""
        return self.private / "prepare.json"

    @property
    def private(self) -> Path:
        """Return the sidecar's own state and buffers; not for the program, which is the same user."""
        return self.private_root or self.root / ".sidecar"

    @property
    def staged_file(self) -> Path:
        """Return the file that `stage` writes when everything is in place: a sidecar that is restarted does not stage
        again."""
        return self.private / "staged"

    @property
    def restored_file(self) -> Path:
        """Return the file in which `stage` names the folder of CHECKPOINT_DIR that it restored, so that the folder is
        not stored again."""
        return self.private / "restored.json"

    @property
    def restored_results_file(self) -> Path:
        """Return the file in which `stage` lists what it put into RESULT_DIR: path -> [size, mtime in ns]."""
        return self.private / "restored-results.json"


def read_paths(environment: Mapping[str, str] = os.environ) -> PodPaths:
    private = environment.get(contract.PRIVATE_ENV)
    root = Path(environment.get(contract.ROOT_ENV) or contract.ROOT_DIR)
    cache = environment.get(contract.CACHE_ENV)
    return PodPaths(root, Path(private) if private else None, Path(cache) if cache else None)


def read_config(environment: Mapping[str, str] = os.environ) -> PodConfig:
    text = environment.get(contract.CONFIG_ENV)
    if not text:
        raise PodError(
            f"environment variable {contract.CONFIG_ENV} is not set; it holds the pod's configuration as JSON"
        )
    try:
        return PodConfig.from_json(text)
    except (ValueError, KeyError, TypeError) as exc:
        raise PodError(f"{contract.CONFIG_ENV} is not a valid pod configuration ({type(exc).__name__}: {exc})") from exc


def read_credentials(environment: Mapping[str, str] = os.environ) -> PodCredentials:
    path = Path(environment.get(contract.CREDENTIALS_ENV) or contract.CREDENTIALS_FILE)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        s3, mlflow, token = raw["s3"], raw["mlflow"], raw["endpoint_token"]
        if not isinstance(token, str) or not token:
            raise ValueError
        return PodCredentials(
            s3=S3Credentials(**{name: s3.get(name) for name in S3Credentials.__dataclass_fields__}),
            mlflow=MlflowCredentials(**{name: mlflow.get(name) for name in MlflowCredentials.__dataclass_fields__}),
            endpoint_token=token,
            sources={name: dict(values) for name, values in (raw.get("sources") or {}).items()},
        )
    except OSError as exc:
        raise PodError(f"credentials file {path} cannot be read: {exc.strerror}") from exc
    except (ValueError, KeyError, TypeError, AttributeError):
        # Without `from exc`: a parser's message may quote the content.
        form = '{"s3": {...}, "mlflow": {...}, "endpoint_token": "..."}'
        raise PodError(f"credentials file {path} is not of the form {form}") from None
