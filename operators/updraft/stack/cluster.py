"""Use a cluster of the user's own instead of the local node: choose it, and find the address at which pods reach this
machine.

The context is chosen once and stored by name, so that `kubectl config use-context` does not affect a running platform.
Called by `config` when a home is made or changed.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

from updraft.exceptions import RefusedError
from updraft.stack.layout import StackError

LOCAL = "local"  # instead of a kubeconfig: back to the bundled local node


class ClusterConfig(BaseModel):
    """The part of `config.json` about the cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kubeconfig: str
    context: str
    address: str  # of this machine, where S3 and MLflow listen for the cluster's pods


def pointed_at(current: ClusterConfig | None, given: Mapping[str, str]) -> ClusterConfig | None:
    """Return the cluster after a command gave some of `kubeconfig`, `context`, `address`. Raises StackError."""
    from updraft.kubernetes.kubeconfig import choose

    if not given:
        return current
    if given.get("kubeconfig") == LOCAL:
        return None
    if "kubeconfig" not in given and current is None:
        raise StackError(f"--{next(iter(given))} needs --kubeconfig FILE, which names the cluster.")
    path = Path(given.get("kubeconfig") or (current.kubeconfig if current else "")).expanduser().absolute()
    if current is not None and current.kubeconfig != str(path):
        current = None  # a different file: forget the settings of the earlier one
    try:
        chosen = choose(path, given.get("context") or (current.context if current else None))
    except RefusedError as exc:
        raise StackError(str(exc)) from None
    known = current.address if current and current.context == chosen.context else None
    address = given.get("address") or known or own_address(chosen.server)
    return ClusterConfig(kubeconfig=str(path), context=chosen.context, address=_of_this_machine(address))


def answers(cluster: ClusterConfig) -> bool:
    """Return whether an API server still answers, whatever it says. Raises StackError if the kubeconfig is unusable."""
    from updraft.kubernetes import preflight
    from updraft.kubernetes.clients import cluster_api
    from updraft.kubernetes.kubeconfig import choose, client_of

    path = Path(cluster.kubeconfig)
    if not path.exists():  # tools that remove a cluster may remove it
        return False
    try:
        return preflight.answers(cluster_api(client_of(choose(path, cluster.context))))
    except RefusedError as exc:
        raise StackError(f"The cluster so far cannot be asked whether it is still there: {exc}") from exc


def own_address(server: str) -> str:
    """Return the address from which this machine reaches the API server, which the cluster's pods most likely reach
    too."""
    parts = urlsplit(server)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        family, _, _, _, target = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # sends nothing; only chooses the local address
            address = str(probe.getsockname()[0])
    except OSError as exc:
        raise StackError(
            f"{server} cannot be reached from here ({exc.strerror}), so it is unknown by which address its pods "
            "reach this machine; correct the kubeconfig, or give --address."
        ) from exc
    if ipaddress.ip_address(address).is_loopback:
        raise StackError(
            f"{server} is an address of this machine alone, at which the cluster's pods do not find it; give "
            "--address, one of this machine's addresses that they reach (such as that of Docker's bridge)."
        )
    return address


def _of_this_machine(address: str) -> str:
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except (ValueError, OSError):
        raise StackError(f"--address {address} is no address of this machine; S3 and MLflow listen there.") from None
    return address
