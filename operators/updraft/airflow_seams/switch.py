"""Decide whether a seam applies: Airflow has a version that it was tried with, and no setting leaves it out.

Called by each seam's module, and by `settings`, `stack` and `updraft.stack.migrate` for the names in the setting.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from updraft.airflow_seams.registry import SEAMS
from updraft.exceptions import UpdraftError

VARIABLE = "UPDRAFT_AIRFLOW_SEAMS_OFF"
ALL = "all"

log = logging.getLogger(__name__)


@cache
def airflow_version() -> str:
    """Return the installed version of Airflow, empty where it is not installed."""
    try:
        return version("apache-airflow-core")
    except PackageNotFoundError:
        return ""


def check_names(names: Iterable[str]) -> frozenset[str]:
    """Return the seams that `names` means, where `all` means every one. Raises UpdraftError for an unknown name."""
    chosen = frozenset(names)
    if unknown := sorted(chosen - SEAMS.keys() - {ALL}):
        raise UpdraftError(
            f"{VARIABLE}: there is no seam {', '.join(unknown)}; the seams are {', '.join(SEAMS)}, or {ALL}"
        )
    return frozenset(SEAMS) if ALL in chosen else chosen


def switched_off(environment: Mapping[str, str]) -> frozenset[str]:
    """Return the seams that `UPDRAFT_AIRFLOW_SEAMS_OFF` names. Raises UpdraftError for an unknown name."""
    return check_names(filter(None, (name.strip() for name in environment.get(VARIABLE, "").split(","))))


def reason_off(name: str, environment: Mapping[str, str], airflow: str) -> str | None:
    """Return why the seam is left out with this environment and this version of Airflow; None if it applies."""
    seam = SEAMS[name]
    if name in switched_off(environment):
        return f"{VARIABLE} names it"
    if airflow not in seam.versions:
        return f"it was tried with Airflow {', '.join(seam.versions)}, and this is {airflow or 'no Airflow'}"
    return None


def left_out(name: str) -> str | None:
    """Return why this process leaves the seam out; None if it applies."""
    return reason_off(name, os.environ, airflow_version())


def applies(name: str) -> bool:
    """Return whether this process applies the seam; if not, log once why and what is slower."""
    reason = left_out(name)
    if reason is not None:
        _warn_once(name, reason)
    return reason is None


@cache
def _warn_once(name: str, reason: str) -> None:
    log.warning("The Airflow seam %s is left out: %s. %s", name, reason, SEAMS[name].without)
