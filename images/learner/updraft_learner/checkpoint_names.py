"""Name checkpoints and the objects that describe them, mainly in the store. Standard library only."""

from __future__ import annotations

import re
from dataclasses import dataclass

from updraft_learner.contract import CHECKPOINT_MARKER

QUARANTINE_MARKER = "QUARANTINED.json"
SAVE_LETTERS = 8
NAME_CHARS = 250  # the limit of the ledger
STORED_FILE = "stored-checkpoints.json"  # in IO_DIR: names of folders in CHECKPOINT_DIR that the sidecar has stored

_NAME = re.compile(
    r"^(?P<local>.*)-a(?P<attempt>\d+)(?:-l(?P<learner>\d+))?(?:-v\d+)?(?P<save>-s[0-9A-Za-z]+)?$", re.DOTALL
)
PART = re.compile(r"^PART-(\d{4})-of-(\d{4})\.json$")


@dataclass(frozen=True)
class CheckpointName:
    """The parts of a checkpoint's name in the store."""

    local: str  # name of its folder in CHECKPOINT_DIR
    attempt: int
    learner: int  # the learner that saved it; 1 if it was saved in parts
    in_parts: bool = False  # whether all learners saved it together


def stored_name(local: str, attempt: int, learner: int, *, version: int = 1, save: str = "") -> str:
    """Return a checkpoint's name in the store. `version` counts the folders of this name that one learner has stored;
    `save` is that of a checkpoint saved in parts."""
    if save:
        return f"{local}-a{attempt}-s{save[:SAVE_LETTERS]}"
    whose = f"-l{learner}" if learner > 1 else ""
    return f"{local}-a{attempt}{whose}" + (f"-v{version}" if version > 1 else "")


def parse_name(name: str) -> CheckpointName | None:
    """Parse a name; return None for one that `stored_name` does not make."""
    match = _NAME.match(name)
    if match is None:
        return None
    return CheckpointName(match["local"], int(match["attempt"]), int(match["learner"] or 1), match["save"] is not None)


def recordable(name: str) -> bool:
    """Return whether the platform can keep a checkpoint of this name."""
    return 0 < len(name) <= NAME_CHARS and name.isprintable()


def part_name(part: int, parts: int) -> str:
    return f"PART-{part:04d}-of-{parts:04d}.json"


def is_bookkeeping(path: str) -> bool:
    """Return whether an object below a checkpoint's key is about the checkpoint, and no file of it."""
    return path in (CHECKPOINT_MARKER, QUARANTINE_MARKER) or is_part(path)


def is_part(path: str) -> bool:
    """Return whether an object below a checkpoint's key describes a part."""
    return PART.match(path) is not None
