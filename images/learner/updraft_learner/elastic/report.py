"""What the coordinator of a job says of its learners, and what the platform tells it: JSON in the object store.

The coordinator writes a `GroupReport` at `Keys.group`, with its own state, at each change. The platform writes
`Members` at `Keys.members`. Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

REPORT_LIMIT_BYTES = 1 << 20
MOST_LEARNERS = 1_000


@dataclass(frozen=True)
class Members:
    """The learners that shall train.

    Args:
        generation: Of the attempt's membership in the ledger.
        learners: Their numbers.
    """

    generation: int
    learners: tuple[int, ...]

    def to_json(self) -> bytes:
        """Return what `from_json` reads."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Members:
        """Read what `to_json` wrote. Raises ValueError, KeyError or TypeError."""
        raw = json.loads(text)
        return cls(int(raw["generation"]), tuple(int(n) for n in raw["learners"]))


@dataclass(frozen=True)
class GroupReport:
    """The group of learners, as the coordinator knows it.

    Args:
        state: waiting (for the first learners), training, resizing, finished, or lost (nobody has the state).
        generation: Of the group; 0 before the first.
        learners: Numbers of those in the group.
        waiting: Numbers of those that are ready to join.
        excluded: Numbers of those that the others went on without.
        obeys: The newest `Members.generation` that the coordinator follows.
        pauses: For how many seconds learners stood still at most for a generation of the group, by its number.
    """

    state: str = "waiting"
    generation: int = 0
    learners: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    excluded: tuple[int, ...] = ()
    obeys: int = 0
    pauses: Mapping[int, float] = field(default_factory=dict)

    @property
    def began(self) -> bool:
        """Return whether learners train, or have trained."""
        return self.generation > 0

    def to_json(self, saved: Mapping[str, Any]) -> bytes:
        """Return what `from_json` and `saved_in` read. `saved`: the coordinator's own state."""
        return json.dumps({"report": asdict(self), "saved": saved}).encode()

    @classmethod
    def from_json(cls, text: bytes) -> GroupReport:
        """Read a report. Raises ValueError, KeyError or TypeError."""
        raw = json.loads(text)["report"]
        numbers = {name: tuple(map(int, raw[name][:MOST_LEARNERS])) for name in ("learners", "waiting", "excluded")}
        pauses = {int(number): float(seconds) for number, seconds in raw["pauses"].items()}
        return cls(str(raw["state"]), int(raw["generation"]), obeys=int(raw["obeys"]), pauses=pauses, **numbers)


def saved_in(text: bytes) -> dict[str, Any]:
    """Return the coordinator's own state. Raises ValueError, KeyError or TypeError."""
    return dict(json.loads(text)["saved"])
