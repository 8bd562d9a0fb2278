"""Open the bucket of the user's that a job's results are written to."""

from __future__ import annotations

from updraft_learner.contract import PodConfig
from updraft_learner.pod import PodCredentials
from updraft_learner.prepare.buckets import access
from updraft_learner.store import ObjectStore, open_store


def open_results_store(config: PodConfig, credentials: PodCredentials) -> ObjectStore | None:
    """Return the bucket; None if the job has none. Raises SourceError for a secret that is not one of a bucket."""
    target = config.results_to
    if target is None:
        return None
    allowed = access(credentials.sources.get(target.secret, {}), target.secret, credentials.s3)
    return open_store(target.bucket, allowed)
