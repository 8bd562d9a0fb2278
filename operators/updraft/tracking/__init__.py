"""Use MLflow: one run per job, and the registry. Only with `MlflowClient`: the fluent API ends runs on exit.

    auth.py       sign requests to the tracking server
    runs.py       open a job's run, write to it, set its status to the verdict's
    registry.py   one model version per job, one move of the alias per promotion
    replay.py     send what sidecars could not

Importing this package takes seconds (mlflow): callers import it where they use it.
"""

from __future__ import annotations

from updraft.tracking.auth import client
from updraft.tracking.registry import (
    CHAMPION,
    PREVIOUS,
    VersionRef,
    champion,
    check_owner,
    claim,
    find_version,
    find_version_number,
    move_champion,
    owner_of,
    register,
    tag_version,
)
from updraft.tracking.runs import (
    TAG_TENANT,
    RunRef,
    attach_page,
    log_datasets,
    log_json,
    metrics,
    metrics_of,
    open_child,
    open_run,
    requested_model,
    set_tags,
)

__all__ = [
    "CHAMPION",
    "PREVIOUS",
    "TAG_TENANT",
    "RunRef",
    "VersionRef",
    "attach_page",
    "champion",
    "check_owner",
    "claim",
    "client",
    "find_version",
    "find_version_number",
    "log_datasets",
    "log_json",
    "metrics",
    "metrics_of",
    "move_champion",
    "open_child",
    "open_run",
    "owner_of",
    "register",
    "requested_model",
    "set_tags",
    "tag_version",
]
