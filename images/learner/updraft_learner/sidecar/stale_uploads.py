"""Abort uploads of large files that earlier attempts never finished: the store keeps their parts until then."""

from __future__ import annotations

from contextlib import suppress

from updraft_learner.checkpoint_names import parse_name
from updraft_learner.contract import Keys, PodConfig
from updraft_learner.store import ObjectStore, StorageError


def give_up_older(config: PodConfig, store: ObjectStore) -> None:
    """Abort the uploads of earlier pods, before this pod begins one. Servers that do not list uploads keep them."""
    with suppress(StorageError):
        store.abort_uploads(f"{Keys(config.prefix).job(config.job_id)}/", lambda key: is_older(config, key))


def is_older(config: PodConfig, key: str) -> bool:
    """Return whether an object below the job is written by earlier attempts, or by this learner alone."""
    keys = Keys(config.prefix)
    if key.startswith(f"{keys.results(config.job_id, config.role, config.learner)}/"):
        return True
    kind, _, rest = key.removeprefix(f"{keys.job(config.job_id)}/").partition("/")
    folder = rest.partition("/")[0]
    if kind == "checkpoints":
        name = parse_name(folder)
        return name is not None and name.attempt < config.attempt
    role, _, number = folder.rpartition("-")
    return kind == "attempts" and role == config.role and number.isdigit() and int(number) < config.attempt
