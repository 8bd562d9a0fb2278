"""What a program's own manifest says of a finished checkpoint, compared with the files that are there."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from updraft_learner import contract
from updraft_learner.checkpoint_format import part_of
from updraft_learner.sidecar.held import HeldFolder

MANIFEST_LIMIT_BYTES = 64 << 20


class Damaged(Exception):
    """A checkpoint's files are not those that its manifest describes."""


class Unusable(Exception):
    """A checkpoint that cannot be stored whole."""


@dataclass(frozen=True)
class Described:
    """What the program's manifest says; nothing where it wrote none."""

    files: Mapping[str, tuple[str, int]] = field(default_factory=dict)  # digest and size
    step: int | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    created: str | None = None
    part: int = 1
    parts: int = 1
    save: str = ""


def describe(name: str, held: HeldFolder, learners: int) -> Described:
    """The program's own manifest, as far as it is used.

    Raises:
        Damaged: it is unreadable, or files are missing or of another size.
        Unusable: it speaks of parts in a way that cannot be.
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
            raise Damaged(f"checkpoint {name}: file {path} is missing")
        if held.found[path].size != size:
            raise Damaged(f"checkpoint {name}: file {path} has {held.found[path].size} bytes instead of {size}")
    return described


def _parse(name: str, manifest: str, held: HeldFolder, learners: int) -> Described:
    try:
        if held.found[manifest].size > MANIFEST_LIMIT_BYTES:
            raise ValueError("too large")
        with held.open(manifest) as stream:
            raw = json.loads(stream.read())
        part, parts = part_of(manifest) or (1, 1)
        described = Described(
            files={str(path): (str(facts["sha256"]), int(facts["size"])) for path, facts in raw["files"].items()},
            step=None if raw.get("step") is None else int(raw["step"]),
            metrics={str(key): _plain(float(value)) for key, value in (raw.get("metrics") or {}).items()},
            created=_moment(raw.get("created")),
            part=part,
            parts=parts,
            save=str(raw["save"]) if parts > 1 else "",
        )
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise Damaged(f"checkpoint {name}: {manifest} is unreadable") from exc
    if parts > learners:
        raise Unusable(f"{manifest} counts {parts} parts, and the job has {learners} learner(s)")
    if parts > 1 and not re.fullmatch(r"[0-9A-Za-z]{8,64}", described.save):
        raise Unusable(f"`save` in {manifest} is no word of 8 to 64 letters and digits")
    return described


def _plain(value: float) -> float | None:
    return value if value - value == 0 else None  # NaN and infinities are no JSON


def _moment(value: object) -> str | None:
    """A time as the program wrote it, if it is one."""
    try:
        datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return str(value)
