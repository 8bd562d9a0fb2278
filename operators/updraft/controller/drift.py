"""Decide whether a job that its schedule started trains: the manifest's `schedule.and_drift`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pydantic import ValidationError

from updraft.controller.data_versions import champions_job, whole_tree
from updraft.controller.idempotency import NOT_NEEDED
from updraft.exceptions import DataError
from updraft_data.drift import Profile
from updraft_data.drift import drift as distances
from updraft_data.suite import suite_digest

if TYPE_CHECKING:
    from updraft.ledger import Job
    from updraft.manifest import Data, Manifest
    from updraft.manifest.model import Drift
    from updraft.services import Services

log = logging.getLogger(__name__)


def why_not_needed(services: Services, job: Job, manifest: Manifest) -> str | None:
    """Return why the job does not train, and record it; None if it trains.

    It trains if a user started it, if the champion is too old, if the data differs from what the champion was trained
    on, and if that is not known. Raises DataError for a column that the data does not have.
    """
    asked = manifest.schedule.and_drift if manifest.schedule else None
    if asked is None or not _asks_for_drift(services, job):
        return None
    book = services.ledger.idempotency
    found = book.get(job.id, NOT_NEEDED)
    if found is not None:
        return found
    reason, drifted = _look(services, job, manifest, asked)
    services.ledger.jobs.note(job.id, reason)
    log.info("%s", reason)
    return None if drifted else book.record(job.id, NOT_NEEDED, reason)


def _asks_for_drift(services: Services, job: Job) -> bool:
    """Return whether the job's schedule started it, for another reason than the champion's age."""
    fired = [
        event
        for event in services.ledger.series.of_series(job.tenant, job.name)
        if event.kind == "fired" and event.job_id == job.id
    ]
    return bool(fired) and not any(event.evidence.get("aged") for event in fired)


def _look(services: Services, job: Job, manifest: Manifest, asked: Drift) -> tuple[str, bool]:
    """Return what was found, for people, and whether the job trains."""
    from updraft import tracking

    model = manifest.export.register_as if manifest.export else None
    current = tracking.champion(services.tracking, model) if model else None
    if current is None:
        return f"{model} has no champion yet", True
    made_by = champions_job(services, job, current[0])
    if made_by is None:
        return f"no job of this platform made the champion, version {current[0].version} of {model}", True
    found: dict[str, float] = {}
    for number, item in enumerate(manifest.data):
        if item.expectations is None:
            continue
        new, old = _profile(services, job, item, number), _profile(services, made_by, item, number)
        if new is None or old is None:
            return f"nothing is recorded of the columns that job {made_by.id} trained on", True
        if missing := [name for name in asked.columns if name not in new.columns]:
            known = ", ".join(list(new.columns)[:20])
            raise DataError(
                f"schedule.and_drift.columns: {', '.join(missing)[:200]} cannot be compared; columns that can: {known}"
            )
        found |= distances(old, new, asked.columns)
    column, largest = max(found.items(), key=lambda pair: pair[1], default=("none", 0.0))
    which = f"version {current[0].version} of {model} was trained on"
    words = f"column {column} is {largest:.2f} away from what {which}; {asked.above:g} is asked"
    return (f"the data has drifted: {words}", True) if largest >= asked.above else (f"no drift: {words}", False)


def _profile(services: Services, job: Job, item: Data, number: int) -> Profile | None:
    """Return what is recorded of the job's data set; None if nothing is."""
    data = job.data or ()
    suite = item.expectations
    if number >= len(data) or not isinstance(suite, dict):
        return None
    known = services.ledger.validations.get(job.tenant, whole_tree(data[number]), suite_digest(suite, item.format))
    raw = None if known is None else known.result.get("profile")
    try:
        return None if raw is None else Profile.model_validate(raw)
    except ValidationError:  # of another version of the platform
        return None
