"""Use the object store for the platform: content by digest, staged sources, and what learners have stored.

`content` stores blobs and trees. `sources` finds the tree of a source that the store already has, `prepared` reads what
a pod made of the other sources, and `objects` reads a job's status, logs, checkpoints and results. Called by operators,
triggers and the API. botocore is imported on first use.
"""

from __future__ import annotations

from updraft.storage import objects
from updraft.storage.content import ContentStore
from updraft.storage.platform import platform_store
from updraft.storage.remote import check_there
from updraft.storage.sources import look
from updraft.storage.staged import Staged

__all__ = ["ContentStore", "Staged", "check_there", "look", "objects", "platform_store"]
