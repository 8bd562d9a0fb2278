"""Make the objects beside a launch's pods that protect them, as plain dictionaries in API form. Pure.

These are a NetworkPolicy, an optional PodDisruptionBudget, and the owner references. The launch's secret owns the
policy, the budget and the service; the pods own the secret. So the cluster's garbage collector removes everything after
the last pod, whatever deleted that pod, and even if Airflow no longer exists. No pod owns another: the loss of one must
not remove the evidence in its peers. Called by `updraft.controller.pods` and `updraft.kubernetes.gang`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from updraft.kubernetes.objects import Launch, Manifest
from updraft_learner.contract import COORDINATOR_LEARNER, LABEL_JOB, LABEL_LEARNER

EVERYWHERE = {4: "0.0.0.0/0", 6: "::/0"}
DNS_PORT = 53
# Addresses where clouds give a machine its credentials: link-local, and others of AWS, Google, Azure and Alibaba, from
# their documentation of instance metadata.
METADATA_NETWORKS = (
    "169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128", "fd20:ce::254/128", "168.63.129.16/32", "100.100.100.200/32",
)  # fmt: skip


@dataclass(frozen=True)
class Outside:
    """What learners may reach besides each other and name servers."""

    namespaces: tuple[str, ...] = ()  # namespaces of the cluster in which the store and MLflow run
    services: tuple[tuple[str, int], ...] = ()  # address and port of the store and of MLflow, if they are numeric
    closed: tuple[str, ...] = ()  # networks that are always blocked: the API server, the cloud's metadata service


def outside_of(namespace: str, urls: Iterable[str], closed: Iterable[str]) -> Outside:
    """Return which hosts of `urls` lie outside the cluster for a pod in `namespace`; `closed` are networks or single
    addresses."""
    namespaces: set[str] = set()
    services: set[tuple[str, int]] = set()
    for url in urls:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if (address := _address(host)) is not None:
            services.add((str(address), parts.port or (443 if parts.scheme == "https" else 80)))
        elif (found := _namespace_of(host, namespace)) is not None:
            namespaces.add(found)
    networks = sorted({ipaddress.ip_network(text, strict=False) for text in closed}, key=lambda n: (n.version, str(n)))
    return Outside(tuple(sorted(namespaces)), tuple(sorted(services)), tuple(map(str, networks)))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _namespace_of(host: str, own: str) -> str | None:
    """Return the namespace of a service's name in the cluster's DNS: `minio`, `minio.storage`,
    `minio.storage.svc...`."""
    labels = host.rstrip(".").split(".")
    if len(labels) == 1:
        return None if host in ("", "localhost") else own
    return labels[1] if len(labels) == 2 or labels[2] == "svc" else None


def network_policy(launch: Launch, outside: Outside) -> Manifest:
    """Return a policy: learners of one launch reach each other, DNS and what is outside of the cluster; no other pod
    reaches them.

    An older attempt on a node that does not answer is no peer. No rule names a port of the outside: data sources
    are the program's business.
    """
    gang = {"podSelector": {"matchLabels": launch.labels()}}
    no_learner = {"matchExpressions": [{"key": LABEL_JOB, "operator": "DoesNotExist"}]}
    dns = [{"protocol": protocol, "port": DNS_PORT} for protocol in ("UDP", "TCP")]
    egress: list[Manifest] = [{"to": [gang]}, {"ports": dns}]
    egress += [
        {
            "to": [
                {
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
                    "podSelector": no_learner,
                }
            ]
        }
        for name in outside.namespaces
    ]
    egress += [
        {"to": [{"ipBlock": {"cidr": _single(address)}}], "ports": [{"protocol": "TCP", "port": port}]}
        for address, port in outside.services
    ]
    # A family that is blocked as a whole gets no rule: the API refuses an exception as large as its block.
    open_families = [version for version, cidr in EVERYWHERE.items() if cidr not in outside.closed]
    if open_families:
        egress.append({"to": [_all_but(version, outside.closed) for version in open_families]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(launch),
        "spec": {
            "podSelector": {"matchLabels": launch.labels()},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [gang]}],
            "egress": egress,
        },
    }


def _single(address: str) -> str:
    return str(ipaddress.ip_network(address))


def _all_but(version: int, closed: Sequence[str]) -> Manifest:
    block: Manifest = {"cidr": EVERYWHERE[version]}
    if excepted := [text for text in closed if ipaddress.ip_network(text).version == version]:
        block["except"] = excepted
    return {"ipBlock": block}


def disruption_budget(launch: Launch) -> Manifest:
    """Return a budget that keeps each learner from eviction while its peers train: `kubectl drain` waits until the
    launch has ended. Where learners join and leave while the others train, it keeps the fewest that the job may have.

    It is a number: for pods without a controller the API accepts nothing else.
    """
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(launch),
        "spec": {
            "minAvailable": launch.membership.size if launch.least is None else launch.least,
            "selector": {
                "matchLabels": launch.labels(),
                "matchExpressions": [{"key": LABEL_LEARNER, "operator": "NotIn", "values": [str(COORDINATOR_LEARNER)]}],
            },
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _metadata(launch: Launch) -> Manifest:
    return {"name": launch.base_name, "namespace": launch.namespace, "labels": launch.labels()}


def owners(created: Sequence[Manifest]) -> list[Manifest]:
    """Return references to objects as the cluster made them. They block nothing and control nothing; they only let the
    cluster delete what depends on them."""
    return [
        {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
        }
        for owner in created
    ]


def owned_by(manifest: Manifest, created: Sequence[Manifest]) -> Manifest:
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": owners(created)}}
