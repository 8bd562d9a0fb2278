"""All kinds of faults by name, in the order of the report."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from faults.kinds import cluster, control, learners, members, people
from faults.kinds.base import Kind

KINDS: Mapping[str, Kind] = MappingProxyType(
    {kind.name: kind for module in (learners, members, cluster, control, people) for kind in module.KINDS}
)
