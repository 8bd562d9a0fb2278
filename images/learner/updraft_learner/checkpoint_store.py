"""Handle checkpoints in the store: their names, and how the parts of several learners become one checkpoint.

    CHECKPOINTS/step-0000000120-a1-s3fa2c1d0/    step 120, attempt 1, in parts
      __0_0.distcp, .metadata, checkpoint-0001-of-0002.json, __1_0.distcp, ...
      PART-0001-of-0002.json       learner 1's sidecar uploads it last: digest and size of each of its files
      PART-0002-of-0002.json
      MANIFEST.json                made from the parts once all their files are stored; it makes the checkpoint exist
      QUARANTINED.json             instead of MANIFEST.json: the checkpoint was found damaged, with the reason

The process that finds all parts writes the manifest: the last sidecar, or the platform. The bytes are always the same,
so several processes may write it, and more than once. Standard library only. Called by the sidecar and by
`updraft.storage`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from updraft_learner.checkpoint_names import PART, QUARANTINE_MARKER
from updraft_learner.contract import CHECKPOINT_MARKER, MARKER_LIMIT_BYTES, Keys
from updraft_learner.store import ObjectStore

_SHARED = ("name", "local", "job", "attempt", "parts", "save", "step")  # fields that are the same in all parts

Joined = Literal["whole", "waiting", "gone"]


class PartsDisagree(Exception):
    """The parts are not from the same save, so they can never be one checkpoint."""


def join_parts(store: ObjectStore, keys: Keys, job_id: str, name: str) -> Joined:
    """Write the manifest if all parts are stored in full. It may be called twice, or by several processes at once.

    Returns "gone" if no part exists any more: the checkpoint was deleted or quarantined.

    Raises:
        PartsDisagree: the parts can never be one checkpoint.
        StorageError: the store did not answer.
    """
    prefix = f"{keys.checkpoint(job_id, name)}/"
    sizes = {item.key[len(prefix) :]: item.size for item in store.list(prefix)}
    found = sorted((int(match[1]), int(match[2]), path) for path in sizes if (match := PART.match(path)))
    if CHECKPOINT_MARKER in sizes:
        return "whole"
    if not found or QUARANTINE_MARKER in sizes:
        return "gone"
    parts = found[0][1]
    if any(count != parts for _, count, _ in found):
        raise PartsDisagree(f"checkpoint {name}: its parts count themselves differently")
    if [part for part, _, _ in found] != list(range(1, parts + 1)):
        return "waiting"
    if sum(sizes[path] for _, _, path in found) > MARKER_LIMIT_BYTES:
        raise PartsDisagree(
            f"checkpoint {name}: the descriptions of its parts are larger than {MARKER_LIMIT_BYTES} bytes"
        )
    texts = [store.get_bytes(f"{prefix}{path}", MARKER_LIMIT_BYTES) for _, _, path in found]
    if any(text is None for text in texts):
        return "gone"
    manifest = merge(name, [json.loads(text or b"") for text in texts])
    if any(sizes.get(path) != facts["size"] for path, facts in manifest["files"].items()):
        return "waiting"
    store.put_bytes(keys.checkpoint_marker(job_id, name), to_json(manifest))
    return "whole"


def merge(name: str, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the manifest of the checkpoint that these parts, in their order, are. Raises PartsDisagree."""
    first = parts[0]
    files: dict[str, Any] = {}
    for part in parts:
        differs = [field for field in _SHARED if part.get(field) != first.get(field)]
        if differs:
            raise PartsDisagree(f"checkpoint {name}: its parts differ in {', '.join(differs)}")
        twice = sorted(files.keys() & part["files"].keys())
        if twice:
            raise PartsDisagree(f"checkpoint {name}: file {twice[0]} is in more than one part")
        files |= part["files"]
    shared = {field: first.get(field) for field in (*_SHARED, "metrics", "created")}
    return {**shared, "learner": 1, "bytes": sum(facts["size"] for facts in files.values()), "files": files}


def to_json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, allow_nan=False).encode()
