"""The platform's DAG files as bundles of Airflow.

The wheel holds the files of the checkout's `dags/`. Entries of `[dag_processor] dag_bundle_config_list` name these
classes, so that no path need be known; docs/howto/deploy.md has them.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from airflow.dag_processing.bundles.base import BaseDagBundle
from airflow.dag_processing.bundles.local import LocalDagBundle

from updraft.exceptions import UpdraftError
from updraft.lifecycle.workflow import DEFAULT_TENANT
from updraft.services import platform_services
from updraft.tenants import tenants_at_start

log = logging.getLogger(__name__)

PACKAGE = Path(__file__).resolve().parent
FILE = f"{DEFAULT_TENANT}.py"


def dags_folder(package: Path = PACKAGE) -> Path:
    """Return the folder with the platform's DAG files: in the installed package, or in the checkout that it runs from.

    Raises UpdraftError when neither has them.
    """
    candidates = (package / "dags", package.parents[1] / "dags")
    for folder in candidates:
        if (folder / FILE).is_file():
            return folder
    where = " nor in ".join(map(str, candidates))
    raise UpdraftError(f"The platform's DAG files are neither in {where}; install the wheel of Updraft anew")


class UpdraftDagBundle(LocalDagBundle):
    """A DAG bundle with the platform's DAG files. Takes Airflow's own options of a local bundle, except for its path.

    An entry of `dag_bundle_config_list`:
        {"name": "updraft", "classpath": "updraft.bundle.UpdraftDagBundle", "kwargs": {}}
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(path=str(dags_folder()), **kwargs)


class TenantDagBundle(BaseDagBundle):
    """A DAG bundle with a DAG file for each tenant other than `default`, written again when the tenants change.

    A tenant that is removed keeps its file while a job of it runs.

    An entry of `dag_bundle_config_list`:
        {"name": "updraft-tenants", "classpath": "updraft.bundle.TenantDagBundle", "kwargs": {}}
    """

    @property
    def path(self) -> Path:
        """Return the folder of the files, below `[dag_processor] dag_bundle_storage_path`."""
        return Path(self.base_dir)

    def get_current_version(self) -> None:
        """Return None: the files have no versions."""

    def initialize(self) -> None:
        """Write the files if one is missing. Airflow calls it in each task, where the ledger is not asked without
        need."""
        try:
            names = tenants_at_start(os.environ).names
        except UpdraftError:
            names = ()
        self.path.mkdir(parents=True, exist_ok=True)
        if not names or not all((self.path / f"{name}.py").is_file() for name in names if name != DEFAULT_TENANT):
            self.refresh()
        super().initialize()

    def refresh(self) -> None:
        """Write the files that are missing or different, and remove those of tenants that are gone."""
        folder = self.path
        try:
            services = platform_services()
            wanted = {name for name in services.tenancy().names if name != DEFAULT_TENANT}
            gone = {path.stem for path in folder.glob("*.py")} - wanted
            kept = {job.tenant for job in services.ledger.jobs.live()} if gone else set()
        except UpdraftError as exc:
            log.warning("The DAG files of tenants stay as they are: %s", exc)
            return
        for tenant in sorted(wanted):
            _write(folder / f"{tenant}.py", dag_file(tenant))
        for tenant in sorted(gone - kept):
            (folder / f"{tenant}.py").unlink(missing_ok=True)


def dag_file(tenant: str) -> str:
    """Return the DAG file of a tenant."""
    return f'''"""The DAGs of the tenant {tenant}, for Airflow: `updraft.operators.tenant_dags` defines them."""

from __future__ import annotations

import airflow.providers.cncf.kubernetes.operators.pod  # noqa: F401 - pre-imported once by the DAG processor

from updraft.operators.tenant_dags import tenant_dags

globals().update(tenant_dags("{tenant}"))
'''


def _write(path: Path, text: str) -> None:
    """Write the file unless it has this text. Several processes may do so at once."""
    try:
        if path.read_text() == text:
            return
    except FileNotFoundError:
        pass
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(text)
    new.replace(path)
