"""Which nodes keep pods away, and what learners tolerate. Pure.

Called by the settings that name them, by `allocation`, which counts only nodes that learners may lie on, and by whoever
makes their pods.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

GPU_RESOURCE = "nvidia.com/gpu"
EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")
REPELLING = ("NoSchedule", "NoExecute")

_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_TAINT = re.compile(rf"(?P<key>(?:[a-z0-9.-]+/)?{_NAME})(?:=(?P<value>(?:{_NAME})?))?(?::(?P<effect>\w+))?")


@dataclass(frozen=True)
class Toleration:
    """Of the taints with this key; None: whatever the value, or the effect."""

    key: str
    value: str | None = None
    effect: str | None = None

    @classmethod
    def parse(cls, text: str) -> Toleration:
        """Parse KEY, KEY=VALUE, KEY:EFFECT or KEY=VALUE:EFFECT, as `kubectl taint` writes taints. Raises ValueError."""
        match = _TAINT.fullmatch(text)
        if match is None or match["effect"] not in (None, *EFFECTS):
            raise ValueError(
                f"{text!r} is no taint, such as dedicated, dedicated=training or dedicated=training:NoSchedule; "
                f"effects are {', '.join(EFFECTS)}"
            )
        return cls(match["key"], match["value"], match["effect"])

    def covers(self, taint: Mapping[str, Any]) -> bool:
        return (
            taint["key"] == self.key
            and self.value in (None, taint.get("value") or "")
            and self.effect in (None, taint["effect"])
        )

    def to_object(self) -> dict[str, str]:
        """Return the toleration in API form."""
        found = {"key": self.key, "operator": "Exists" if self.value is None else "Equal"}
        if self.value is not None:
            found["value"] = self.value
        if self.effect is not None:
            found["effect"] = self.effect
        return found


# What keeps other pods off nodes with GPUs by convention; pods that ask for GPUs tolerate it. Some clusters add this by
# themselves (the admission plugin ExtendedResourceToleration).
GPU_TAINT = Toleration(GPU_RESOURCE)


def untolerated(node: Mapping[str, Any], tolerated: Sequence[Toleration] = ()) -> list[Mapping[str, Any]]:
    """Return the node's taints that keep pods away which tolerate no more than these."""
    return [
        taint
        for taint in (node.get("spec") or {}).get("taints") or ()
        if taint["effect"] in REPELLING and not any(own.covers(taint) for own in tolerated)
    ]
