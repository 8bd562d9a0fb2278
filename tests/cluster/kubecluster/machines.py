"""The hosts of a cluster: each is one process with process, mount and network namespaces of its own.

Everything that runs on such a machine lives in its namespaces. When its first process ends, the kernel ends all the
others, containers too, and drops their mounts, devices and routes: that is why nothing can be left behind. The
control machine holds the bridge that joins them. Called by `running`.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from kubecluster import cgroups
from kubecluster.building import PAUSE, Programs
from kubecluster.layout import MARK_VARIABLE, ClusterError, Layout
from kubecluster.network import MTU_BYTES, Network
from updraft.stack.layout import write_private
from updraft.stack.processes import Identity, spawn

CONTROL = "control"
NODES = ("node-a", "node-b")
START_SECONDS = 20.0
# What a kubelet sets in the whole system's kernel. It finds these values set, and so leaves the real ones alone.
KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
COMMON = """\
set -eu
mount --make-rshared /
mount -t proc proc /proc
resolver=$(readlink -f /etc/resolv.conf || true)
mount -t tmpfs -o mode=0755 tmpfs /run
mkdir -p /run/tmp
case "$resolver" in /run/*) mkdir -p "$(dirname "$resolver")"; touch "$resolver";; esac
[ ! -f "$resolver" ] || mount --bind {configuration}/resolv.conf "$resolver"
ip link set lo up
"""
NODE = """\
mount -t tmpfs -o mode=0755 tmpfs /var/lib
mkdir -p /var/lib/kubelet /var/lib/containerd /var/lib/cni
mount --bind {disk}/kubelet /var/lib/kubelet
mount --bind {disk}/containerd /var/lib/containerd
mount --bind {disk}/log /var/log
echo 1 > /proc/sys/net/ipv4/ip_forward
"""


@dataclass(frozen=True)
class Record:
    """A process of the cluster, as a file, so that a later command finds it."""

    name: str
    pid: int
    create_time: float

    @property
    def identity(self) -> Identity:
        return Identity(self.pid, self.create_time)


def write_record(layout: Layout, name: str, identity: Identity) -> None:
    record = Record(name, identity.pid, identity.create_time)
    write_private(layout.records / f"{name}.json", json.dumps(asdict(record)) + "\n")


def read_record(layout: Layout, name: str) -> Identity | None:
    """The process, if it lives."""
    try:
        identity = Record(**json.loads((layout.records / f"{name}.json").read_text())).identity
    except (OSError, ValueError, TypeError):
        return None
    return identity if identity.alive() else None


def records(layout: Layout) -> list[str]:
    return sorted(path.stem for path in layout.records.glob("*.json"))


def environment(layout: Layout) -> dict[str, str]:
    """Of everything on a machine. No proxy: what a node cannot reach directly, it shall not reach."""
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/run",
        "TMPDIR": "/run/tmp",
        MARK_VARIABLE: str(layout.root),
    }


def cgroup_of(layout: Layout, machine: str) -> str:
    return f"{layout.name}/{machine}"


def script(layout: Layout, machine: str, programs: Programs) -> str:
    """What the first process of a machine does, before it becomes `pause`."""
    text = COMMON.format(configuration=_quoted(layout.configuration))
    if machine != CONTROL:
        text += NODE.format(disk=_quoted(layout.disk_of(machine)))
        for index, (setting, value) in enumerate(KERNEL_SETTINGS.items()):
            path = f"/proc/sys/{setting}"
            text += f"if [ -e {path} ]; then echo {value} > /run/setting-{index}; "
            text += f"mount --bind /run/setting-{index} {path}; fi\n"
    return text + f"exec {_quoted(programs.path(PAUSE))}\n"


def start(layout: Layout, machine: str, programs: Programs, network: Network) -> Identity:
    """The machine, running; the one that was there, if it still is."""
    running = read_record(layout, machine)
    if running is not None:
        return running
    if machine != CONTROL:
        for folder in ("kubelet", "containerd", "log"):
            (layout.disk_of(machine) / folder).mkdir(parents=True, exist_ok=True)
        cgroups.make(cgroup_of(layout, machine))
    log = layout.log_of(machine)
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--net", "--propagation", "slave"]
    command += ["/bin/sh", "-c", script(layout, machine, programs)]
    outer, _ = spawn(command, environment=environment(layout), cwd=Path("/"), log=log)
    first = _only_child(outer, f"the machine {machine}", log, named=PAUSE)
    _connect(layout, machine, first, network)
    write_record(layout, machine, first)
    return first


def enter(first: Identity, command: Sequence[str | Path]) -> list[str]:
    """The command, on the machine whose first process is given."""
    into = ["nsenter", "--target", str(first.pid), "--pid", "--mount", "--net", "--"]
    return [*into, *(str(word) for word in command)]


def spawn_on(layout: Layout, machine: str, name: str, command: Sequence[str | Path]) -> Identity:
    """Start a program on a machine, its output to its log, its process in a record."""
    first = read_record(layout, machine)
    if first is None:
        raise ClusterError(f"{name} cannot start: its machine {machine} is not running.")
    log = layout.log_of(name)
    outer, _ = spawn(enter(first, command), environment=environment(layout), cwd=Path("/"), log=log)
    identity = _only_child(outer, name, log)
    write_record(layout, name, identity)
    return identity


def run_on(
    layout: Layout, machine: str, command: Sequence[str | Path], *, standard_input: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program on a machine to its end."""
    first = read_record(layout, machine)
    if first is None:
        raise ClusterError(f"The machine {machine} is not running; `make cluster` starts it.")
    with open(standard_input or os.devnull, "rb") as source:
        return subprocess.run(
            enter(first, command),
            env=environment(layout),
            stdin=source,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )


def _connect(layout: Layout, machine: str, first: Identity, network: Network) -> None:
    """Network devices and routes. They belong to the machine's namespace and end with it."""
    here = ["nsenter", "--target", str(first.pid), "--net", "--", "ip"]
    mtu = ["mtu", str(MTU_BYTES)]
    if machine == CONTROL:
        _ip([*here, "link", "add", "machines", *mtu, "type", "bridge"])
        _ip([*here, "address", "add", f"{network.control}/24", "dev", "machines"])
        _ip([*here, "address", "add", f"{network.kubernetes_service}/32", "dev", "machines"])
        _ip([*here, "link", "set", "machines", "up"])
        _ip(["ip", "link", "add", layout.name, *mtu, "type", "veth", "peer", "host", "netns", str(first.pid)])
        _ip([*here, "link", "set", "host", "master", "machines", "up"])
        _ip(["ip", "address", "add", f"{network.host}/24", "dev", layout.name])
        _ip(["ip", "link", "set", layout.name, "up"])
        for index in range(len(NODES)):
            for prefix in (["ip"], here):
                device = layout.name if prefix == ["ip"] else "machines"
                via = ["via", network.node(index), "dev", device]
                _ip([*prefix, "route", "add", network.pods_range(index), *via])
        return
    control = read_record(layout, CONTROL)
    if control is None:
        raise ClusterError(f"{machine} cannot be connected: the machine {CONTROL} is not running.")
    hub = ["nsenter", "--target", str(control.pid), "--net", "--", "ip"]
    own = NODES.index(machine)
    # The kernel clears the namespace of a machine that has ended in its own time; until then the device is there.
    subprocess.run([*hub, "link", "delete", machine], capture_output=True, check=False)
    _ip([*hub, "link", "add", machine, *mtu, "type", "veth", "peer", "eth0", "netns", str(first.pid)])
    _ip([*hub, "link", "set", machine, "master", "machines", "up"])
    _ip([*here, "address", "add", f"{network.node(own)}/24", "dev", "eth0"])
    _ip([*here, "link", "set", "eth0", "up"])
    _ip([*here, "route", "add", "default", "via", network.host])
    _ip([*here, "route", "add", f"{network.kubernetes_service}/32", "via", network.control])
    for index in range(len(NODES)):
        if index != own:
            _ip([*here, "route", "add", network.pods_range(index), "via", network.node(index)])


def _ip(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")


def _only_child(outer: subprocess.Popen[bytes], what: str, log: Path, *, named: str | None = None) -> Identity:
    """The process that `unshare` or `nsenter` has started and waits for, once it has become `named`."""
    deadline = time.monotonic() + START_SECONDS
    parent = psutil.Process(outer.pid)
    while outer.poll() is None and time.monotonic() < deadline:
        try:
            for child in parent.children():
                if (named is None and child.name() != parent.name()) or child.name() == named:
                    return Identity(child.pid, child.create_time())
        except psutil.Error:
            pass
        time.sleep(0.01)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
    raise ClusterError(f"{what} did not start; its log {log} ends with:\n{tail}")


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "'\\''") + "'"
