"""Reads what the jobs' programs noted for themselves: when each process ran, which steps it made, how it left.

Independent of the platform's own records. Pure but for `read`; called by `facts`, `run` and `kinds`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

PAUSE_SECONDS = 1.0  # a longer gap between two steps is shown


@dataclass(frozen=True)
class Session:
    """One process of a training's learner. `steps` are (unix seconds, step), in the order of the file."""

    learner: int
    attempt: int
    pid: int
    started_at: float
    restored_step: int | None
    steps: tuple[tuple[float, int], ...]
    saved: tuple[int, ...]
    exit_code: int | None  # None: it did not leave by itself
    damaged: bool  # it was given a checkpoint that is not what was saved
    last_at: float

    @property
    def first_step(self) -> int | None:
        return self.steps[0][1] if self.steps else None

    @property
    def last_step(self) -> int | None:
        return self.steps[-1][1] if self.steps else None


def read(folder: Path) -> list[Session]:
    """Return all sessions of a job, in the order of their starts."""
    if not folder.is_dir():
        return []
    found = [session for path in folder.glob("train-*.jsonl") if (session := _session(path)) is not None]
    return sorted(found, key=lambda s: (s.started_at, s.learner))


def newest_step(folder: Path) -> int:
    """Return the furthest step of any learner, 0 before the first."""
    return max((s.last_step or 0 for s in read(folder)), default=0)


def parse(name: str, lines: Iterable[str]) -> Session | None:
    """Parse a session. `name` is train-LEARNER-ATTEMPT-PID. A torn last line, of a killed process, is passed over."""
    learner, attempt, pid = (int(part) for part in name.split("-")[1:4])
    notes: list[dict[str, Any]] = []
    for line in lines:
        try:
            notes.append(json.loads(line))
        except ValueError:
            continue
    if not notes:
        return None
    exits = [note["code"] for note in notes if note.get("event") == "exit"]
    restored = [int(note["step"]) for note in notes if note.get("event") == "restored"]
    return Session(
        learner=learner,
        attempt=attempt,
        pid=pid,
        started_at=float(notes[0]["t"]),
        restored_step=restored[0] if restored else None,
        steps=tuple((float(n["t"]), int(n["step"])) for n in notes if "event" not in n),
        saved=tuple(int(n["step"]) for n in notes if n.get("event") == "saved"),
        exit_code=exits[-1] if exits else None,
        damaged=any(note.get("event") == "damaged" for note in notes),
        last_at=float(notes[-1]["t"]),
    )


def _session(path: Path) -> Session | None:
    try:
        return parse(path.stem, path.read_text().splitlines())
    except (OSError, ValueError):
        return None


@dataclass(frozen=True)
class Loss:
    """A learner's process that went away, and its successor. Times in unix seconds, steps as counted by the program."""

    lost_at: float  # its last sign of life
    next_step_at: float | None  # first step of the successor
    caught_up_at: float | None  # first step that had not been made before
    repeated: int  # steps made a second time


def losses(sessions: Sequence[Session], learner: int = 1) -> list[Loss]:
    """Return one loss for each process of this learner that another one followed."""
    own = [s for s in sessions if s.learner == learner]
    found = []
    furthest = 0
    for before, after in pairwise(own):
        furthest = max(furthest, before.last_step or 0)
        new = [at for at, step in after.steps if step > furthest]
        found.append(
            Loss(
                lost_at=before.last_at,
                next_step_at=after.steps[0][0] if after.steps else None,
                caught_up_at=new[0] if new else None,
                repeated=sum(step <= furthest for _, step in after.steps),
            )
        )
    return found


def longest_pause(sessions: Sequence[Session], since: float, until: float, learner: int = 1) -> float:
    """Return the longest time between two steps of one process that touches the span; 0 if there is none."""
    longest = 0.0
    for session in (s for s in sessions if s.learner == learner):
        for (first, _), (second, _) in pairwise(session.steps):
            if second >= since and first <= until:
                longest = max(longest, second - first)
    return longest


def curve(session: Session) -> list[tuple[float, int]]:
    """Return the corners of a session's steps over time: its first and last, and both ends of each pause."""
    points: list[tuple[float, int]] = []
    for number, (at, step) in enumerate(session.steps):
        last = number == len(session.steps) - 1
        before = number > 0 and at - session.steps[number - 1][0] > PAUSE_SECONDS
        after = not last and session.steps[number + 1][0] - at > PAUSE_SECONDS
        if number == 0 or last or before or after:
            points.append((at, step))
    return points
