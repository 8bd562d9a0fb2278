"""The object store as the platform uses it: content by digest, sources staged into it, and what learners left there.

`content` keeps blobs and trees, `sources` turns s3://, git, zip and local folders into trees, `objects` reads a job's
status, logs, checkpoints and results. Called by operators, triggers and the API. botocore is imported on first use.
"""

from __future__ import annotations

from updraft.storage import objects
from updraft.storage.content import ContentStore
from updraft.storage.platform import content_store, platform_store
from updraft.storage.sources import stage_source
from updraft.storage.staged import Staged

__all__ = ["ContentStore", "Staged", "content_store", "objects", "platform_store", "stage_source"]
