"""Assign host ports to the ports of pods and gangs. They are stored, so that a restart keeps them."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterable

from updraft_localnode.store import ResourceStore

# Below the range that systems use for outgoing connections (Linux from 32768, macOS from 49152).
LOWEST, HIGHEST = 20000, 32000
_FACT = "ports"


def is_free(port: int) -> bool:
    """Return whether no process listens there on the loopback address."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class PortBook:
    """The host ports by owner (a pod's uid, or `namespace/service`) and by the port that they replace."""

    def __init__(self, store: ResourceStore) -> None:
        self._store = store
        self._ports: dict[str, dict[str, int]] = json.loads(store.fact(_FACT) or "{}")
        self._random = random.Random()

    def ports(self, owner: str, wanted: Iterable[int]) -> dict[int, int]:
        """Return the same answer every time, until `release`."""
        known = self._ports.setdefault(owner, {})
        missing = [port for port in wanted if str(port) not in known]
        for port in missing:
            known[str(port)] = self._choose()
        if missing:
            self._save()
        return {int(port): host_port for port, host_port in known.items()}

    def release(self, owner: str) -> None:
        if self._ports.pop(owner, None):
            self._save()

    def owners(self) -> list[str]:
        return list(self._ports)

    def _choose(self) -> int:
        taken = {port for ports in self._ports.values() for port in ports.values()}
        candidates = self._random.sample(range(LOWEST, HIGHEST), HIGHEST - LOWEST)
        return next(port for port in candidates if port not in taken and is_free(port))

    def _save(self) -> None:
        self._store.set_fact(_FACT, json.dumps(self._ports))


def gang_owner(namespace: str, service: str) -> str:
    return f"{namespace}/{service}"
