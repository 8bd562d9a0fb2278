"""The seam `shared_imports`: import modules once in this process, for all processes that are forked from it.

Called by the commands of the scheduler, the triggerer and the DAG processor in `stack`, each with its own list.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable

from updraft.airflow_seams.switch import applies


def import_ahead(names: Iterable[str]) -> bool:
    """Import the modules; return whether the seam applies. A module that fails is logged and left out."""
    if not applies("shared_imports"):
        return False
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:  # a task that needs it will report the error in its own log
            logging.getLogger(__name__).warning("%s cannot be imported", name, exc_info=True)
    return True
