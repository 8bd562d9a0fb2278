"""Where a test cluster keeps its files and what its things are called: names and paths only.

Called by everything in this package.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
STATE_VARIABLE = "UPDRAFT_TEST_CLUSTER"
# Set in every process that belongs to a cluster, so that `down` finds whatever an interrupted `up` left.
MARK_VARIABLE = "UPDRAFT_TEST_CLUSTER_OF"
HIDDEN = (Path("/run"), Path("/var/run"), Path("/var/lib"), Path("/proc"), Path("/sys"), Path("/dev"))  # in a machine


class ClusterError(Exception):
    """The test cluster could not do what was asked; says what, why, and what to do."""


@dataclass(frozen=True)
class Layout:
    """The state folder of one cluster, and the cache that all clusters of this user share."""

    root: Path
    cache: Path

    @property
    def name(self) -> str:
        """Short enough for a network device's name (15), and this state folder's own."""
        return "upd" + hashlib.sha256(str(self.root).encode()).hexdigest()[:6]

    @property
    def records(self) -> Path:
        return self.root / "processes"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def audit_log(self) -> Path:
        return self.root / "audit" / "audit.jsonl"

    @property
    def pki(self) -> Path:
        return self.root / "pki"

    @property
    def configuration(self) -> Path:
        return self.root / "configuration"

    @property
    def etcd(self) -> Path:
        return self.root / "etcd"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.root / "kubeconfig"

    @property
    def kubectl(self) -> Path:
        return self.root / "kubectl"

    @property
    def network_file(self) -> Path:
        return self.root / "network.json"

    @property
    def ready_file(self) -> Path:
        """There when `up` has ended well; holds the hash of the programs that run."""
        return self.root / "ready"

    @property
    def lock_file(self) -> Path:
        return self.cache / f"{self.name}.lock"

    @property
    def beside(self) -> Layout:
        """A second cluster, for tests that would disturb others."""
        return replace(self, root=self.root.with_name(f"{self.root.name}-beside"))

    @property
    def platform(self) -> Path:
        """The home of the platform whose jobs the tests run on this cluster."""
        return self.root.with_name(f"{self.root.name}-tests")

    def disk_of(self, machine: str) -> Path:
        """What a machine keeps on disk: images, containers, volumes."""
        return self.root / "machines" / machine

    def log_of(self, part: str) -> Path:
        return self.logs / f"{part}.log"


def find_layout(environment: Mapping[str, str] | None = None) -> Layout:
    """The cluster that a command means: UPDRAFT_TEST_CLUSTER, else `.updraft/cluster` in the checkout."""
    environment = os.environ if environment is None else environment
    named = environment.get(STATE_VARIABLE)
    root = Path(named).expanduser().resolve() if named else REPOSITORY / ".updraft" / "cluster"
    return Layout(root=root, cache=cache_folder(environment))


def cache_folder(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CACHE_HOME") or str(Path(environment.get("HOME") or Path.home()) / ".cache")
    return Path(base).resolve() / "updraft" / "cluster"


def refuse_hidden(path: Path, what: str, variable: str) -> None:
    """A machine of the cluster has its own /run, /var/lib and so on: what lies there it cannot see."""
    for folder in HIDDEN:
        if path.is_relative_to(folder):
            raise ClusterError(
                f"The {what} {path} lies below {folder}, which the cluster's machines replace by their own; "
                f"set {variable} to a folder elsewhere."
            )
