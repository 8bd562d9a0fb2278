"""Check network policies and disruption budgets. They are stored but never enforced. Pure; used by `validation`."""

from __future__ import annotations

import ipaddress
import re
from typing import Protocol

from updraft_localnode.errors import Json

_AMOUNT = re.compile(r"\d+%?")
BUDGET_STATUS = {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}


class Causes(Protocol):
    """A collector of wrong fields."""

    def wrong(self, field: str, value: object, why: str) -> None: ...
    def unsupported(self, field: str, value: object, allowed: tuple[str, ...]) -> None: ...


def default_network_policy(policy: Json) -> None:
    spec = policy["spec"]
    spec.setdefault("podSelector", {})
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", *(["Egress"] if spec.get("egress") else [])]
    for direction in ("ingress", "egress"):
        for rule in spec.get(direction) or []:
            for port in rule.get("ports") or []:
                port.setdefault("protocol", "TCP")


def check_network_policy(causes: Causes, policy: Json) -> None:
    spec = policy["spec"]
    for i, kind in enumerate(spec["policyTypes"]):
        if kind not in ("Ingress", "Egress"):
            causes.unsupported(f"spec.policyTypes[{i}]", kind, ("Egress", "Ingress"))
    for direction, side in (("ingress", "from"), ("egress", "to")):
        for i, rule in enumerate(spec.get(direction) or []):
            where = f"spec.{direction}[{i}]"
            for j, port in enumerate(rule.get("ports") or []):
                if port["protocol"] not in ("TCP", "UDP", "SCTP"):
                    causes.unsupported(f"{where}.ports[{j}].protocol", port["protocol"], ("SCTP", "TCP", "UDP"))
            for j, peer in enumerate(rule.get(side) or []):
                if peer.get("ipBlock") is not None:
                    _check_block(causes, f"{where}.{side}[{j}].ipBlock", peer)


def _check_block(causes: Causes, field: str, peer: Json) -> None:
    if peer.get("podSelector") is not None or peer.get("namespaceSelector") is not None:
        causes.wrong(field, "ipBlock", "may not be specified when another peer is specified")
    block = peer["ipBlock"]
    whole = _network(block.get("cidr"))
    if whole is None:
        causes.wrong(f"{field}.cidr", block.get("cidr"), "must be a valid CIDR value, (e.g. 10.9.8.0/24)")
    for i, text in enumerate(block.get("except") or []):
        part = _network(text)
        if part is None:
            causes.wrong(f"{field}.except[{i}]", text, "must be a valid CIDR value, (e.g. 10.9.8.0/24)")
        elif whole is not None and not _strictly_within(part, whole):
            causes.wrong(f"{field}.except[{i}]", text, "must be a strict subset of `cidr`")


_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _network(text: object) -> _Network | None:
    try:
        return ipaddress.ip_network(str(text))
    except ValueError:
        return None


def _strictly_within(part: _Network, whole: _Network) -> bool:
    if isinstance(part, ipaddress.IPv4Network) and isinstance(whole, ipaddress.IPv4Network):
        return part != whole and part.subnet_of(whole)
    if isinstance(part, ipaddress.IPv6Network) and isinstance(whole, ipaddress.IPv6Network):
        return part != whole and part.subnet_of(whole)
    return False


def default_budget(budget: Json) -> None:
    budget["status"] = dict(BUDGET_STATUS)


def check_budget(causes: Causes, budget: Json) -> None:
    spec = budget["spec"]
    given = [field for field in ("minAvailable", "maxUnavailable") if spec.get(field) is not None]
    if len(given) == 2:
        causes.wrong("spec", "minAvailable, maxUnavailable", "minAvailable and maxUnavailable cannot be both set")
    for field in given:
        if isinstance(spec[field], bool) or not _AMOUNT.fullmatch(str(spec[field])):
            causes.wrong(f"spec.{field}", spec[field], "must be a whole number or a percentage")
    policy = spec.get("unhealthyPodEvictionPolicy")
    if policy not in (None, "IfHealthyBudget", "AlwaysAllow"):
        causes.unsupported("spec.unhealthyPodEvictionPolicy", policy, ("AlwaysAllow", "IfHealthyBudget"))
