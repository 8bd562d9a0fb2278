"""Checkpoints in the store: how they are named, and how the parts of several learners become one.

    CHECKPOINTS/step-0000000120-a1-s3fa2c1d0/    step 120, attempt 1, in parts
      __0_0.distcp, .metadata, checkpoint-0001-of-0002.json, __1_0.distcp, ...
      PART-0001-of-0002.json       last of what learner 1's sidecar uploads: digest and size of each of its files
      PART-0002-of-0002.json
      MANIFEST.json                made of the parts once all files of all of them are there; only now it exists
      QUARANTINED.json             instead of MANIFEST.json: found damaged, with the reason

Whoever finds all parts writes the manifest: the sidecar that is last, or the platform. It is the same to the byte, so
it does not matter who, how many, and how often. Standard library only. Called by the sidecar and by `updraft.storage`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from updraft_learner.contract import CHECKPOINT_MARKER, Keys
from updraft_learner.store import ObjectStore

QUARANTINE_MARKER = "QUARANTINED.json"
SAVE_LETTERS = 8

_NAME = re.compile(r"^(?P<local>.*)-a(?P<attempt>\d+)(?:-l(?P<learner>\d+))?(?:-v\d+)?(?:-s[0-9A-Za-z]+)?$", re.DOTALL)
_PART = re.compile(r"^PART-(\d{4})-of-(\d{4})\.json$")
_SHARED = ("name", "local", "job", "attempt", "parts", "save", "step")  # the same in all parts

Joined = Literal["whole", "waiting", "gone"]


class PartsDisagree(Exception):
    """The parts are not of one save; they will never be one checkpoint."""


@dataclass(frozen=True)
class Name:
    """What a checkpoint's name in the store says."""

    local: str  # name of its folder in CHECKPOINT_DIR
    attempt: int
    learner: int  # whose it is; 1 for one that was saved in parts


def stored_name(local: str, attempt: int, learner: int, *, version: int = 1, save: str = "") -> str:
    """`version` counts the folders of this name that one learner has stored; `save` is that of one saved in parts."""
    if save:
        return f"{local}-a{attempt}-s{save[:SAVE_LETTERS]}"
    whose = f"-l{learner}" if learner > 1 else ""
    return f"{local}-a{attempt}{whose}" + (f"-v{version}" if version > 1 else "")


def parse_name(name: str) -> Name | None:
    """None for a name that `stored_name` does not give."""
    match = _NAME.match(name)
    if match is None:
        return None
    return Name(match["local"], int(match["attempt"]), int(match["learner"] or 1))


def part_name(part: int, parts: int) -> str:
    return f"PART-{part:04d}-of-{parts:04d}.json"


def is_bookkeeping(path: str) -> bool:
    """Whether an object below a checkpoint's key is about the checkpoint, and no file of it."""
    return path in (CHECKPOINT_MARKER, QUARANTINE_MARKER) or _PART.match(path) is not None


def join_parts(store: ObjectStore, keys: Keys, job_id: str, name: str) -> Joined:
    """Write the manifest if all parts are stored in full. Twice, or by several at once, is harmless.

    "gone" when no part is there any more: somebody has deleted or quarantined it.

    Raises:
        PartsDisagree: they will never be one.
        StorageError: the store did not answer.
    """
    prefix = f"{keys.checkpoint(job_id, name)}/"
    sizes = {item.key[len(prefix) :]: item.size for item in store.list(prefix)}
    found = sorted((int(match[1]), int(match[2]), path) for path in sizes if (match := _PART.match(path)))
    if CHECKPOINT_MARKER in sizes:
        return "whole"
    if not found or QUARANTINE_MARKER in sizes:
        return "gone"
    parts = found[0][1]
    if any(count != parts for _, count, _ in found):
        raise PartsDisagree(f"checkpoint {name}: its parts count themselves differently")
    if [part for part, _, _ in found] != list(range(1, parts + 1)):
        return "waiting"
    texts = [store.get_bytes(f"{prefix}{path}") for _, _, path in found]
    if any(text is None for text in texts):
        return "gone"
    manifest = merge(name, [json.loads(text or b"") for text in texts])
    if any(sizes.get(path) != facts["size"] for path, facts in manifest["files"].items()):
        return "waiting"
    store.put_bytes(keys.checkpoint_marker(job_id, name), to_json(manifest))
    return "whole"


def merge(name: str, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The manifest of the checkpoint that these parts, in their order, are. Raises PartsDisagree."""
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
