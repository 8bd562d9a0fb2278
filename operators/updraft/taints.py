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
_KEY = rf"(?:[a-z0-9.-]+/)?{_NAME}"
_TAINT = re.compile(rf"(?P<key>{_KEY})(?:=(?P<value>(?:{_NAME})?))?(?::(?P<effect>\w+))?")


def is_key(text: str) -> bool:
    """Return whether Kubernetes takes the text as the key of a label, an annotation or a taint."""
    return re.fullmatch(_KEY, text) is not None and len(text.rpartition("/")[0]) <= 253


def is_label_value(text: str) -> bool:
    """Return whether Kubernetes takes the text as the value of a label or a taint."""
    return re.fullmatch(rf"(?:{_NAME})?", text) is not None


@dataclass(frozen=True)
class Taint:
    """A taint of a node."""

    key: str
    value: str
    effect: str

    @classmethod
    def of(cls, taint: Mapping[str, Any]) -> Taint:
        """Return the taint that the API shows."""
        return cls(taint["key"], taint.get("value") or "", taint["effect"])

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


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
        return self.tolerates(Taint.of(taint))

    def tolerates(self, taint: Taint) -> bool:
        """Return whether pods with this toleration may lie on a node with the taint."""
        return taint.key == self.key and self.value in (None, taint.value) and self.effect in (None, taint.effect)

    def includes(self, other: Toleration) -> bool:
        """Return whether `other` tolerates no taint that this one does not tolerate."""
        return other.key == self.key and self.value in (None, other.value) and self.effect in (None, other.effect)

    def __str__(self) -> str:
        value = "" if self.value is None else f"={self.value}"
        return f"{self.key}{value}" + ("" if self.effect is None else f":{self.effect}")

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
