"""Parse a ResourceQuota's refusal of a launch, and tell whether the launch can ever fit into the quota. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from updraft_learner.quantity import parse_quantity

# The message of Kubernetes' admission: only the amounts that are short, of one object and one quota:
# `cpu=1,memory=2Gi`.
_EXCEEDED = re.compile(
    r'(?P<kind>\S+) "[^"]*" is forbidden: exceeded quota: (?P<quota>[^\s,]+), '
    r"requested: (?P<requested>\S+), used: \S+, limited: (?P<limited>\S+)"
)


def never_fits(words: str, learners: int) -> str | None:
    """Return why a launch with this many learners can never fit into the quota, from the message of a refusal.

    None if it can fit, or if the message does not say. Learners are alike, so one pod's request counts for each.
    """
    if (found := _EXCEEDED.search(words)) is None:
        return None
    requested, limited = _amounts(found["requested"]), _amounts(found["limited"])
    pods = learners if found["kind"] == "pods" else 1  # all other objects are made once per launch
    short = [
        f"{pods} x {amount} of {name}, and its limit is {limited[name]}"
        for name, amount in requested.items()
        if name in limited and pods * parse_quantity(amount) > parse_quantity(limited[name])
    ]
    if not short:
        return None
    return f"quota {found['quota']} can never hold the whole launch, which needs {'; '.join(short)}"


def _amounts(listed: str) -> Mapping[str, str]:
    """Return amounts by the resource's name; texts that are no quantities are left out."""
    pairs = [pair.rpartition("=") for pair in listed.split(",")]
    return {name: amount for name, _, amount in pairs if _is_quantity(amount)}


def _is_quantity(text: str) -> bool:
    try:
        parse_quantity(text)
    except ValueError:
        return False
    return True
