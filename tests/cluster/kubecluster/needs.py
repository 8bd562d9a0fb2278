"""What a machine must have to run the test cluster, told by name before anything starts; Debian's packages.

Called by `running` and by the tests, which are skipped with the reason.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kubecluster.layout import MARK_VARIABLE, ClusterError, Layout

OLDEST_GO = (1, 24)
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
CNI_PROGRAMS = ("bridge", "host-local", "loopback")
MEMORY_BYTES = 3 * 1024**3  # the build takes 2.3 GiB, the cluster 1 GiB
DISK_BYTES = 6 * 1024**3  # Go's module and build caches 4 GiB, the programs, two nodes' images
PROGRAMS = {  # of the base system, all in Debian's essential packages or in iproute2
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "ip": "iproute2",
}


@dataclass(frozen=True)
class Machine:
    """What is asked about this machine; tests give other answers."""

    system: str
    root: bool
    distribution: frozenset[str]  # ID and ID_LIKE of os-release
    go_version: tuple[int, int] | None
    missing_programs: tuple[str, ...]
    memory_bytes: int
    disk_bytes: int

    def problems(self) -> list[str]:
        """One sentence for each thing that is missing, with what to do; empty when the cluster can run."""
        if self.system != "Linux":
            return [f"It needs Linux, this is {self.system}; use a virtual machine, or set UPDRAFT_TEST_KUBECONFIG."]
        found = []
        if not self.root:
            found.append("It needs root, for namespaces, mounts and control groups; run it with sudo.")
        if not self.distribution & {"debian", "ubuntu"}:
            found.append(
                "It needs Debian or Ubuntu with apt, for containerd, runc and the CNI plugins; "
                f"this is {'/'.join(sorted(self.distribution)) or 'unknown'}."
            )
        wanted = f"{OLDEST_GO[0]}.{OLDEST_GO[1]}"
        if self.go_version is None:
            found.append(f"It needs Go {wanted} or newer on the PATH or in /usr/local/go; see https://go.dev/dl.")
        elif self.go_version < OLDEST_GO:
            found.append(f"It needs Go {wanted} or newer, this is {self.go_version[0]}.{self.go_version[1]}.")
        found += [f"It needs the program {name}: apt-get install {PROGRAMS[name]}." for name in self.missing_programs]
        if self.memory_bytes < MEMORY_BYTES:
            found.append(f"It needs 3 GiB of memory, {self.memory_bytes / 1024**3:.1f} GiB are there.")
        if self.disk_bytes < DISK_BYTES:
            found.append(f"It needs 6 GiB of free disk, {self.disk_bytes / 1024**3:.1f} GiB are there.")
        return found


def this_machine(layout: Layout) -> Machine:
    linux = platform.system() == "Linux"
    return Machine(
        system=platform.system(),
        root=os.geteuid() == 0,
        distribution=distribution(),
        go_version=go_version(),
        missing_programs=tuple(name for name in PROGRAMS if shutil.which(name) is None),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if linux else 0,
        disk_bytes=min(free_bytes(layout.root), free_bytes(layout.cache)),
    )


def free_bytes(folder: Path) -> int:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(existing).free


def distribution(file: Path = Path("/etc/os-release")) -> frozenset[str]:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return frozenset()
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    return frozenset(f"{values.get('ID', '')} {values.get('ID_LIKE', '')}".replace('"', "").split())


def find_go() -> str | None:
    return shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")


def go_version() -> tuple[int, int] | None:
    go = find_go()
    if go is None:
        return None
    environment = {**os.environ, "GOTOOLCHAIN": "local"}
    said = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False, env=environment)
    matched = re.search(r"go(\d+)\.(\d+)", said.stdout)
    return (int(matched[1]), int(matched[2])) if matched else None


def missing_packages() -> list[str]:
    """Debian's packages that are not there, told by their programs: another maker's containerd does as well."""
    missing = []
    if shutil.which("containerd") is None or shutil.which("ctr") is None:
        missing.append("containerd")
    if shutil.which("runc") is None:
        missing.append("runc")
    if cni_folder() is None:
        missing.append("containernetworking-plugins")
    return missing


def cni_folder() -> Path | None:
    for folder in CNI_FOLDERS:
        if all((folder / name).exists() for name in CNI_PROGRAMS):
            return folder
    return None


def install_packages(names: list[str], log: Path, say: Callable[[str], None]) -> None:
    """Debian's, as they are; nothing else is installed, nothing is upgraded.

    apt is no part of the cluster: it carries no mark and writes to a file, so that it goes on to its end when this is
    killed, and the system's packages are never left half installed.
    """
    if not names:
        return
    say(f"installing {', '.join(names)} with apt")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # The package lists may be old or absent, which only a failed first try tells.
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", "--no-upgrade", *names]
    for command in (install, ["apt-get", "update", "-q"], install):
        with log.open("ab") as output:
            done = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                check=False,
            )
        if done.returncode == 0 and command is install:
            return
    tail = log.read_text(errors="replace").strip()[-400:]
    raise ClusterError(f"apt-get install {' '.join(names)} failed: {tail}")


def marked_environment(layout: Layout) -> dict[str, str]:
    """Of every process that is started for a cluster."""
    return {**os.environ, MARK_VARIABLE: str(layout.root)}
