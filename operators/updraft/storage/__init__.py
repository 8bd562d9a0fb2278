"""The object store as the platform uses it: content by digest, sources staged into it, and what learners left there.

`content` keeps blobs and trees, `sources` tells which tree a source is where the store has it, `prepared` reads what a
pod made of the others, `objects` reads a job's status, logs, checkpoints and results. Called by operators, triggers and
the API. botocore is imported on first use.
"""

from __future__ import annotations

from updraft.storage import objects
from updraft.storage.content import ContentStore
from updraft.storage.platform import platform_store
from updraft.storage.remote import check_there
from updraft.storage.sources import look
from updraft.storage.staged import Staged

__all__ = ["ContentStore", "Staged", "check_there", "look", "objects", "platform_store"]
