"""Define the paths of the embedded stack's files. Called by everything in this package.

`config`, `files` and `records` define the content of the files.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from updraft.exceptions import UpdraftError

HOME_VARIABLE = "UPDRAFT_HOME"
# Set in every process of a stack, so that `down` finds all processes of a home. Not UPDRAFT_HOME, which users set in
# their own shells.
MARK_VARIABLE = "UPDRAFT_STACK_OF"
PART_VARIABLE = "UPDRAFT_STACK_PART"


class StackError(UpdraftError):
    """The embedded stack could not do what was asked. The message says which part, why, and where to look."""


@dataclass(frozen=True)
class Home:
    """The state folder of one stack, and the checkout from which it runs."""

    root: Path
    repository: Path

    @property
    def config_file(self) -> Path:
        return self.root / "config.json"

    @property
    def credentials_file(self) -> Path:
        """Read by the platform (`UPDRAFT_CREDENTIALS_FILE`)."""
        return self.root / "credentials.json"

    @property
    def secrets_file(self) -> Path:
        """Return what only the stack itself and its owner's CLI need: log-ins and signing keys."""
        return self.root / "secrets.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def airflow(self) -> Path:
        return self.root / "airflow"

    @property
    def airflow_database(self) -> Path:
        return self.airflow / "airflow.db"

    @property
    def own_dags(self) -> Path:
        """Return the folder of DAG files of the home's owner, read beside the platform's if it exists at a start."""
        return self.root / "dags"

    @property
    def mlflow(self) -> Path:
        return self.root / "mlflow"

    @property
    def s3(self) -> Path:
        return self.root / "s3"

    @property
    def node(self) -> Path:
        return self.root / "node"

    @property
    def images(self) -> Path:
        return self.root / "images"

    @property
    def environments(self) -> Path:
        return self.root / "envs"

    @property
    def mlflow_environment(self) -> Path:
        return self.environments / "mlflow"

    @property
    def ledger_file(self) -> Path:
        return self.root / "ledger.db"

    @property
    def kubeconfig(self) -> Path:
        return self.node / "kubeconfig"

    @property
    def timings_file(self) -> Path:
        return self.root / "demo-timings.json"

    def log_of(self, part: str) -> Path:
        return self.logs / f"{part}.log"

    def folders(self) -> tuple[Path, ...]:
        buckets = tuple(self.s3 / name for name in ("updraft", "mlflow", "datasets"))
        return (self.root, self.logs, self.run, self.airflow, self.airflow / "config", self.mlflow, self.s3) + (
            *buckets,
            self.node,
            self.images,
            self.environments,
        )


def find_repository(start: Path | None = None) -> Path:
    """Return the checkout: the folder with the lock file and the image catalogue, above `start` or this package."""
    candidates = [start] if start is not None else [Path(__file__), Path.cwd()]
    for candidate in candidates:
        resolved = candidate.resolve()
        for folder in (resolved, *resolved.parents):
            if (folder / "images" / "catalogue.toml").is_file() and (folder / "uv.lock").is_file():
                return folder
    raise StackError(
        "The checkout of Updraft was not found: no folder above "
        f"{' or '.join(str(c) for c in candidates)} has uv.lock and images/catalogue.toml; run this inside a clone."
    )


def find_home(environment: Mapping[str, str] | None = None, *, root: Path | None = None) -> Home:
    """Return the home that a command means: `root`, else UPDRAFT_HOME, else `.updraft` in the checkout."""
    environment = os.environ if environment is None else environment
    repository = find_repository()
    if root is None:
        named = environment.get(HOME_VARIABLE, "")
        root = Path(named).expanduser() if named else repository / ".updraft"
    return Home(root=root.absolute(), repository=repository)


def bin_folder() -> Path:
    """Return where the programs of the running environment lie."""
    return Path(sys.executable).parent


def write_private(path: Path, text: str) -> bool:
    """Write `text` to a file that only its owner may read; atomically, and only if it differs.

    Returns whether anything was written. A file with wider permissions is narrowed.
    """
    if path.is_file() and path.read_text() == text:
        path.chmod(0o600)
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # with mode 0600
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return True
