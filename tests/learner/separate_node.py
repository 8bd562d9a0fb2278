"""A network namespace: processes in it have a network of their own, as on another node, and packets can be dropped."""

from __future__ import annotations

import os
import shutil
import subprocess
from types import TracebackType

import pytest

HERE, THERE = "10.231.77.1", "10.231.77.2"  # of this machine, and of the node


def require() -> None:
    """Skip the test, and say so, where no namespace can be made."""
    missing = [program for program in ("ip", "iptables") if shutil.which(program) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"NOT TESTED: dropped packets need root and the programs ip and iptables; missing: {missing}")


class SeparateNode:
    """The node. Use it as a context."""

    def __init__(self) -> None:
        self.name, self._device = f"updraft-{os.getpid()}", f"upd{os.getpid()}"

    @property
    def path(self) -> str:
        return f"/run/netns/{self.name}"

    def __enter__(self) -> SeparateNode:
        _run("ip", "netns", "add", self.name)
        try:
            _run("ip", "link", "add", self._device, "type", "veth", "peer", "name", "eth0", "netns", self.name)
            _run("ip", "address", "add", f"{HERE}/30", "dev", self._device)
            _run("ip", "link", "set", self._device, "up")
            self._inside("ip", "address", "add", f"{THERE}/30", "dev", "eth0")
            for device in ("eth0", "lo"):
                self._inside("ip", "link", "set", device, "up")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        subprocess.run(["ip", "link", "delete", self._device], check=False, capture_output=True)
        _run("ip", "netns", "delete", self.name)

    def drop(self, but_port: int | None = None) -> None:
        """Drop all packets from and to the node, but those of connections to one port of this machine."""
        if but_port is not None:
            self._inside("iptables", "-A", "INPUT", "-p", "tcp", "--sport", str(but_port), "-j", "ACCEPT")
            self._inside("iptables", "-A", "OUTPUT", "-p", "tcp", "--dport", str(but_port), "-j", "ACCEPT")
        for chain in ("INPUT", "OUTPUT"):
            self._inside("iptables", "-A", chain, "-i" if chain == "INPUT" else "-o", "eth0", "-j", "DROP")

    def mend(self) -> None:
        self._inside("iptables", "-F")

    def _inside(self, *command: str) -> None:
        _run("ip", "netns", "exec", self.name, *command)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
