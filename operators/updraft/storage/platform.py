"""Open the platform's own bucket, as the settings say."""

from __future__ import annotations

import os
import threading

from updraft.settings import Settings
from updraft_learner.pod import S3Credentials
from updraft_learner.store import S3Store, botocore_client

_stores: dict[tuple[int, str, S3Credentials], S3Store] = {}
_lock = threading.Lock()


def platform_credentials(settings: Settings) -> S3Credentials:
    s3 = settings.credentials().s3
    return S3Credentials(
        endpoint=settings.s3_endpoint,
        region=settings.s3_region,
        access_key=s3.access_key.get_secret_value(),
        secret_key=s3.secret_key.get_secret_value(),
    )


def platform_store(settings: Settings) -> S3Store:
    """Return the store of the platform's bucket; one client per process and credentials, as making one takes time."""
    credentials = platform_credentials(settings)  # read each time, so that a rotated secret is used
    key = (os.getpid(), settings.bucket, credentials)
    with _lock:
        if key not in _stores:
            _stores[key] = S3Store(settings.bucket, credentials)
        return _stores[key]


def warm_up() -> None:
    """Load what making a client needs, once for all processes that are forked from this one."""
    botocore_client(S3Credentials(endpoint="http://127.0.0.1", region="", access_key="none", secret_key="none"))


def _new_lock_after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock_after_fork)
