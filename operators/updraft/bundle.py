"""The platform's DAG files as a bundle of Airflow: for an Airflow that has its own DAGs beside them.

The wheel holds the files of the checkout's `dags/`. An entry of `[dag_processor] dag_bundle_config_list` names this
class, so that its path need not be known; docs/howto/deploy.md has it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.dag_processing.bundles.local import LocalDagBundle

from updraft.exceptions import UpdraftError
from updraft.lifecycle.workflow import TRAIN_DAG

PACKAGE = Path(__file__).resolve().parent


def dags_folder(package: Path = PACKAGE) -> Path:
    """Return the folder with the platform's DAG files: in the installed package, or in the checkout that it runs from.

    Raises UpdraftError when neither has them.
    """
    candidates = (package / "dags", package.parents[1] / "dags")
    for folder in candidates:
        if (folder / f"{TRAIN_DAG}.py").is_file():
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
