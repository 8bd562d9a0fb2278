"""Read a program's own manifest of a finished checkpoint, and compare it with the files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from updraft_learner import contract
from updraft_learner.checkpoint_format import part_of
from updraft_learner.record.report import cut
from updraft_learner.sidecar.snapshot import FolderSnapshot
from updraft_learner.trees import TreeError, safe_path

SHOWN_CHARACTERS = 150  # of a path, in a reason
HEAD_BYTES = 8 << 10  # of JSON, for everything except files and metrics
ENTRY_BYTES = 120  # of JSON for each file, besides its path: names, digest, size


class Damaged(Exception):
    """A checkpoint's files do not match its manifest."""


class Unusable(Exception):
    """A checkpoint that cannot be stored completely."""


@dataclass(frozen=True)
class Described:
    """The content of the program's manifest; empty if the program wrote none."""

    files: Mapping[str, tuple[str, int]] = field(default_factory=dict)  # path -> digest and size
    step: int | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    created: str | None = None
    part: int = 1
    parts: int = 1
    save: str = ""


def describe(name: str, held: FolderSnapshot, learners: int) -> Described:
    """Return the part of the program's own manifest that is used.

    Raises:
        Damaged: it is unreadable, or files are missing or have another size.
        Unusable: its numbers of parts are impossible.
    """
    manifests = [path for path in sorted(held.found) if path == contract.CHECKPOINT_LOCAL_MANIFEST or part_of(path)]
    if contract.CHECKPOINT_LOCAL_MANIFEST in manifests:
        manifests = [contract.CHECKPOINT_LOCAL_MANIFEST]
    if not manifests:
        return Described()
    if len(manifests) > 1:
        raise Unusable(f"it holds {manifests[0]} and {manifests[1]}; a learner saves one part of a checkpoint")
    described = _parse(name, manifests[0], held, learners)
    for path, (_, size) in described.files.items():
        if path not in held.found:
            raise Damaged(f"checkpoint {name}: file {shown(path)} is missing")
        if held.found[path].size != size:
            raise Damaged(f"checkpoint {name}: file {shown(path)} has {held.found[path].size} bytes instead of {size}")
    return described


def shown(path: str) -> str:
    return cut(path, SHOWN_CHARACTERS)


def require_room(paths: Iterable[str], described: Described) -> None:
    """Raise Unusable when the manifest of these files would be too large for its readers."""
    limit_bytes = contract.MARKER_LIMIT_BYTES // described.parts
    size_bytes = HEAD_BYTES + len(json.dumps(dict(described.metrics)))
    for path in paths:
        if len(path) > contract.PATH_CHARACTERS:
            raise Unusable(f"the path {shown(path)} is longer than {contract.PATH_CHARACTERS} characters")
        try:
            safe_path(path)
        except TreeError as exc:
            raise Unusable(f"{exc}"[: 2 * SHOWN_CHARACTERS]) from exc
        size_bytes += len(json.dumps(path)) + ENTRY_BYTES
    if size_bytes > limit_bytes:
        raise Unusable(f"the list of its files and metrics is larger than {limit_bytes} bytes; save fewer of them")


def _parse(name: str, manifest: str, held: FolderSnapshot, learners: int) -> Described:
    try:
        if held.found[manifest].size > contract.MARKER_LIMIT_BYTES:
            raise ValueError("too large")
        with held.open(manifest) as stream:
            raw = json.loads(stream.read())
        part, parts = part_of(manifest) or (1, 1)
        described = Described(
            files={str(path): (str(facts["sha256"]), int(facts["size"])) for path, facts in raw["files"].items()},
            step=None if raw.get("step") is None else _step(raw["step"]),
            metrics={str(key): _plain(float(value)) for key, value in (raw.get("metrics") or {}).items()},
            created=_moment(raw.get("created")),
            part=part,
            parts=parts,
            save=str(raw["save"]) if parts > 1 else "",
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as exc:
        raise Damaged(f"checkpoint {name}: {manifest} is unreadable") from exc
    _require_few(manifest, described.metrics)
    if parts > learners:
        raise Unusable(f"{manifest} counts {parts} parts, and the job has {learners} learner(s)")
    if parts > 1 and not re.fullmatch(r"[0-9A-Za-z]{8,64}", described.save):
        raise Unusable(f"`save` in {manifest} is no word of 8 to 64 letters and digits")
    return described


def _require_few(manifest: str, metrics: Mapping[str, float | None]) -> None:
    if len(metrics) > contract.CHECKPOINT_METRICS:
        raise Unusable(f"{manifest} has {len(metrics)} metrics; the limit is {contract.CHECKPOINT_METRICS}")
    if any(len(key) > contract.NAME_CHARACTERS for key in metrics):
        raise Unusable(f"a metric's name in {manifest} is longer than {contract.NAME_CHARACTERS} characters")
    if sum(map(len, metrics)) > contract.CHECKPOINT_METRICS_CHARACTERS:
        limit = contract.CHECKPOINT_METRICS_CHARACTERS
        raise Unusable(f"the names of the metrics in {manifest} have together more than {limit} characters")


def _step(value: Any) -> int:
    step = int(value)
    if not -(2**63) <= step < 2**63:
        raise ValueError("no step")
    return step


def _plain(value: float) -> float | None:
    return value if value - value == 0 else None  # JSON has no NaN and no infinities


def _moment(value: object) -> str | None:
    """Return a time as the program wrote it, or None if it is none."""
    try:
        datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return str(value)
