"""Addresses of a cluster: which range it takes, and who has which address in it.

The cluster's network is a bridge in the control machine's own network namespace. This machine sees one device of it,
and reaches machines and pods by routes over that device; nothing is forwarded, translated or filtered. Called by
`machines`, `configuration` and `parts`.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from kubecluster.layout import ClusterError, Layout

CANDIDATES = range(64, 128)  # 10.64.0.0/16 to 10.127.0.0/16
MTU_BYTES = 1500


@dataclass(frozen=True)
class Network:
    """`prefix` is "10.N"; the third number says whose address it is."""

    prefix: str

    @property
    def machines_range(self) -> str:
        return f"{self.prefix}.0.0/24"

    @property
    def whole_range(self) -> str:
        return f"{self.prefix}.0.0/16"

    @property
    def host(self) -> str:
        """This machine, as the cluster sees it: a server that pods should reach listens here."""
        return f"{self.prefix}.0.1"

    @property
    def control(self) -> str:
        return f"{self.prefix}.0.2"

    def node(self, index: int) -> str:
        return f"{self.prefix}.0.{11 + index}"

    def pods_range(self, index: int) -> str:
        return f"{self.prefix}.{1 + index}.0/24"

    @property
    def services_range(self) -> str:
        return f"{self.prefix}.128.0/20"

    @property
    def kubernetes_service(self) -> str:
        """The one service address that works, without kube-proxy: the control machine has it itself."""
        return f"{self.prefix}.128.1"

    @property
    def api_url(self) -> str:
        return f"https://{self.control}"

    @property
    def etcd_url(self) -> str:
        return f"https://{self.control}:2379"


def choose(layout: Layout, taken: Sequence[ipaddress.IPv4Network]) -> Network:
    """A range that overlaps none of this machine's routes; those of another cluster of ours count as well."""
    start = int(layout.name[-6:], 16)
    for step in range(len(CANDIDATES)):
        network = Network(f"10.{CANDIDATES[(start + step) % len(CANDIDATES)]}")
        if not any(route.overlaps(ipaddress.ip_network(network.whole_range)) for route in taken):
            return network
    raise ClusterError("Every range from 10.64.0.0/16 to 10.127.0.0/16 is routed somewhere; none is left for pods.")


def device(layout: Layout) -> bool:
    """Whether this machine still has the cluster's network device."""
    return layout.name in (name for _, name in socket.if_nameindex())


def remove_device(layout: Layout, *, within_seconds: float = 10.0) -> bool:
    """The kernel removes it with the control machine, some time after that has ended; this does not wait for it."""
    deadline = time.monotonic() + within_seconds
    while device(layout):
        subprocess.run(["ip", "link", "delete", layout.name], capture_output=True, check=False)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def routes() -> list[ipaddress.IPv4Network]:
    """Where this machine sends packets, but the default route."""
    said = subprocess.run(["ip", "-json", "-4", "route", "show", "table", "all"], capture_output=True, check=True)
    found = []
    for route in json.loads(said.stdout or b"[]"):
        if route["dst"] != "default":
            found.append(ipaddress.ip_network(route["dst"], strict=False))
    return [route for route in found if isinstance(route, ipaddress.IPv4Network) and route.prefixlen > 0]
