"""Define which nodes a gang may lie on besides amounts: labels that it asks for, taints that it tolerates. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from updraft.taints import Taint, Toleration

if TYPE_CHECKING:
    from updraft.allocation.model import Node

SHOWN = 5  # values of a label, or labels, that a reason lists


@dataclass(frozen=True)
class Placement:
    """The nodes that a gang may lie on: `selector` as sorted pairs of key and value, and the taints that it tolerates
    besides those that the site's settings name."""

    selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()

    @classmethod
    def of(cls, selector: Mapping[str, str], tolerations: Sequence[Toleration]) -> Placement:
        """Return the placement. Equal ones are equal in whatever order they were written."""
        return cls(tuple(sorted(selector.items())), tuple(sorted(set(tolerations), key=str)))

    @classmethod
    def from_json(cls, stored: Mapping[str, Any] | None) -> Placement:
        """Return what `to_json` has made; None stands for a gang that may lie anywhere."""
        if stored is None:
            return ANYWHERE
        return cls.of(dict(stored["selector"]), [Toleration.parse(text) for text in stored["tolerations"]])

    def to_json(self) -> dict[str, Any] | None:
        """Return the placement as plain JSON values; None for a gang that may lie anywhere."""
        if self == ANYWHERE:
            return None
        return {"selector": dict(self.selector), "tolerations": [str(each) for each in self.tolerations]}

    def tolerates(self, taints: Sequence[Taint]) -> bool:
        """Return whether the gang tolerates all of these taints."""
        return all(any(own.tolerates(taint) for own in self.tolerations) for taint in taints)

    @property
    def text(self) -> str:
        """Return the selector as people write it: `disk=ssd, zone=a`."""
        return ", ".join(f"{key}={value}" for key, value in self.selector)


ANYWHERE = Placement()


def no_such_node(placement: Placement, nodes: Sequence[Node]) -> str | None:
    """Return why no node has the labels that the gang asks for, and what nodes do have; None if a node has them."""
    if not nodes or any(node.selected_by(placement) for node in nodes):
        return None
    for key, value in placement.selector:
        there = sorted({dict(node.labels)[key] for node in nodes if key in dict(node.labels)})
        if not there:
            return f"pod.node_selector: no node has the label {key}; leave it out, or ask the operator to label a node"
        if value not in there:
            more = " ..." if len(there) > SHOWN else ""
            return f"pod.node_selector: no node has {key}={value}; nodes have {', '.join(there[:SHOWN])}{more}"
    return f"pod.node_selector: no node has all of {placement.text}; each is on another node"
